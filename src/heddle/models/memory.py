"""How much memory there is, and how much a model will take."""

import os
from pathlib import Path

import torch

from heddle.models.interfaces import ModelError

WORKING_BYTES = 256 * 2**20
CGROUP = Path("/sys/fs/cgroup")
GROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes(device: torch.device) -> int | None:
    """Bytes that this process can still take on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [limit for limit in (system_bytes(), group_bytes()) if limit is not None]
    return min(limits, default=None)


def system_bytes() -> int | None:
    """Free memory and what the system can drop at once."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        names = getattr(os, "sysconf_names", {})
        if "SC_AVPHYS_PAGES" not in names:
            return None
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return sizes.get("MemAvailable")


def group_bytes() -> int | None:
    """What is left of the limit of a container (cgroup version 2, else 1)."""
    for limit, used, droppable in GROUP_FILES:
        try:
            most = (CGROUP / limit).read_text(encoding="ascii").strip()
            now = int((CGROUP / used).read_text(encoding="ascii"))
            lines = (CGROUP / droppable).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return None if most == "max" else max(0, int(most) - now + cached)
    return None


def check_fits(what: str, needed: int, device: torch.device) -> None:
    """ModelError with both numbers when a model cannot be loaded."""
    free = available_bytes(device)
    if free is not None and needed + WORKING_BYTES > free:
        wanted, left = (needed + WORKING_BYTES) / 2**20, free / 2**20
        raise ModelError(f"{what}: needs about {wanted:,.0f} MiB on {device}, and {left:,.0f} MiB are available")

"""Libraries in C that tests put below a server (LD_PRELOAD)."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def has_compiler() -> bool:
    """Whether such libraries can be made and used here."""
    return shutil.which("cc") is not None and os.uname().sysname == "Linux"


def compile_library(name: str) -> Path:
    """The compiled `name`.c of this folder, made once for each version of it."""
    source = Path(__file__).with_name(f"{name}.c")
    made = _ROOT / ".cache" / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", unfinished, source, "-ldl", "-lpthread"], check=True)
        unfinished.rename(made)
    return made

"""Settings of inference that can never work: found before the server takes requests, and by `heddle check`."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from heddle.errors import InvalidRequest
from heddle.inference.adapters import Address
from heddle.inference.served_model import check_model
from heddle.settings import Settings

_DEVICES = ("nvidia[0-9]*", "dxg", "kfd", "nvmap")
"""Below /dev: what CUDA needs of a driver, also inside WSL and on Jetson, and ROCm, which torch calls cuda too."""


def check_settings(settings: Settings) -> None:
    """Raise HeddleError for what can never be served; what a hub gives is seen when it loads."""
    if settings.model != "none":
        check_model(settings.model)
    for _, folder in named_adapters(settings):
        if not (folder / "adapter_config.json").is_file():
            raise InvalidRequest(f"adapters: there is no adapter_config.json in {str(folder)!r}")
    for root in settings.adapter_roots.split(",") if settings.adapter_roots not in ("auto", "any") else ():
        if not Path(root.strip()).is_dir():
            raise InvalidRequest(f"adapter_roots: there is no folder {root.strip()!r}")
    if settings.engine == "vllm":
        _check_vllm(settings)
    elif settings.engine_device.startswith("cuda"):
        _check_cuda("engine_device", settings.engine_device)
    if settings.training == "on" and settings.trainer == "local" and settings.training_device.startswith("cuda"):
        _check_cuda("training_device", settings.training_device)


def named_adapters(settings: Settings) -> Iterator[tuple[Address, Path]]:
    """The adapters of the setting with their folders; raises InvalidRequest for what is no name of one."""
    for pair in settings.adapters.split(",") if settings.adapters != "none" else ():
        name, _, folder = pair.partition("=")
        address = Address.parse(name)
        if address is None:
            raise InvalidRequest(f"adapters: {name!r} is no name of an adapter")
        yield address, Path(folder)


def _check_vllm(settings: Settings) -> None:
    if settings.engine_dtype == "int8":
        raise InvalidRequest("engine_dtype int8 is heddle's own engine's; vLLM serves folders with quantized weights")
    program = shlex.split(settings.vllm_command)[0]
    if settings.vllm_urls == "none" and "{" not in program and shutil.which(program) is None:
        raise InvalidRequest(f"vllm_command: there is no program {program!r}")


def _check_cuda(name: str, device: str) -> None:
    if sys.platform == "linux" and not any(any(Path("/dev").glob(pattern)) for pattern in _DEVICES):
        raise InvalidRequest(f"{name} = {device!r} cannot be used: this machine has no GPU, or its driver is missing")

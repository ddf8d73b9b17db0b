"""The served model: its folder, its tokenizer and defaults, its engine, loading it, and settings that cannot work."""

import asyncio
import hashlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from heddle.errors import HeddleError, InvalidRequest, Unavailable
from heddle.extras import install_command
from heddle.inference.adapters import Address, Version
from heddle.inference.engine.base import Engine, EngineFailed, EngineInfo
from heddle.inference.engine.local.client import LocalEngine
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.vllm.client import VllmEngine, VllmOptions
from heddle.inference.prompt.reasoning import ReasoningMarks, detect_marks
from heddle.inference.tokenizer import Tokenizer, read_json
from heddle.inference.tools.channels import speaks_harmony
from heddle.settings import Settings

TINY = "heddle-tiny"
TINY_FOLDER = Path(__file__).parents[1] / "demo" / "tiny" / "model"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model folder in the Hugging Face layout, as far as the front needs it."""

    name: str
    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    digest: str
    """Eight hex digits of what the folder holds (names, sizes and the configuration)."""
    created: int
    """When the weights were written, in seconds."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the model's own generation_config.json proposes; a request's value goes first."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, generation_config: Mapping[str, Any]) -> "Defaults":
        """The defaults of a model folder; values of a wrong type are left out."""
        found: dict[str, Any] = {}
        for spec in fields(cls):
            value = generation_config.get(spec.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[spec.name] = int(value) if spec.name == "top_k" else float(value)
        return cls(**found)


def find_model(model: str, name: str = "auto") -> ModelSource:
    """The folder behind a setting; downloads a hub id. Raises Unavailable saying what is missing."""
    folder = TINY_FOLDER if model == TINY else _folder(model)
    if not (folder / "config.json").is_file():
        raise Unavailable(f"The model folder {model!r} has no config.json")
    config = read_json(folder / "config.json")
    text_config = config.get("text_config")
    if isinstance(text_config, dict) and "vocab_size" in text_config:
        config = {**config, **text_config}
    shown = name if name != "auto" else model if "/" in model and not Path(model).exists() else folder.name
    return ModelSource(
        name=TINY if model == TINY and name == "auto" else shown,
        folder=folder,
        config=config,
        generation_config=read_json(folder / "generation_config.json"),
        digest=_digest(folder),
        created=int(max(path.stat().st_mtime for path in folder.iterdir())),
    )


def check_model(model: str) -> None:
    """Raise Unavailable for a folder that cannot be served; a hub id shows what it is when it is loaded."""
    is_hub_id = not Path(model).expanduser().is_dir() and _is_hub_id(model)
    if model == TINY or is_hub_id:
        return
    folder = find_model(model).folder
    if not (folder / "tokenizer.json").is_file():
        raise Unavailable(f"The model folder {model!r} has no tokenizer.json")
    if not any(path.suffix in (".safetensors", ".bin") for path in folder.iterdir()):
        raise Unavailable(f"The model folder {model!r} has no weights (*.safetensors)")


def _is_hub_id(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "~", "/"))


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if not _is_hub_id(model):
        raise Unavailable(f"Model folder {model!r} not found")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise Unavailable(
            f"Folder {model!r} not found; to load models from the hub, run: {install_command('inference')}"
        ) from None
    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "chat_templates/*"]
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the library raises errors of several HTTP stacks
        raise Unavailable(
            f"Folder {model!r} not found, and it could not be downloaded from the hub: {str(error)[:300]}"
        ) from None


def _digest(folder: Path) -> str:
    hashed = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            hashed.update(f"{path.name}:{path.stat().st_size};".encode())
            if path.suffix == ".json" and path.stat().st_size < 1 << 20:
                hashed.update(path.read_bytes())
            elif path.suffix == ".safetensors":
                with path.open("rb") as file:
                    hashed.update(file.read(1 << 20))
    return hashed.hexdigest()[:8]


@dataclass(frozen=True)
class ServedModel:
    """One base model with its engine."""

    source: ModelSource
    tokenizer: Tokenizer
    defaults: Defaults
    reasoning: ReasoningMarks | None
    harmony: bool
    """It writes messages in channels."""
    engine: Engine

    @classmethod
    def open(cls, source: ModelSource, engine: Engine) -> "ServedModel":
        """Read the small files of the folder; raises Unavailable when one is missing or broken."""
        tokenizer = Tokenizer.load(source.folder)
        return cls(
            source=source,
            tokenizer=tokenizer,
            defaults=Defaults.of(source.generation_config),
            reasoning=detect_marks(tokenizer),
            harmony=speaks_harmony(tokenizer),
            engine=engine,
        )

    @property
    def can_reason(self) -> bool:
        """Whether its outputs may hold thoughts."""
        return self.reasoning is not None or self.harmony

    @property
    def info(self) -> EngineInfo:
        """What the engine says about itself; its longest context may become smaller with its start."""
        return self.engine.info()

    def fingerprint(self, version: Version | None) -> str:
        """Which weights answer: engine, digest of the base model, and the adapter version.

        Of a trainable model it begins with `policy-step-N`, which clients of training look for.
        """
        base = f"{self.info.name}-{self.source.digest}"
        if version is None:
            return base
        weights = f"{base}-{version.label}"
        return f"policy-step-{version.row.step}-{weights}" if version.is_trainable else weights


VLLM_KEY = "VLLM_API_KEY"
"""The variable from which servers of vLLM take their key; ours is the same one."""


_SHARED_OPTIONS = ("max_model_len", "kv_memory", "scheduling", "max_running", "max_waiting", "max_adapters")


def make_engine(settings: Settings, source: ModelSource) -> Engine:
    """The engine that the settings name, on a model folder; nothing is loaded before `start` or a request.

    Raises Unavailable when the settings or the folder cannot be used.
    """
    shared: dict[str, Any] = {name: getattr(settings, name) for name in _SHARED_OPTIONS}
    shared |= {"folder": source.folder, "dtype": settings.engine_dtype}
    if settings.engine != "vllm":
        return LocalEngine(LocalOptions(device=settings.engine_device, threads=settings.engine_threads, **shared))
    return VllmEngine(
        VllmOptions(
            model=source.name,
            urls=_words(settings.vllm_urls),
            replicas=settings.vllm_replicas,
            command=settings.vllm_command,
            arguments=settings.vllm_arguments if settings.vllm_arguments != "none" else "",
            takes=frozenset(_words(settings.vllm_takes)),
            key=os.environ.get(VLLM_KEY, ""),
            lora_rank=settings.training_lora_rank,
            **shared,
        )
    )


def _words(text: str) -> tuple[str, ...]:
    """The entries of a list with commas; none for the word `none`."""
    words = (word.strip() for word in text.split(","))
    return tuple(dict.fromkeys(word for word in words if word and word != "none"))


logger = logging.getLogger("heddle.inference")

RETRY_SECONDS = 2.0
"""How often what does not answer yet is tried again: a store, or servers that others run."""


class ModelLoader:
    """Calls `load` until it succeeds; only what may pass by itself is tried again, and all else stays the failure."""

    def __init__(self, load: Callable[[], Awaitable[None]], waits_for_engine: bool) -> None:
        """`load` may run several times; `waits_for_engine`: others start the engine's servers."""
        self._load = load
        self._waits_for_engine = waits_for_engine
        self._task: asyncio.Task[None] | None = None
        self._failure: HeddleError | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Give up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def problem(self) -> str | None:
        """Why not all is loaded; None when it is, or when nobody wanted it to be."""
        if self._failure is not None:
            return self._failure.reason
        return None if self._task is None or self._task.done() else "The model is loading"

    def succeeded(self) -> None:
        """What failed to load was loaded by a request."""
        self._failure = None

    async def _run(self) -> None:
        while True:
            failure: HeddleError
            may_pass = False
            try:
                await self._load()
            except EngineFailed as error:
                failure, may_pass = error, self._waits_for_engine
            except HeddleError as error:
                failure, may_pass = error, isinstance(error, Unavailable)
            except Exception as error:  # whatever it is, the server goes on, says so, and ends in order
                logger.exception("loading the model failed")
                failure = Unavailable(f"Loading the model failed: {error}")
            else:
                self._failure = None
                return
            if not may_pass:
                logger.error("the model cannot be served: %s", failure.reason)
            elif self._failure is None:
                logger.warning("the model is not served yet: %s", failure.reason)
            self._failure = failure
            if not may_pass:
                return
            await asyncio.sleep(RETRY_SECONDS)


_DEVICES = ("nvidia[0-9]*", "dxg", "kfd", "nvmap")
"""Below /dev: what CUDA needs of a driver, also inside WSL and on Jetson, and ROCm, which torch calls cuda too."""


def check_settings(settings: Settings) -> None:
    """Raise HeddleError for what can never be served; what a hub gives is seen when it loads."""
    if settings.model != "none":
        check_model(settings.model)
    for _, folder in named_adapters(settings):
        if not (folder / "adapter_config.json").is_file():
            raise InvalidRequest(f"adapters: adapter_config.json not found in {str(folder)!r}")
    for root in settings.adapter_roots.split(",") if settings.adapter_roots not in ("auto", "any") else ():
        if not Path(root.strip()).is_dir():
            raise InvalidRequest(f"adapter_roots: folder {root.strip()!r} not found")
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
            raise InvalidRequest(f"adapters: {name!r} is not a valid adapter name")
        yield address, Path(folder)


def _check_vllm(settings: Settings) -> None:
    if settings.engine_dtype == "int8":
        raise InvalidRequest(
            "engine_dtype int8 is only supported by heddle's own engine; vLLM serves folders with quantized weights"
        )
    program = shlex.split(settings.vllm_command)[0]
    if settings.vllm_urls == "none" and "{" not in program and shutil.which(program) is None:
        raise InvalidRequest(f"vllm_command: program {program!r} not found")


def _check_cuda(name: str, device: str) -> None:
    if sys.platform == "linux" and not any(any(Path("/dev").glob(pattern)) for pattern in _DEVICES):
        raise InvalidRequest(f"{name} = {device!r} cannot be used: this machine has no GPU, or its driver is missing")

"""Which engine serves a model: the one place that knows."""

import os
import shlex

from heddle.errors import Unavailable
from heddle.inference.engine.base import Engine
from heddle.inference.engine.local.client import LocalEngine
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.vllm.client import VllmEngine, VllmOptions
from heddle.inference.models.source import ModelSource
from heddle.settings import Settings

VLLM_KEY = "VLLM_API_KEY"
"""The variable from which servers of vLLM take their key; ours is the same one."""


def make_engine(settings: Settings, source: ModelSource) -> Engine:
    """The engine that the settings name, on a model folder; nothing is loaded before `start` or a request.

    Raises Unavailable when the settings or the folder cannot be used.
    """
    return _vllm(settings, source) if settings.engine == "vllm" else _local(settings, source)


def _local(settings: Settings, source: ModelSource) -> Engine:
    return LocalEngine(
        LocalOptions(
            folder=source.folder,
            device=settings.engine_device,
            dtype=settings.engine_dtype,
            threads=settings.engine_threads,
            max_model_len=settings.max_model_len,
            kv_memory=settings.kv_memory,
            scheduling="priority" if settings.scheduling == "priority" else "fcfs",
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            max_adapters=settings.max_adapters,
        )
    )


def _vllm(settings: Settings, source: ModelSource) -> Engine:
    for name in ("vllm_command", "vllm_arguments"):
        try:
            shlex.split(getattr(settings, name))
        except ValueError as error:
            raise Unavailable(f"{name} cannot be used: {error}") from None
    return VllmEngine(
        VllmOptions(
            folder=source.folder,
            model=source.name,
            urls=_words(settings.vllm_urls),
            replicas=settings.vllm_replicas,
            command=settings.vllm_command,
            arguments=settings.vllm_arguments if settings.vllm_arguments != "none" else "",
            takes=frozenset(_words(settings.vllm_takes)),
            key=os.environ.get(VLLM_KEY, ""),
            dtype=settings.engine_dtype,
            max_model_len=settings.max_model_len,
            kv_memory=settings.kv_memory,
            scheduling="priority" if settings.scheduling == "priority" else "fcfs",
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            max_adapters=settings.max_adapters,
            lora_rank=settings.training_lora_rank,
        )
    )


def _words(text: str) -> tuple[str, ...]:
    """The entries of a list with commas; none for the word `none`."""
    words = (word.strip() for word in text.split(","))
    return tuple(dict.fromkeys(word for word in words if word and word != "none"))

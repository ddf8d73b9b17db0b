"""Which engine serves a model: the one place that knows."""

from heddle.inference.engine.base import Engine
from heddle.inference.engine.local.client import LocalEngine
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.source import ModelSource
from heddle.settings import Settings


def local_engine(settings: Settings, source: ModelSource) -> Engine:
    """The embedded engine on a model folder; nothing is loaded before its first request."""
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

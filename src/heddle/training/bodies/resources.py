"""With what a job runs: fixed when it comes in and kept with it, so that it gives the same result whenever it runs."""

import os
from typing import Any

from heddle.settings import Settings
from heddle.wire.policies import BaseModel

ONE_THREAD_BELOW = 50_000_000
FLOAT32_BELOW = 100_000_000
"""Parameters; as the engine decides, so that both compute alike."""


def resources(settings: Settings, base: BaseModel, parameters: int) -> dict[str, Any]:
    """Threads, precision, device and the most tokens of a sequence."""
    threads = settings.training_threads
    if threads == 0:
        threads = 1 if parameters < ONE_THREAD_BELOW else max(1, len(os.sched_getaffinity(0)) - 1)
    dtype = settings.training_dtype if settings.training_dtype != "auto" else settings.engine_dtype
    if dtype == "auto":
        dtype = "float32" if parameters < FLOAT32_BELOW else "bfloat16"
    sequence = base.max_model_len if settings.training_sequence == 0 else settings.training_sequence
    return {
        "threads": threads,
        "dtype": dtype,
        "device": settings.training_device,
        "sequence": min(sequence, base.max_model_len),
    }

"""Requests of Tinker's protocol as its client writes them."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from heddle.wire.otlp import write

Inputs = Mapping[str, Sequence[float] | np.ndarray[Any, Any]]


def write_tensor(values: Sequence[float] | np.ndarray[Any, Any]) -> bytes:
    """A `Tensor`: whole numbers as int64, all else as float32."""
    array = np.asarray(values)
    is_whole = array.dtype.kind == "i"
    held = write(1, array.astype("<i8" if is_whole else "<f4").tobytes()) + write(3, 2 if is_whole else 1)
    return held + b"".join(write(4, size) for size in array.shape)


def write_datum(tokens: Sequence[int], inputs: Inputs) -> bytes:
    """A `Datum` of text."""
    held = write(1, write(1, write(1, np.asarray(tokens, "<i4").tobytes())))
    return held + b"".join(write(2, write(1, name) + write(2, write_tensor(array))) for name, array in inputs.items())


def write_data(
    run: str,
    seq: int,
    data: Sequence[bytes],
    loss: str = "cross_entropy",
    config: Mapping[str, float] | None = None,
    forward_only: bool = False,
) -> bytes:
    """A `ForwardBackwardRequest`."""
    held = write(1, run) + write(2, seq) + b"".join(write(3, datum) for datum in data) + write(4, loss)
    for name, value in (config or {}).items():
        held += write(7, write(1, name) + write(2, write(1, float(value))))
    return held + (write(6, 1) if forward_only else b"")


def random_datum(random: Random, loss: str = "cross_entropy", length: int = 12) -> bytes:
    """Tokens that mean nothing, with what a loss needs."""
    ids = [random.randrange(500) for _ in range(length + 1)]
    inputs: dict[str, Any] = {"target_tokens": ids[1:]}
    if loss == "cross_entropy":
        inputs["weights"] = [random.random() for _ in range(length)]
    else:
        inputs["logprobs"] = [-12 * random.random() for _ in range(length)]
        inputs["advantages"] = [random.uniform(-1, 1) for _ in range(length)]
    if loss == "gspo":
        inputs["sequence_ratio_mask"] = [float(place >= 4) for place in range(length)]
    return write_datum(ids[:-1], inputs)

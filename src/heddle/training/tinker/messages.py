"""The messages of Tinker's protocol that are protobuf (tinker 0.38, `tinker_public.proto`), as arrays.

Data go in as `ForwardBackwardRequest`; `ForwardBackwardOutput` and `SampleResponse` come out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from struct import Struct
from typing import Any

import numpy as np

from heddle.wire.otlp import BYTES, FIXED64, VARINT, Malformed, fields, varint, write

Array = np.ndarray[Any, Any]
Messages = dict[int, list[tuple[int, bytes | int]]]
DTYPES: dict[int, "np.dtype[Any]"] = {1: np.dtype("<f4"), 2: np.dtype("<i8")}
"""The numbers of float32 and int64, which are all that clients send."""
NOTHING = -99999.0
"""The logprob that stands, with token 0, for no token of a ranking."""
MOST_CELLS = 1 << 26
"""Of all tensors of a request that are sent sparse; also the longest side of any tensor."""
_double = Struct("<d").unpack_from


@dataclass(slots=True)
class Datum:
    """One sequence and what the loss needs for each of its tokens."""

    tokens: Array
    """int64 [length]."""
    inputs: dict[str, Array]
    """float64 or int64, [length] or [length, targets]."""


@dataclass(slots=True)
class DataRequest:
    """A request to compute a loss on data, with or without its gradient."""

    model_id: str = ""
    seq_id: int = 0
    data: list[Datum] = field(default_factory=list)
    loss: str = ""
    config: dict[str, float | str] = field(default_factory=dict)
    forward_only: bool = False


def read_data_request(body: bytes) -> DataRequest:
    """Decode a `ForwardBackwardRequest`; raises Malformed naming the datum that is wrong."""
    held, budget = _split(body), _CellBudget()
    newer = dict(_entries(held.get(7, ()), _config_value))
    return DataRequest(
        model_id=_text(held, 1),
        seq_id=_number(held, 2),
        data=[_read_datum(item, place, budget) for place, item in enumerate(_parts(held, 3))],
        loss=_text(held, 4),
        config=newer or dict(_entries(held.get(5, ()), _read_double)),
        forward_only=bool(_number(held, 6)),
    )


@dataclass(slots=True)
class _CellBudget:
    """The cells that are left for tensors that are sent sparse, of which a few bytes stand for very many."""

    cells: int = field(default_factory=lambda: MOST_CELLS)

    def take(self, cells: int) -> None:
        """Take some of it; raises Malformed where there is less."""
        self.cells -= cells
        if self.cells < 0:
            raise Malformed(f"the sparse tensors of the request have more than {MOST_CELLS} cells")


def _read_datum(body: bytes, place: int, budget: _CellBudget) -> Datum:
    try:
        held = _split(body)
        chunks = [_read_chunk(chunk) for chunk in _parts(held, 1)]
        inputs = dict(_entries(held.get(2, ()), lambda tensor: _read_tensor(tensor, budget)))
        return Datum(np.concatenate([np.zeros(0, np.int64), *chunks]), inputs)
    except Malformed as error:
        raise error.within(f".data[{place}]") from None


def _read_chunk(body: bytes) -> Array:
    held = _split(body)
    if set(held) != {1}:
        raise Malformed("model_input: only text is supported, not images or audio")
    return _array(_bytes(_split(_bytes(held, 1)), 1), np.dtype("<i4")).astype(np.int64)


def _read_tensor(body: bytes, budget: _CellBudget) -> Array:
    """A tensor [length] or [length, width] (also one of CSR rows), float64 or int64."""
    held = _split(body)
    kind = DTYPES.get(_number(held, 3))
    if kind is None:
        raise Malformed("a tensor is neither float32 nor int64")
    shape = [size for _, value in held.get(4, ()) for size in _packed(value)]
    if len(shape) > 2 or max(shape, default=0) > MOST_CELLS:
        raise Malformed(f"a tensor has an invalid shape: {str(shape)[:200]}")
    wide = np.dtype(np.float64 if kind.kind == "f" else np.int64)
    if 2 in held:
        return _densify(_split(_bytes(held, 2)), kind, wide, shape, budget)
    values = _array(_bytes(held, 1), kind).astype(wide)
    shape = shape or [len(values)]
    if math.prod(shape) != len(values):
        raise Malformed(f"a tensor of shape {shape} has {len(values)} values")
    return values.reshape(shape)


def _densify(
    held: Messages, kind: "np.dtype[Any]", wide: "np.dtype[Any]", shape: list[int], budget: _CellBudget
) -> Array:
    values = _array(_bytes(held, 1), kind)
    rows, columns = (_array(_bytes(held, number), np.dtype("<i8")) for number in (2, 3))
    is_sound = (
        len(shape) == 2
        and len(rows) == shape[0] + 1
        and len(columns) == len(values)
        and rows[0] == 0
        and rows[-1] == len(values)
        and bool((np.diff(rows) >= 0).all())
        and bool(((columns >= 0) & (columns < shape[1])).all())
    )
    if not is_sound:
        raise Malformed("a sparse tensor does not match its shape")
    budget.take(math.prod(shape))
    result = np.zeros(shape, wide)
    result[np.repeat(np.arange(shape[0]), np.diff(rows)), columns] = values
    return result


def _split(body: bytes) -> Messages:
    """The fields of a message by number."""
    held: Messages = {}
    try:
        for number, kind, start, end in fields(body, 0, len(body)):
            value = varint(body, start)[0] if kind == VARINT else body[start:end]
            if kind in (VARINT, BYTES, FIXED64):
                held.setdefault(number, []).append((kind, value))
    except IndexError:
        raise Malformed("a message is truncated") from None
    return held


def _parts(held: Messages, number: int) -> list[bytes]:
    return [value for kind, value in held.get(number, ()) if kind == BYTES and isinstance(value, bytes)]


def _bytes(held: Messages, number: int) -> bytes:
    found = _parts(held, number)
    return found[-1] if found else b""


def _text(held: Messages, number: int) -> str:
    return _decode(_bytes(held, number))


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Malformed("a string is not UTF-8") from None


def _number(held: Messages, number: int) -> int:
    found = [value for kind, value in held.get(number, ()) if kind == VARINT and isinstance(value, int)]
    return found[-1] if found else 0


def _packed(value: bytes | int) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    at = 0
    try:
        while at < len(value):
            number, at = varint(value, at)
            yield number
    except IndexError:
        raise Malformed("a shape is truncated") from None


def _entries(items: Sequence[tuple[int, bytes | int]], read: Callable[[bytes], Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of a map."""
    for kind, item in items:
        if kind != BYTES or not isinstance(item, bytes):
            raise Malformed("an entry of a map is not a message")
        held = _split(item)
        key = _text(held, 1)
        values = [value for _, value in held.get(2, ()) if isinstance(value, bytes)]
        try:
            yield key, read(values[-1] if values else b"")
        except Malformed as error:
            raise error.within(f".{key}") from None


def _read_double(body: bytes) -> float:
    return float(_double(body)[0]) if len(body) == 8 else 0.0


def _config_value(body: bytes) -> float | str:
    held = _split(body)
    return (
        _text(held, 2) if 2 in held else _read_double(b"".join(v for _, v in held.get(1, ()) if isinstance(v, bytes)))
    )


def _array(body: bytes, kind: "np.dtype[Any]") -> Array:
    if len(body) % kind.itemsize:
        raise Malformed("an array is truncated")
    return np.frombuffer(body, kind)


def write_outputs(outputs: Sequence[Mapping[str, Array]], metrics: Mapping[str, float]) -> bytes:
    """Encode a `ForwardBackwardOutput`: arrays of each datum, with the same names; [length] or [length, targets]."""
    parts = [write(1, "ArrayRecord")]
    for _, group in groupby(outputs, lambda output: [array.shape[1:] for array in output.values()]):
        records = list(group)
        columns = [(name, [record[name] for record in records]) for name in records[0]]
        held = [write(1, "ArrayRecord")]
        held += [write(2, write(1, name) + write(2, _write_batch(arrays))) for name, arrays in columns]
        parts.append(write(2, b"".join(held) + write(3, len(records))))
    parts += [write(3, write(1, name) + write(2, float(value))) for name, value in metrics.items()]
    return b"".join(parts)


def _write_batch(arrays: Sequence[Array]) -> bytes:
    parts = [np.ascontiguousarray(array, np.float32).tobytes() for array in arrays]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    trailing = b"".join(write(4, size) for size in arrays[0].shape[1:])
    return write(1, b"".join(parts)) + write(2, offsets.tobytes()) + write(3, 1) + trailing


Ranked = Sequence[Sequence[tuple[int, float]] | None]
"""For each place the best tokens with their logprobs; None where nothing was computed."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sequence that was sampled."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    has_stopped: bool
    """False where its length ended it."""
    best: Ranked | None = None


def write_samples(
    samples: Sequence[Sampled],
    prompt: Sequence[float | None] | None,
    best: Ranked | None,
    cached: int,
    targets: bytes | None = None,
    draws: Sequence[Sequence[tuple[int, float]]] | None = None,
) -> bytes:
    """Encode a `SampleResponse`; `prompt` has the logprobs of the prompt, None where they are not known.

    `targets` is a `Tensor`; `draws` has tokens that were drawn at each place of the prompt but the first.
    """
    parts = []
    for sample in samples:
        held = write(1, 0 if sample.has_stopped else 1) + write(2, np.asarray(sample.tokens, np.int32).tobytes())
        held += write(3, np.asarray(sample.logprobs, np.float32).tobytes())
        held += b"" if sample.best is None else write(4, _write_best(sample.best))
        parts.append(write(1, held))
    if prompt is not None:
        known = [np.nan if value is None else value for value in prompt]
        parts.append(write(2, np.asarray(known, np.float32).tobytes()))
    if best is not None:
        parts.append(write(3, _write_best(best)))
    parts.append(write(4, cached))
    if targets is not None:
        parts.append(write(5, targets))
    if draws is not None:
        drawn = np.asarray(draws, np.float64)
        parts.append(write(6, write(1, _write_tensor(drawn[..., 0], 2)) + write(2, _write_tensor(drawn[..., 1], 1))))
    return b"".join(parts)


def _write_tensor(array: Array, kind: int) -> bytes:
    """A dense `Tensor` of one of `DTYPES`."""
    shape = b"".join(write(4, size) for size in array.shape)
    return write(1, array.astype(DTYPES[kind]).tobytes()) + write(3, kind) + shape


def write_targets(asked: Mapping[str, Any], found: Sequence[Sequence[float]]) -> bytes:
    """A `Tensor` float32 with the layout of the one that asked: logprobs where it had tokens, 0 where -1."""
    data = np.asarray(asked["data"], np.int64)
    values = np.zeros(len(data), np.float32)
    values[data >= 0] = [value for row in found for value in row]
    if asked["sparse_crow_indices"] is None:
        return _write_tensor(values.reshape(asked["shape"]), 1)
    places = [np.asarray(asked[f"sparse_{name}_indices"], "<i8").tobytes() for name in ("crow", "col")]
    held = write(1, values.tobytes()) + write(2, places[0]) + write(3, places[1])
    return write(2, held) + write(3, 1) + b"".join(write(4, size) for size in asked["shape"])


def read_samples(body: bytes) -> list[tuple[Array, Array]]:
    """Tokens and logprobs of each sequence that `write_samples` encoded."""
    held = [_split(part) for part in _parts(_split(body), 1)]
    return [(_array(_bytes(one, 2), np.dtype("<i4")), _array(_bytes(one, 3), np.dtype("<f4"))) for one in held]


def _write_best(best: Ranked) -> bytes:
    width = max([1, *(len(ranked) for ranked in best if ranked)])
    ids = np.zeros((len(best), width), np.int32)
    logprobs = np.full((len(best), width), NOTHING, np.float32)
    for place, ranked in enumerate(best):
        for rank, (token, logprob) in enumerate(ranked or ()):
            ids[place, rank], logprobs[place, rank] = token, logprob
    return write(1, ids.tobytes()) + write(2, logprobs.tobytes()) + write(3, width) + write(4, len(best))

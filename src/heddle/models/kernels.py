"""The forward pass's inner loops, compiled for this processor by numba: products, attention and what lies between.

Every row is computed alone and in an order that depends on nothing but itself, so its result has the same bits in
any batch, chunk or number of threads. The source says where each number is rounded: a compiler that may choose
(`fastmath`) chooses differently where a loop stands in another function. Numbers between the kernels are float32;
what weights and caches hold follows from the type of their arrays:

- float32: float32;
- int16: the bits of bfloat16, multiplied in float32;
- uint16: the bits of bfloat16 in pairs, multiplied as bfloat16 and summed in float32;
- int8: fours of 8-bit integers, multiplied by rows of 8-bit integers and summed as integers.
"""

import contextlib
import fcntl
import hashlib
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import numpy as np
from numba import carray, njit, prange, types
from numba.extending import overload

from heddle.models import tiles
from heddle.models.tiles import (
    LANES,
    PANEL,
    TILE_ROWS,
    add_numbers,
    add_squares,
    as_bits,
    as_float,
    fuse,
    multiply_tile,
    pointer_to,
)

logger = logging.getLogger("heddle.models")

QUERY_ROWS = 12
"""Rows of queries that go through the keys together."""

LOG2_E = np.float32(math.log2(math.e))
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)
C5, C4, C3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
C2, C1, C0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ONE, HALF = np.float32(1.0), np.float32(0.5)


@njit(error_model="numpy")
def exp(x: Any) -> Any:
    """e^x in float32 to 2e-7, for x from -87 to 88; the coefficients are those of the Cephes library."""
    x = min(max(x, LOWEST), HIGHEST)
    whole = np.floor(fuse(x, LOG2_E, HALF))
    rest = fuse(whole, -LN2_LOW, fuse(whole, -LN2_HIGH, x))
    curve = fuse(fuse(fuse(fuse(fuse(C5, rest, C4), rest, C3), rest, C2), rest, C1), rest, C0)
    return (fuse(curve, rest * rest, rest) + ONE) * as_float((np.int32(whole) + np.int32(127)) << np.int32(23))


@njit(error_model="numpy")
def round_bfloat16(number: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even; what is not a number stays so."""
    bits = as_bits(number)
    rounded = (bits + np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))) >> np.int32(16)
    return np.uint16(rounded if number == number else np.int32(0x7FC0))


@njit(error_model="numpy")
def normalise(row: Any, scale: Any, epsilon: Any, out: Any) -> None:
    """Divide a row by the root of its mean square, and multiply by a scale."""
    total = add_squares(row.ctypes.data, len(row))
    factor = ONE / np.sqrt(total / np.float32(len(row)) + epsilon)
    for index in range(len(row)):
        out[index] = row[index] * factor * scale[index]


@njit(error_model="numpy")
def find_highest(numbers: Any) -> Any:
    """The highest of some numbers, found among integers of the same order: loops over those become vectors."""
    highest = np.int32(-0x7FFFFFFF)
    for index in range(len(numbers)):
        bits = as_bits(numbers[index])
        highest = max(highest, bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return as_float(highest ^ ((highest >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(error_model="numpy")
def find_largest(numbers: Any) -> Any:
    """The largest absolute value."""
    largest = np.int32(0)
    for index in range(len(numbers)):
        largest = max(largest, as_bits(numbers[index]) & np.int32(0x7FFFFFFF))
    return as_float(largest)


@njit(error_model="numpy")
def multiply_rows(
    weights: Any,
    rows: Any,
    columns: Any,
    taken: Any,
    top: Any,
    weight: Any,
    step_stride: Any,
    column_stride: Any,
    steps: Any,
    out: Any,
    out_stride: Any,
) -> None:
    """One tile from row `top` of `taken` on; see `multiply_tile`."""
    row, stride = taken.ctypes.data + top * taken.strides[0], taken.strides[0]
    multiply_tile(weights, rows, columns, row, stride, weight, step_stride, column_stride, steps, out, out_stride)


def take_rows(weights: Any, rows: Any) -> Any:
    """Rows as products with these weights want them, and a factor of each."""
    raise NotImplementedError


@overload(take_rows, strict=False)
def _take_rows(weights: Any, rows: Any) -> Any:
    if weights.dtype == types.uint16:

        def halves(weights: Any, rows: Any) -> Any:
            count, inputs = rows.shape
            taken = np.zeros((count, inputs + inputs % 2), np.uint16)
            for row in range(count):
                for index in range(inputs):
                    taken[row, index] = round_bfloat16(rows[row, index])
            return taken, np.empty(0, np.float32)

        return halves
    if weights.dtype == types.int8:

        def bytes_of(weights: Any, rows: Any) -> Any:
            count, inputs = rows.shape
            taken, factors = np.zeros((count, (inputs + 3) // 4 * 4), np.uint8), np.empty(count, np.float32)
            for row in range(count):
                largest = find_largest(rows[row])
                scale = np.float32(127.0) / largest if largest > 0 else np.float32(0.0)
                # What is not a number stays so.
                factors[row] = largest / np.float32(127.0) + (largest - largest)
                for index in range(inputs):
                    taken[row, index] = np.uint8(np.int32(np.floor(rows[row, index] * scale + np.float32(128.5))))
            return taken, factors

        return bytes_of
    return lambda weights, rows: (rows, np.empty(0, np.float32))


def finish(weights: Any, sums: Any, factors: Any, offsets: Any, row: Any, first: Any, index: Any) -> Any:
    """An output from the sum of its products."""
    raise NotImplementedError


@overload(finish, strict=False)
def _finish(weights: Any, sums: Any, factors: Any, scales: Any, offsets: Any, row: Any, output: Any) -> Any:
    if weights.dtype == types.int8:
        return lambda weights, sums, factors, scales, offsets, row, output: (
            np.float32(as_bits(sums) - offsets[output]) * (factors[row] * scales[output])
        )
    return lambda weights, sums, factors, scales, offsets, row, output: sums


def multiply(
    weights: Any,
    scales: Any,
    offsets: Any,
    bias: Any,
    rows: Any,
    norm: Any,
    epsilon: Any,
    add: Any,
    out: Any,
) -> None:
    """rows @ weights.T + bias into `out`, or added to it; with `norm` the rows are normalised before."""
    count, outputs = out.shape
    source = rows
    if len(norm):
        source = np.empty_like(rows)
        for row in prange(count):
            normalise(rows[row], norm, epsilon, source[row])
    taken, factors = take_rows(weights, source)
    steps = taken.shape[1] * taken.itemsize // 4
    output_bytes = weights.size * weights.itemsize // ((outputs + LANES - 1) // LANES * LANES)
    for panel in prange((outputs + PANEL - 1) // PANEL):
        first = panel * PANEL
        columns = min(PANEL // LANES, (outputs - first + LANES - 1) // LANES)
        sums = np.empty((TILE_ROWS, PANEL), np.float32)
        stride = output_bytes // steps * LANES
        for top in range(0, count, TILE_ROWS):
            height = min(TILE_ROWS, count - top)
            multiply_rows(
                weights,
                height,
                columns,
                taken,
                top,
                weights.ctypes.data + first * output_bytes,
                columns * stride,
                stride,
                steps,
                sums.ctypes.data,
                sums.strides[0],
            )
            for row in range(height):
                line = out[top + row]
                for index in range(min(PANEL, outputs - first)):
                    output = first + index
                    value = finish(weights, sums[row, index], factors, scales, offsets, top + row, output)
                    if len(bias):
                        value += bias[output]
                    line[output] = line[output] + value if add else value


def gate(both: Any, out: Any) -> None:
    """silu(first half of each row) * second half."""
    for row in prange(out.shape[0]):
        size = out.shape[1]
        for index in range(size):
            x = both[row, index]
            out[row, index] = x / (ONE + exp(-x)) * both[row, size + index]


def put(cache: Any, keys: Any, values: Any, position: Any, key: Any, value: Any) -> None:
    """Write the key and the value of a position to the memory of one head of a lane."""
    raise NotImplementedError


@overload(put, strict=False)
def _put(cache: Any, keys: Any, values: Any, position: Any, key: Any, value: Any) -> Any:
    if cache.dtype == types.uint16:

        def pairs(cache: Any, keys: Any, values: Any, position: Any, key: Any, value: Any) -> None:
            size = len(key)
            block = position // LANES * LANES * size + position % LANES * 2
            pair = position // 2 * 2 * size + position % 2
            for index in range(0, size, 2):
                keys[block + index * LANES] = round_bfloat16(key[index])
                keys[block + index * LANES + 1] = round_bfloat16(key[index + 1])
            for index in range(size):
                values[pair + 2 * index] = round_bfloat16(value[index])

        return pairs

    def singles(cache: Any, keys: Any, values: Any, position: Any, key: Any, value: Any) -> None:
        size = len(key)
        block = position // LANES * LANES * size + position % LANES
        for index in range(size):
            keys[block + index * LANES] = key[index]
            values[position * size + index] = value[index]

    return singles


def rotate_and_store(
    cache: Any,
    layer: Any,
    places: Any,
    qkv: Any,
    heads: Any,
    norm: Any,
    epsilon: Any,
    rotation: Any,
) -> None:
    """Normalise (where `norm` has scales) and rotate queries and keys in place; put keys and values into the lanes.

    `places` is int64 [rows, 4]: address of the lane, bytes of a layer, capacity, position. Keys lie in blocks of 16
    positions, [head_dim, 16], values as [position, head_dim]; with 16-bit caches two numbers that are multiplied
    together lie beside each other.
    """
    size = 2 * rotation.shape[1]
    kv_heads = (qkv.shape[1] // size - heads) // 2
    for row in prange(qkv.shape[0]):
        line = qkv[row]
        vector = np.empty(size, np.float32)
        for head in range(heads + kv_heads):
            first = head * size
            if len(norm):
                normalise(line[first : first + size], norm[head], epsilon, vector)
            else:
                vector[:] = line[first : first + size]
            for pair in range(size // 2):
                cosine, sine = rotation[row, pair, 0], rotation[row, pair, 1]
                left, right = vector[2 * pair], vector[2 * pair + 1]
                line[first + 2 * pair] = fuse(left, cosine, -(right * sine))
                line[first + 2 * pair + 1] = fuse(left, sine, right * cosine)
        head_bytes = places[row, 2] * size * cache.itemsize
        base = places[row, 0] + layer * places[row, 1]
        for head in range(kv_heads):
            key, value = (heads + head) * size, (heads + kv_heads + head) * size
            shape = (places[row, 2] * size,)
            put(
                cache,
                carray(pointer_to(cache, base + head * head_bytes), shape),
                carray(pointer_to(cache, base + (kv_heads + head) * head_bytes), shape),
                places[row, 3],
                line[key : key + size],
                line[value : value + size],
            )


def take_chances(cache: Any, scores: Any) -> Any:
    """Weights of values as products with a cache want them, made of scores."""
    raise NotImplementedError


@overload(take_chances, strict=False)
def _take_chances(cache: Any, scores: Any) -> Any:
    if cache.dtype == types.uint16:
        return lambda cache, scores: np.empty(scores.shape, np.uint16)
    return lambda cache, scores: scores


@njit(error_model="numpy")
def soften(scores: Any, chances: Any) -> Any:
    """e^(score - highest score) for each score, rounded as the chances are stored; returns their sum."""
    highest = find_highest(scores)
    for index in range(len(scores)):
        scores[index] = exp(scores[index] - highest)
    round_chances(scores, chances)
    return add_numbers(scores.ctypes.data, len(scores))


def round_chances(scores: Any, chances: Any) -> None:
    """Store chances."""
    raise NotImplementedError


@overload(round_chances, strict=False)
def _round_chances(scores: Any, chances: Any) -> Any:
    if chances.dtype == types.float32:
        return lambda scores, chances: None

    def halves(scores: Any, chances: Any) -> None:
        for index in range(len(scores)):
            chances[index] = round_bfloat16(scores[index])

    return halves


def attend(
    cache: Any,
    layer: Any,
    places: Any,
    qkv: Any,
    heads: Any,
    size: Any,
    window: Any,
    groups: Any,
    out: Any,
) -> None:
    """Mixed values of every row, [rows, heads * size]; rows groups[n] to groups[n + 1] are one sequence's, in order.

    `window` is how many positions a row sees, its own included; 0 = all.
    """
    kv_heads = (qkv.shape[1] // size - heads) // 2
    share = heads // kv_heads
    scale = ONE / np.sqrt(np.float32(size))
    step = 4 * LANES
    for part in prange((len(groups) - 1) * kv_heads):
        group, head = part // kv_heads, part % kv_heads
        start, stop = groups[group], groups[group + 1]
        head_bytes = places[start, 2] * size * cache.itemsize
        keys = places[start, 0] + layer * places[start, 1] + head * head_bytes
        values = keys + kv_heads * head_bytes
        length = places[stop - 1, 3] + 1
        first = max(0, places[start, 3] + 1 - window) // LANES * LANES if window else 0
        count = (stop - start) * share
        queries = np.empty((count, size), np.float32)
        for row in range(count):
            place = (head * share + row % share) * size
            for index in range(size):
                queries[row, index] = qkv[start + row // share, place + index] * scale
        taken, _ = take_rows(cache, queries)
        blocks = (length - first + LANES - 1) // LANES
        scores = np.empty((count, blocks * LANES), np.float32)
        block_bytes = LANES * size * cache.itemsize
        for block in range(0, blocks, 4):
            for top in range(0, count, TILE_ROWS):
                multiply_rows(
                    cache,
                    min(TILE_ROWS, count - top),
                    min(4, blocks - block),
                    taken,
                    top,
                    keys + first * size * cache.itemsize + block * block_bytes,
                    step,
                    block_bytes,
                    size * cache.itemsize // 4,
                    scores.ctypes.data + top * scores.strides[0] + block * step,
                    scores.strides[0],
                )
        chances = take_chances(cache, scores)
        totals = np.empty(count, np.float32)
        for row in range(count):
            end = places[start + row // share, 3] + 1 - first
            begin = max(0, end - window) if window else 0
            totals[row] = soften(scores[row, begin:end], chances[row, begin:end])
            chances[row, :begin] = 0
            chances[row, end:] = 0
        mixed = np.empty((TILE_ROWS, PANEL), np.float32)
        for top in range(0, count, TILE_ROWS):
            for left in range(0, size, PANEL):
                width = min(PANEL, size - left)
                multiply_rows(
                    cache,
                    min(TILE_ROWS, count - top),
                    width // LANES,
                    chances,
                    top,
                    values + (first * cache.itemsize * size) + left * 4,
                    4 * size,
                    4 * LANES,
                    (length - first + 4 // cache.itemsize - 1) * cache.itemsize // 4,
                    mixed.ctypes.data,
                    mixed.strides[0],
                )
                for row in range(top, min(top + TILE_ROWS, count)):
                    line = out[start + row // share]
                    place = (head * share + row % share) * size + left
                    part = ONE / totals[row]
                    for index in range(width):
                        line[place + index] = mixed[row - top, index] * part


def normalise_rows(rows: Any, scale: Any, epsilon: Any, out: Any) -> None:
    """Root-mean-square norm of each row."""
    for row in prange(rows.shape[0]):
        normalise(rows[row], scale, epsilon, out[row])


@contextlib.contextmanager
def one_process_at_a_time() -> Iterator[None]:
    """Wait while another process compiles a kernel."""
    with Path(__file__).open("rb") as own:
        with contextlib.suppress(OSError):  # a network file system may not lock what is only read
            fcntl.flock(own, fcntl.LOCK_EX)
        yield


def compile_kernel(kernel: Callable[..., None], parallel: bool) -> Callable[..., None]:
    """The kernel compiled at its first call, and kept on disk where there is a place for it.

    numba knows kept code by the function's name and types: the name says what else it depends on.
    """
    sources = b"".join(Path(file).read_bytes() for file in (__file__, tiles.__file__))
    name = f"{kernel.__name__}_{'parallel' if parallel else 'single'}_{hashlib.sha256(sources).hexdigest()[:8]}"
    kernel = FunctionType(kernel.__code__, kernel.__globals__, name)
    kernel.__qualname__ = name
    options: dict[str, Any] = {"parallel": parallel, "error_model": "numpy"}
    try:
        compiled = njit(cache=True, **options)(kernel)
    except RuntimeError as problem:
        logger.warning("compiled kernels cannot be cached, so each start compiles them again: %s", problem)
        return cast(Callable[..., None], njit(**options)(kernel))
    compile_types = compiled.compile

    def compile_alone(types: Any) -> Any:
        # numba numbers the files of a kernel's types: two processes would write one, and take the other's code from it.
        with one_process_at_a_time():
            return compile_types(types)

    compiled.compile = compile_alone
    return cast(Callable[..., None], compiled)


class Kernels:
    """The kernels for one thread, or for several."""

    def __init__(self, parallel: bool) -> None:
        self.parallel = parallel
        self.multiply = compile_kernel(multiply, parallel)
        self.gate = compile_kernel(gate, parallel)
        self.rotate_and_store = compile_kernel(rotate_and_store, parallel)
        self.attend = compile_kernel(attend, parallel)
        self.normalise_rows = compile_kernel(normalise_rows, parallel)

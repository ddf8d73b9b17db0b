"""Token sequences to packed rows: a group's prompt is stored once; each sequence sees only the prompt and itself."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy

from heddle.training.config import RlConfig
from heddle.training.losses import LOSSES
from heddle.training.sequences import TokenSequence, normalise


@dataclass(slots=True)
class Row:
    """One packed row, one optimizer step; every array has the row's length.

    A query sees a key that is not behind it and whose segment is its own or its own's parent.
    """

    tokens: "numpy.ndarray[Any, Any]"
    """int64."""
    positions: "numpy.ndarray[Any, Any]"
    """int64, starting again after the shared prompt."""
    segments: "numpy.ndarray[Any, Any]"
    """int64; -1 is padding."""
    parents: "numpy.ndarray[Any, Any]"
    """int64: the segment of the shared prompt, or the own one."""
    mask: "numpy.ndarray[Any, Any]"
    """bool: the token is trained."""
    logprobs: "numpy.ndarray[Any, Any]"
    """float64, NaN where unknown: of the token itself (not shifted)."""
    advantages: "numpy.ndarray[Any, Any]"
    """float64, of the token itself, normalised over the job."""
    weights: "numpy.ndarray[Any, Any]"
    """float64, of the token itself, normalised over the job."""
    sequences: int = 1
    """Distinct sequences in it."""
    lags: list[float] = field(default_factory=list)
    """For each sequence that names its version: the step that trains minus the step that sampled."""


PER_TOKEN = ("tokens", "positions", "segments", "parents", "mask", "logprobs", "advantages", "weights")
STEP = 2048
Item = TypeVar("Item")
Packed = tuple[TokenSequence, float, float]
"""A sequence with its normalised advantage and weight."""


def pack(
    sequences: Sequence[TokenSequence], settings: RlConfig, max_length: int, seed: str, policy_step: int
) -> list[Row]:
    """Rows with advantages and weights normalised over all of them, in an order derived from `seed`.

    `sequences` hold at most `max_length` tokens each, those of a group beside each other. `policy_step` is the step
    whose weights are trained; lags are counted from it. Rows are as long as their content.
    """
    if not sequences:
        return []
    capacity = row_capacity(max(len(sequence.ids) for sequence in sequences), settings, max_length)
    values = normalise(sequences, settings.advantage_balance, LOSSES[settings.loss].aggregation)
    packed = [(sequence, *pair) for sequence, pair in zip(sequences, values, strict=True)]
    rows = [_make_row(members, policy_step) for members in _fill(packed, capacity)]
    # The same order on every machine and in every version.
    draws = [hashlib.sha256(f"{seed}/{place}".encode()).digest() for place in range(len(rows))]
    return [rows[place] for place in sorted(range(len(rows)), key=draws.__getitem__)]


def row_capacity(longest: int, settings: RlConfig, max_length: int) -> int:
    """How many tokens a row may hold: `packed_sequence_length`, else the longest sequence in steps of 2048."""
    return settings.packed_sequence_length or min(math.ceil(longest / STEP) * STEP, max_length)


def _fill(sequences: Sequence[Packed], capacity: int) -> list[list[Packed]]:
    """Put sequences into rows in their order; a prompt costs only where its group begins in a row."""
    rows: list[list[Packed]] = []
    free, groups = 0, set[int]()
    for item in sequences:
        sequence = item[0]
        needed = len(sequence.ids) - (sequence.prompt_length if sequence.group in groups else 0)
        if needed > free:
            rows.append([])
            free, groups = capacity, set()
            needed = len(sequence.ids)
        rows[-1].append(item)
        groups.add(sequence.group)
        free -= needed
    return rows


def _make_row(members: Sequence[Packed], policy_step: int) -> Row:
    """Lay sequences side by side; the first of each group brings the prompt, a segment of its own."""
    parts: list[Row] = []
    prompts: dict[int, int] = {}
    segments = 0
    for sequence, advantage, weight in members:
        start = sequence.prompt_length
        if start and sequence.group not in prompts:
            prompts[sequence.group] = segments
            parts.append(_part(sequence, 0, start, segments, segments, 0.0, 0.0))
            segments += 1
        parent = prompts[sequence.group] if start else segments
        parts.append(_part(sequence, start, len(sequence.ids), segments, parent, advantage, weight))
        segments += 1
    joined = {name: numpy.concatenate([getattr(part, name) for part in parts]) for name in PER_TOKEN}
    lags = [float(policy_step - sequence.version) for sequence, *_ in members if sequence.version is not None]
    return Row(**joined, sequences=len(members), lags=lags)


def _part(
    sequence: TokenSequence, start: int, end: int, segment: int, parent: int, advantage: float, weight: float
) -> Row:
    """The arrays of one segment; what is not trained has no advantage and no weight."""
    mask = numpy.array(sequence.mask[start:end], dtype=bool)
    return Row(
        tokens=numpy.array(sequence.ids[start:end], dtype=numpy.int64),
        positions=numpy.arange(start, end, dtype=numpy.int64),
        segments=numpy.full(end - start, segment, dtype=numpy.int64),
        parents=numpy.full(end - start, parent, dtype=numpy.int64),
        mask=mask,
        logprobs=numpy.array(sequence.logprobs[start:end], dtype=numpy.float64),
        advantages=numpy.where(mask, advantage, 0.0),
        weights=numpy.where(mask, weight, 0.0),
    )


def gather(items: Sequence[Item], length: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Items in groups of at most so many tokens, or of one item."""
    members: list[Item] = []
    for item in items:
        if members and sum(map(length, members)) + length(item) > most:
            yield members
            members = []
        members.append(item)
    if members:
        yield members

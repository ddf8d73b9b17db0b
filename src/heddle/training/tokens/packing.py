"""Token sequences to rows: a group's prompt is stored once, and each sequence sees only the prompt and itself."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy

from heddle.training.base import Row, TokenSequence
from heddle.training.config import RlConfig
from heddle.training.tokens.advantages import normalised

STEP = 2048
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
    values = normalised(sequences, settings.advantage_balance)
    packed = [(sequence, *pair) for sequence, pair in zip(sequences, values, strict=True)]
    rows = [_row(members, policy_step) for members in _fill(packed, capacity)]
    return [rows[place] for place in sorted(range(len(rows)), key=lambda place: _draw(seed, place))]


def row_capacity(longest: int, settings: RlConfig, max_length: int) -> int:
    """How many tokens a row may hold: `packed_sequence_length`, else the longest sequence in steps of 2048."""
    return settings.packed_sequence_length or min(math.ceil(longest / STEP) * STEP, max_length)


def _fill(sequences: Sequence[Packed], capacity: int) -> list[list[Packed]]:
    """Put sequences into rows in their order; a prompt costs only where its group begins in a row."""
    rows: list[list[Packed]] = []
    room, groups = 0, set[int]()
    for item in sequences:
        sequence = item[0]
        needed = len(sequence.ids) - (sequence.prompt_length if sequence.group in groups else 0)
        if needed > room:
            rows.append([])
            room, groups = capacity, set()
            needed = len(sequence.ids)
        rows[-1].append(item)
        groups.add(sequence.group)
        room -= needed
    return rows


def _row(members: Sequence[Packed], policy_step: int) -> Row:
    """Lay sequences side by side; the first of each group brings the prompt, a segment of its own."""
    parts: list[dict[str, Any]] = []
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
    joined = {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}
    lags = [float(policy_step - sequence.version) for sequence, *_ in members if sequence.version is not None]
    return Row(**joined, sequences=len(members), lags=lags)


def _part(
    sequence: TokenSequence, start: int, end: int, segment: int, parent: int, advantage: float, weight: float
) -> dict[str, Any]:
    """The arrays of one segment; what is not trained has no advantage and no weight."""
    mask = numpy.array(sequence.mask[start:end], dtype=bool)
    return {
        "tokens": numpy.array(sequence.ids[start:end], dtype=numpy.int64),
        "positions": numpy.arange(start, end, dtype=numpy.int64),
        "segments": numpy.full(end - start, segment, dtype=numpy.int64),
        "parents": numpy.full(end - start, parent, dtype=numpy.int64),
        "mask": mask,
        "logprobs": numpy.array(sequence.logprobs[start:end], dtype=numpy.float64),
        "advantages": numpy.where(mask, advantage, 0.0),
        "weights": numpy.where(mask, weight, 0.0),
    }


def _draw(seed: str, place: int) -> bytes:
    """A number that orders rows: the same on every machine and in every version."""
    return hashlib.sha256(f"{seed}/{place}".encode()).digest()

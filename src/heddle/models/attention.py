"""Attention of one step: rotary positions, where keys and values go, masks, and the products."""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from heddle.models.cache import SlabLane
from heddle.models.folder import Rope
from heddle.models.interfaces import Batch, Span

FIRST_POSITIONS = 1024


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position for each pair, float32 [head_dim / 2], and the factor on cosine and sine.

    `dynamic` is the default up to the length of the config, and no sequence is longer.
    """
    plain: Tensor = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    if rope.type == "linear":
        return plain / rope.factor, 1.0
    if rope.type == "llama3":
        # Long waves are slowed by the factor, short ones kept, those between blended.
        low, high = rope.low_freq_factor, rope.high_freq_factor
        share: Tensor = ((rope.original_positions * plain / (2 * math.pi) - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - share) * plain / rope.factor + share * plain, 1.0
    if rope.type == "yarn":
        return blend_by_rotations(plain, rope, head_dim), yarn_attention_factor(rope)
    return plain, 1.0


def blend_by_rotations(plain: Tensor, rope: Rope, head_dim: int) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs with few rotations over the original length are slowed by the factor."""

    def dimension(rotations: float) -> float:
        return head_dim * math.log(rope.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast or 32), dimension(rope.beta_slow or 1)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (max(high - low, 0.001))
    slowed = ramp.clamp(0.0, 1.0)
    return plain / rope.factor * slowed + plain * (1 - slowed)


def yarn_attention_factor(rope: Rope) -> float:
    """Given, or from the paper's formula."""

    def scale(factor: float, weight: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.attention_factor is not None:
        return float(rope.attention_factor)
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.factor, rope.mscale) / scale(rope.factor, rope.mscale_all_dim)
    return scale(rope.factor)


def interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder dimension 0 (whole heads): (first half, second half) of each head becomes pairs."""
    rest = rows.shape[1:]
    return rows.reshape(-1, 2, head_dim // 2, *rest).transpose(1, 2).reshape(-1, *rest).contiguous()


class RotaryTable:
    """Unit complex numbers (times the attention factor) of each position and pair; grows with the longest sequence."""

    def __init__(self, rope: Rope, head_dim: int, max_positions: int, device: torch.device) -> None:
        self.radians, self.factor = frequencies(rope, head_dim)
        self.max_positions = max_positions
        self.device = device
        self.table = self.compute(min(FIRST_POSITIONS, max_positions))

    def compute(self, positions: int) -> Tensor:
        """The table for positions below a count, complex64 [positions, head_dim / 2]."""
        angles = torch.outer(torch.arange(positions).float(), self.radians)
        return torch.complex(angles.cos() * self.factor, angles.sin() * self.factor).to(self.device)

    def at(self, positions: Tensor, limit: int) -> Tensor:
        """Rows for positions, all below `limit`: complex64 [rows, 1, head_dim / 2]."""
        if limit > self.table.shape[0]:
            self.table = self.compute(min(max(limit, 2 * self.table.shape[0]), max(limit, self.max_positions)))
        return self.table.index_select(0, positions).unsqueeze_(1)


PART_ROWS = 128
"""Queries of one sequence in one product."""
MERGED_GAP = 2
"""Lanes that do not take part may be computed along, when that keeps two runs of lanes in one product."""


@dataclass(slots=True)
class PrefillPart:
    """At most 128 consecutive rows of one sequence; the tensors are views of its lane, one of each layer."""

    start: int
    stop: int
    targets: tuple[Tensor, ...]
    """Where new keys and values go: [rows, 2 * kv_heads, head_dim]."""
    keys: tuple[Tensor, ...]
    """All keys up to the last row, the same for all heads of a group: [kv_heads, group, keys, head_dim]."""
    values: tuple[Tensor, ...]
    masks: dict[int | None, Tensor | None]
    """For each window: [rows, keys] added to the scores; None = plain causal from position 0."""


@dataclass(slots=True)
class DecodePart:
    """One row of each of the lanes that lie beside each other in a slab; the tensors are views, one of each layer."""

    start: int
    stop: int
    layers: list[Tensor]
    """The slab's heads and positions as rows of head_dim."""
    targets: Tensor
    """Rows of it that the new keys and values go to: int64 [rows * 2 * kv_heads]."""
    keys: tuple[Tensor, ...]
    """[lanes, kv_heads, longest length, head_dim]."""
    values: tuple[Tensor, ...]
    spread: Tensor | None
    """For each lane its row in the part (any, for lanes that stand still); None = lanes are rows."""
    gather: Tensor | None
    """For each row of the part its lane."""
    masks: dict[int | None, Tensor | None]
    """For each window: [lanes, 1, 1, keys] added to the scores; None = all keys."""


@dataclass(slots=True)
class Step:
    """A batch in the order in which it is computed: prefill spans, then decodes by slab and row."""

    token_ids: Tensor
    positions: Tensor
    limit: int
    """Above the last position."""
    prefills: list[PrefillPart]
    decodes: list[DecodePart]
    logit_rows: Tensor | None
    """Rows whose logits are wanted, in the order asked for; None = all, in order."""
    adapters: list[str | None]
    """Of each span, in computed order, with `counts` rows."""
    counts: list[int]


class Plan(NamedTuple):
    """What planning must know about a model."""

    heads: int
    kv_heads: int
    windows: tuple[int | None, ...]
    dtype: torch.dtype
    device: torch.device


def plan_step(batch: Batch, plan: Plan) -> Step:
    """Order the rows, find where keys and values go, and make the masks."""
    prefills, row = [], 0
    positions: list[int] = []
    for span in batch.prefills:
        # Short parts: the product computes every key of a part, masked or not.
        for first in range(0, span.count, PART_ROWS):
            part = Span(span.lane, span.first_position + first, min(PART_ROWS, span.count - first), span.adapter)
            prefills.append(prefill_part(part, row + first, plan))
        positions.extend(range(span.first_position, span.first_position + span.count))
        row += span.count
    order = sorted(range(len(batch.decodes)), key=lambda place: decode_key(batch.decodes[place]))
    spans = [batch.decodes[place] for place in order]
    positions.extend(span.first_position for span in spans)
    decodes = [decode_part(run, row + first, plan) for first, run in runs_of_lanes(spans)]
    moved = any(place != index for index, place in enumerate(order))
    token_ids, logit_rows = batch.token_ids, list(batch.logit_rows)
    if moved:
        sources = list(range(row)) + [row + place for place in order]
        token_ids = token_ids[torch.tensor(sources, device=token_ids.device)]
        places = {source: place for place, source in enumerate(sources)}
        logit_rows = [places[wanted] for wanted in logit_rows]
    every = len(logit_rows) == len(positions) and not moved
    return Step(
        token_ids=token_ids.to(plan.device),
        positions=torch.tensor(positions, device=plan.device),
        limit=max(positions) + 1,
        prefills=prefills,
        decodes=decodes,
        logit_rows=None if every else torch.tensor(logit_rows, dtype=torch.int64, device=plan.device),
        adapters=[span.adapter for span in batch.prefills] + [span.adapter for span in spans],
        counts=[span.count for span in batch.prefills] + [1] * len(spans),
    )


def decode_key(span: Span) -> tuple[int, int, int]:
    """Lanes of a slab beside each other, in the order of their rows."""
    lane = cast(SlabLane, span.lane)
    return lane.capacity, id(lane.slab), lane.row


def runs_of_lanes(spans: list[Span]) -> list[tuple[int, list[Span]]]:
    """Split sorted decode spans where the slab changes or too many lanes in a row stand still."""
    runs: list[tuple[int, list[Span]]] = []
    before: SlabLane | None = None
    for index, span in enumerate(spans):
        lane = cast(SlabLane, span.lane)
        if before is None or lane.slab is not before.slab or lane.row - before.row > MERGED_GAP + 1:
            runs.append((index, []))
        runs[-1][1].append(span)
        before = lane
    return runs


def prefill_part(span: Span, start: int, plan: Plan) -> PrefillPart:
    """One part of a span, with its masks and views."""
    heads, kv_heads, windows, dtype, device = plan
    lane = cast(SlabLane, span.lane)
    last = span.first_position + span.count
    lane.used = max(lane.used, last)
    masks = {window: causal_mask(span.first_position, last, window, dtype, device) for window in windows}
    row = lane.slab.data[:, lane.row]
    grouped = row[:, :, None, :last].expand(-1, -1, heads // kv_heads, -1, -1)
    return PrefillPart(
        start=start,
        stop=start + span.count,
        targets=row[:, :, span.first_position : last].transpose(1, 2).unbind(0),
        keys=grouped[:, :kv_heads].unbind(0),
        values=grouped[:, kv_heads:].unbind(0),
        masks=masks,
    )


def causal_mask(first: int, last: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """[queries, keys], 0 where the query at a position from `first` on may look and -infinity elsewhere."""
    narrow = window if window is not None and last > window else 0
    if first == 0 and not narrow:
        return None
    queries = torch.arange(first, last, device=device)[:, None]
    keys = torch.arange(last, device=device)
    hidden = keys > queries
    if narrow:
        hidden |= keys <= queries - narrow
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, float("-inf"))


def decode_part(run: list[Span], start: int, plan: Plan) -> DecodePart:
    """One run of lanes, with its masks, views and the places of the new keys and values."""
    _, kv_heads, windows, dtype, device = plan
    lanes = [cast(SlabLane, span.lane) for span in run]
    slab, first_row, last_row = lanes[0].slab, lanes[0].row, lanes[-1].row + 1
    lengths = [span.first_position + 1 for span in run]
    for lane, length in zip(lanes, lengths, strict=True):
        lane.used = max(lane.used, length)
    spread = gather = None
    ends = lengths
    if last_row - first_row != len(run):
        rows = [lane.row - first_row for lane in lanes]
        places = {row: place for place, row in enumerate(rows)}
        all_places = [places.get(row, 0) for row in range(last_row - first_row)]
        spread = torch.tensor(all_places, device=device)
        gather = torch.tensor(rows, device=device)
        ends = [lengths[place] for place in all_places]
    both = 2 * kv_heads
    bases = [(lane.row * both) * slab.capacity + span.first_position for lane, span in zip(lanes, run, strict=True)]
    steps = torch.arange(0, both * slab.capacity, slab.capacity, device=device)
    targets = (torch.tensor(bases, device=device)[:, None] + steps).view(-1)
    keys = max(lengths)
    masks = {window: length_mask(ends, keys, window, dtype, device) for window in windows}
    held = slab.data[:, first_row:last_row, :, :keys]
    return DecodePart(
        start=start,
        stop=start + len(run),
        layers=slab.layers,
        targets=targets,
        keys=held[:, :, :kv_heads].unbind(0),
        values=held[:, :, kv_heads:].unbind(0),
        spread=spread,
        gather=gather,
        masks=masks,
    )


def length_mask(
    ends: list[int], keys: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """[lanes, 1, 1, keys], 0 for the keys of each lane (the last `window` of them) and -infinity elsewhere."""
    narrow = window if window is not None and keys > window else 0
    if not narrow and min(ends) == keys:
        return None
    lengths = torch.tensor(ends, device=device)[:, None]
    places = torch.arange(keys, device=device)
    hidden = places >= lengths
    if narrow:
        hidden |= places < lengths - narrow
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None]


def store(new: Tensor, step: Step, layer: int) -> None:
    """Put new keys and values [rows, 2 * kv_heads, head_dim], keys before values, into the lanes."""
    for prefill in step.prefills:
        prefill.targets[layer].copy_(new[prefill.start : prefill.stop])
    for decode in step.decodes:
        rows = new[decode.start : decode.stop].flatten(0, 1)
        decode.layers[layer].index_copy_(0, decode.targets, rows)


def attend(queries: Tensor, step: Step, layer: int, window: int | None) -> Tensor:
    """Mixed values of every row, [rows, heads * head_dim]; `queries` are [rows, kv_heads, group, head_dim]."""
    results = [attend_span(queries[part.start : part.stop], part, layer, window) for part in step.prefills]
    results += [attend_lanes(queries[part.start : part.stop], part, layer, window) for part in step.decodes]
    return results[0] if len(results) == 1 else torch.cat(results)


def attend_span(queries: Tensor, part: PrefillPart, layer: int, window: int | None) -> Tensor:
    """Queries of some consecutive positions of one lane."""
    mask = part.masks[window]
    result = scaled_dot_product_attention(
        queries.permute(1, 2, 0, 3), part.keys[layer], part.values[layer], attn_mask=mask, is_causal=mask is None
    )
    return result.permute(2, 0, 1, 3).reshape(queries.shape[0], -1)


def attend_lanes(queries: Tensor, part: DecodePart, layer: int, window: int | None) -> Tensor:
    """One query of each lane of a run."""
    if part.spread is not None:
        queries = queries.index_select(0, part.spread)
    result = scaled_dot_product_attention(
        queries, part.keys[layer], part.values[layer], attn_mask=part.masks[window]
    ).flatten(1)
    return result if part.gather is None else result.index_select(0, part.gather)

"""Attention inside a packed row: every token sees its own segment and its segment's parent, and nothing behind itself.

No mask over the whole row is made. The row is cut into blocks of queries with the keys that any of them may see; small
blocks are computed beside each other, pad_group, where little is wasted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

QUERIES = 512
"""Of one masked block, at most."""
GROUP_CELLS = 2**20
"""Query-key pairs of blocks that are computed together, at most."""
WASTE = 1.5
"""Padded pairs over real ones that are still worth one call less."""
SIBLING_WASTE = 1.2
"""Keys of a block of siblings over those that one of them sees that are still worth reading the parent's once."""
SMALL_CELLS = 2**14
"""Below, a call costs more than its pairs."""

Places = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Segments:
    """Where each token of a row belongs; segments are contiguous and stand behind their parents."""

    numbers: Places
    parents: Places
    positions: Places

    def runs(self) -> list[tuple[int, int]]:
        """Start and end of each segment, in order."""
        edges = np.flatnonzero(np.diff(self.numbers)) + 1
        bounds = [0, *edges.tolist(), len(self.numbers)]
        return list(itertools.pairwise(bounds))


@dataclass(frozen=True, slots=True)
class Block:
    """Queries and the keys that any of them sees, as places in the row; `causal` ones are equal but for a head start.

    A causal block needs no mask: its queries are the last of its keys.
    """

    queries: Places
    keys: Places
    causal: bool

    @property
    def cells(self) -> int:
        """Pairs to compute."""
        return len(self.keys) ** 2 if self.causal else len(self.queries) * len(self.keys)


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks computed in one call: places are [blocks, longest], padded with place 0."""

    queries: Tensor
    keys: Tensor
    mask: Tensor | None
    """bool [blocks, 1, queries, keys]; None = causal."""
    results: Tensor
    """Places of the wanted results in the flattened [blocks * queries]."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All groups of a row for one window, and where each token's result is in their results laid end to end."""

    groups: list[Group]
    order: Tensor


class SegmentMixer:
    """A mixer (`heddle.models.decoder.Mixer`) for one packed row."""

    def __init__(self, segments: Segments, windows: Sequence[int | None], device: torch.device) -> None:
        self.plans = {window: make_plan(segments, window, device) for window in dict.fromkeys(windows)}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Mixed values [tokens, heads, head_dim] of a row."""
        chosen = self.plans[window]
        shape = query.shape
        flat = [part.flatten(1) for part in (query, key, value)]
        results = []
        for group in chosen.groups:
            queries, keys, values = (
                functional.embedding(places, part).view(*places.shape, -1, shape[-1]).transpose(1, 2)
                for places, part in zip((group.queries, group.keys, group.keys), flat, strict=True)
            )
            mixed = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=group.mask, is_causal=group.mask is None, enable_gqa=True
            )
            rows = mixed.transpose(1, 2).reshape(-1, flat[0].shape[1])
            results.append(functional.embedding(group.results, rows))
        joined = results[0] if len(results) == 1 else torch.cat(results)
        return functional.embedding(chosen.order, joined).view(shape)


def make_plan(segments: Segments, window: int | None, device: torch.device) -> Plan:
    """Cut a row into blocks and put blocks of like size together."""
    groups = group_blocks(make_blocks(segments, window))
    done = np.concatenate([block.queries for members in groups for block in members])
    order = np.empty_like(done)
    order[done] = np.arange(len(done))
    return Plan(
        [pad_group(members, segments, window, device) for members in groups], torch.from_numpy(order).to(device)
    )


def make_blocks(segments: Segments, window: int | None) -> list[Block]:
    """Every token is a query of exactly one block."""
    runs = segments.runs()
    extent = {int(segments.numbers[start]): (start, end) for start, end in runs}
    found: list[Block] = []
    waiting: list[tuple[int, int]] = []
    parent = -1
    for start, end in runs:
        number, own_parent = int(segments.numbers[start]), int(segments.parents[start])
        queries, shared = end - (waiting[0][0] if waiting else start), extent[own_parent][1] - extent[own_parent][0]
        is_wasteful = shared + queries > SIBLING_WASTE * (shared + end - start)
        if waiting and (own_parent != parent or queries > QUERIES or is_wasteful):
            found.append(make_sibling_block(waiting, extent[parent]))
            waiting = []
        if own_parent == number:
            found.extend(make_own_blocks(np.arange(start, end), np.arange(0), segments, window))
        elif end - start > QUERIES:
            found.extend(make_own_blocks(np.arange(start, end), np.arange(*extent[own_parent]), segments, window))
        else:
            waiting.append((start, end))
            parent = own_parent
    if waiting:
        found.append(make_sibling_block(waiting, extent[parent]))
    return found


def make_sibling_block(runs: list[tuple[int, int]], parent: tuple[int, int]) -> Block:
    """Short segments of one parent, whose keys are read once for all of them."""
    queries = np.concatenate([np.arange(start, end) for start, end in runs])
    return Block(queries, np.concatenate([np.arange(*parent), queries]), causal=False)


def make_own_blocks(own: Places, before: Places, segments: Segments, window: int | None) -> list[Block]:
    """One segment behind what it sees of its parent: in one causal block where that is cheap, else in pieces."""
    keys = np.concatenate([before, own])
    narrow = window is not None and segments.positions[own[-1]] >= window
    if not narrow and len(before) <= 2 * len(own):
        return [Block(own, keys, causal=True)]
    pieces = []
    for first in range(0, len(own), QUERIES):
        queries = own[first : first + QUERIES]
        seen = keys[: len(before) + first + len(queries)]
        if window is not None:
            seen = seen[segments.positions[seen] > segments.positions[queries[0]] - window]
        pieces.append(Block(queries, seen, causal=False))
    return pieces


def group_blocks(found: list[Block]) -> list[list[Block]]:
    """Blocks of one kind and like size, so that padding them wastes little."""
    ordered = sorted(found, key=lambda block: (block.causal, len(block.keys), len(block.queries)))
    groups: list[list[Block]] = []
    for block in ordered:
        if groups and fits_group(groups[-1], block):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def fits_group(group: list[Block], block: Block) -> bool:
    """Whether one more block makes the padded whole neither too wasteful nor too large."""
    members = [*group, block]
    if group[0].causal != block.causal:
        return False
    queries = max(len(member.queries) for member in members)
    keys = max(len(member.keys) for member in members)
    padded_cells = len(members) * keys * (keys if block.causal else queries)
    real = sum(member.cells for member in members)
    return padded_cells <= SMALL_CELLS or padded_cells <= min(GROUP_CELLS, WASTE * real)


def pad_group(members: list[Block], segments: Segments, window: int | None, device: torch.device) -> Group:
    """Places and mask of blocks that are computed together."""
    causal = members[0].causal
    asked = [block.keys if causal else block.queries for block in members]
    queries, keys = stack_rows(asked), stack_rows([block.keys for block in members])
    mask = None if causal else make_mask(queries, keys, [len(block.keys) for block in members], segments, window)
    width = queries.shape[1]
    wanted = [
        np.arange(len(rows) - len(block.queries), len(rows)) + index * width
        for index, (block, rows) in enumerate(zip(members, asked, strict=True))
    ]
    return Group(
        queries=torch.from_numpy(queries).to(device),
        keys=torch.from_numpy(keys).to(device),
        mask=None if mask is None else torch.from_numpy(mask[:, None]).to(device),
        results=torch.from_numpy(np.concatenate(wanted)).to(device),
    )


def stack_rows(rows: list[Places]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Rows under each other, padded with 0."""
    places = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.int64)
    for index, row in enumerate(rows):
        places[index, : len(row)] = row
    return places


def make_mask(
    queries: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    keys: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    lengths: list[int],
    segments: Segments,
    window: int | None,
) -> np.ndarray[tuple[int, int, int], np.dtype[np.bool_]]:
    """True where a query sees a key; padded queries see the first key, as one that sees none would be no number."""
    numbers, parents, positions = segments.numbers, segments.parents, segments.positions
    own = numbers[queries][:, :, None] == numbers[keys][:, None]
    shared = parents[queries][:, :, None] == numbers[keys][:, None]
    mask = (own | shared) & (keys[:, None] <= queries[:, :, None])
    if window is not None:
        mask &= positions[keys][:, None] > positions[queries][:, :, None] - window
    mask &= (np.arange(keys.shape[1]) < np.array(lengths)[:, None])[:, None]
    mask[:, :, 0] |= ~mask.any(axis=2)
    result: np.ndarray[tuple[int, int, int], np.dtype[np.bool_]] = mask
    return result

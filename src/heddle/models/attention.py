"""Attention of one layer over the lanes of a step: queries of a group share their key head without a copy."""

import torch
from torch import Tensor
from torch.nn import functional

from heddle.models.steps import DecodePart, PrefillPart, Step


def attend(queries: Tensor, new: Tensor, step: Step, layer: int, window: int | None, kv_heads: int) -> Tensor:
    """Store new keys and values and mix the values: [rows, heads, head_dim] like `queries`.

    `new` is [rows, 2 * kv_heads, head_dim], keys before values.
    """
    mixed = torch.empty_like(queries, memory_format=torch.contiguous_format)
    for prefill in step.prefills:
        store_span(new[prefill.start : prefill.stop], prefill, layer)
        attend_span(queries, mixed, prefill, layer, window, kv_heads)
    for decode in step.decodes:
        decode.slab.flat[layer].index_copy_(0, decode.targets, new[decode.start : decode.stop].flatten(0, 1))
        attend_lanes(queries, mixed, decode, layer, window, kv_heads)
    return mixed


def store_span(new: Tensor, part: PrefillPart, layer: int) -> None:
    """Copy the rows of a span into its lane."""
    lane = part.slab.layers[layer][part.row]
    lane[:, part.first_position : part.last_position].copy_(new.transpose(0, 1))


def attend_span(
    queries: Tensor, mixed: Tensor, part: PrefillPart, layer: int, window: int | None, kv_heads: int
) -> None:
    """Queries of consecutive positions of one lane."""
    count, head_dim = part.stop - part.start, queries.shape[-1]
    group = queries.shape[1] // kv_heads
    mask = part.masks[window]
    grouped = (count, kv_heads, group, head_dim)
    query = queries[part.start : part.stop].view(grouped).permute(1, 2, 0, 3)
    key = part.slab.keys[layer][part.row, :, : part.last_position].unsqueeze(1).expand(-1, group, -1, -1)
    value = part.slab.values[layer][part.row, :, : part.last_position].unsqueeze(1).expand(-1, group, -1, -1)
    result = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    mixed[part.start : part.stop].view(grouped).permute(1, 2, 0, 3).copy_(result)


def attend_lanes(
    queries: Tensor, mixed: Tensor, part: DecodePart, layer: int, window: int | None, kv_heads: int
) -> None:
    """One query of each lane of a run."""
    query = queries[part.start : part.stop]
    if part.spread is not None:
        query = query.index_select(0, part.spread)
    grouped = (query.shape[0], kv_heads, -1, query.shape[-1])
    result = functional.scaled_dot_product_attention(
        query.view(grouped),
        part.slab.keys[layer][part.first_row : part.last_row, :, : part.keys],
        part.slab.values[layer][part.first_row : part.last_row, :, : part.keys],
        attn_mask=part.masks[window],
    )
    if part.gather is not None:
        result = result.index_select(0, part.gather)
    mixed[part.start : part.stop].view(result.shape).copy_(result)

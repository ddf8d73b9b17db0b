"""Attention of one layer over the lanes of a step: queries of a group share their key head without a copy."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from heddle.models.steps import DecodePart, PrefillPart, Step


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

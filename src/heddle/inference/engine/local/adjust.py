"""What changes logits before a token is chosen: allowed ids, bad words, minimum length, bias, penalties, grammars.

Every function works in place on float32 [rows, vocabulary], on the given rows only, and keeps the contract's order.
"""

from collections.abc import Sequence as Rows

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.inference.engine.local.counts import TokenCounts
from heddle.inference.engine.local.sequence import Sequence

NEVER = float("-inf")


def keep_allowed(logits: Tensor, row: int, allowed: Tensor) -> None:
    """Forbid all but the allowed ids (int64 [n]) in one row."""
    kept = logits[row, allowed]
    logits[row].fill_(NEVER)
    logits[row, allowed] = kept


def forbidden_now(sequence: Sequence, eos: Rows[int]) -> list[int]:
    """Last tokens of bad words whose start was just generated, and ends before the minimum length."""
    sampling = sequence.request.sampling
    output = sequence.output_count
    tokens = []
    for word in sampling.bad_words:
        start = len(word) - 1
        if start <= output and (not start or tuple(sequence.tokens[-start:]) == word[:-1]):
            tokens.append(word[-1])
    if output < sampling.min_tokens:
        tokens += [*eos, *sampling.stop_token_ids]
    return tokens


def forbid(logits: Tensor, tokens: list[tuple[int, list[int]]]) -> None:
    """Forbid tokens of rows, given as (row, tokens)."""
    width = logits.shape[1]
    flat = [row * width + token for row, several in tokens for token in several]
    if flat:
        logits.view(-1)[torch.tensor(flat, device=logits.device)] = NEVER


def penalise(logits: Tensor, rows: Rows[tuple[int, TokenCounts]]) -> None:
    """Repetition penalty on tokens of prompt and output, then frequency and presence penalty on those of the output."""
    sizes = [len(counts.ids) for _, counts in rows]
    if not any(sizes):
        return
    width = logits.shape[1]
    places = np.concatenate([counts.ids + row * width for row, counts in rows])
    times = np.concatenate([counts.counts for _, counts in rows])
    factors = np.repeat([counts.repetition for _, counts in rows], sizes).astype(np.float32)
    lowered = np.repeat([counts.frequency for _, counts in rows], sizes) * times
    lowered += np.repeat([counts.presence for _, counts in rows], sizes) * (times > 0)
    flat, index = logits.view(-1), torch.from_numpy(places).to(logits.device)
    factor = torch.from_numpy(factors).to(logits.device)
    values = flat[index]
    values = torch.where(values > 0, values / factor, values * factor)
    flat[index] = values - torch.from_numpy(lowered.astype(np.float32)).to(logits.device)


def mask_rows(logits: Tensor, rows: list[int], bits: NDArray[np.int32]) -> None:
    """Forbid tokens whose bit is not set: int32 [rows, words], the lowest bit of a word first."""
    width = logits.shape[1]
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little", count=width)
    forbidden = torch.from_numpy(allowed == 0).to(logits.device)
    for row, mask in zip(rows, forbidden, strict=True):
        logits[row].masked_fill_(mask, NEVER)

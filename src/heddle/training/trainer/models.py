"""Base models as training needs them: logprobs with a gradient, for any folder that the engine loads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from heddle.models.config import NotNative
from heddle.models.decoder import Decoder
from heddle.models.fallback import load_fallback
from heddle.models.load import choose_device, choose_dtype
from heddle.models.memory import available_bytes, check_fits
from heddle.models.weights import Weights
from heddle.training.trainer.attention import SegmentMixer
from heddle.training.trainer.layout import Layout
from heddle.training.trainer.ranks import spread_layers

RECOMPUTE_SHARE = 0.3
"""Of the free memory: when what a row keeps for its gradient would take more, layers are computed twice."""
ACTIVATIONS = 8
"""Numbers of the stream's width, and of the inner width, that a layer keeps for each token; about."""


class TrainedModel(Protocol):
    """A base model with linears that take changes."""

    @property
    def module(self) -> nn.Module:
        """All of it."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def score(self, layout: Layout, chunk: int) -> tuple[Tensor, Tensor]:
        """Logprobs (with a gradient) and entropies (without) of the trained tokens, float32 [trained].

        `chunk` is for how many tokens the logits are in memory at once.
        """
        ...


def load_trained(folder: Path, device: str, dtype: str, spread: bool = False) -> TrainedModel:
    """Read a model folder as the engine reads it; raises ModelError.

    `spread` shares the layers of an own decoder among the ranks; each must have room for the whole while it loads.
    """
    place = choose_device(device)
    with Weights(folder) as weights:
        kind = choose_dtype(dtype, weights.parameters())
        check_fits(str(folder), weights.parameters() * kind.itemsize, place)
    try:
        decoder = Decoder.load(folder, kind, place).requires_grad_(False)
        if spread:
            spread_layers(decoder.model.layers, place)
        return NativeTrained(decoder)
    except NotNative as reason:
        return FallbackTrained(load_fallback(folder, str(reason), kind, place).model, place)


class NativeTrained:
    """The own decoder: prompts that sequences share are computed once."""

    def __init__(self, decoder: Decoder) -> None:
        self.module: Decoder = decoder
        self.device = decoder.lm_head.weight.device

    def score(self, layout: Layout, chunk: int) -> tuple[Tensor, Tensor]:
        """See `TrainedModel`."""
        decoder, config = self.module, self.module.config
        widths = config.hidden_size + config.intermediate_size + config.heads * config.head_dim
        kept = layout.length * config.layers * widths * ACTIVATIONS * decoder.lm_head.weight.dtype.itemsize
        free = available_bytes(self.device)
        decoder.recompute = free is not None and kept > RECOMPUTE_SHARE * free
        positions = torch.from_numpy(layout.segments.positions).to(self.device)
        mixer = SegmentMixer(layout.segments, config.windows, self.device)
        hidden = decoder.hidden(layout.tokens, positions, mixer, layout.predictors)
        parts = []
        for rows, targets in zip(torch.split(hidden, chunk), torch.split(layout.targets, chunk), strict=True):
            if torch.is_grad_enabled() and layout.trained > chunk:
                parts.append(checkpoint(self.judge, rows, targets, use_reentrant=False))
            else:
                parts.append(self.judge(rows, targets))
        return join(parts, self.device)

    def judge(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of tokens after hidden states."""
        return judge(self.module.lm_head(rows), targets)


class FallbackTrained:
    """A model of `transformers`: each sequence is computed in full, some beside each other."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module
        self.device = device

    def score(self, layout: Layout, chunk: int) -> tuple[Tensor, Tensor]:
        """See `TrainedModel`; `chunk` tokens, or one sequence, are computed at once."""
        places, parts = [], []
        for batch in batches(unrolled(layout), chunk):
            tokens = pad_sequence([layout.tokens[rows] for rows, _ in batch], batch_first=True)
            lengths = torch.tensor([len(rows) for rows, _ in batch], device=self.device)
            attended = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
            logits: Tensor = self.module(input_ids=tokens, attention_mask=attended.long(), use_cache=False).logits
            chosen = [(index, place) for index, (_, wanted) in enumerate(batch) for place, _ in wanted]
            rows, columns = (torch.tensor(values, device=self.device) for values in zip(*chosen, strict=True))
            entries = torch.tensor([entry for _, wanted in batch for _, entry in wanted], device=self.device)
            parts.append(judge(logits[rows, columns], layout.targets[entries]))
            places.append(entries)
        logprobs, entropies = join(parts, self.device)
        if not places:
            return logprobs, entropies
        order = torch.argsort(torch.cat(places))
        return logprobs[order], entropies[order]


def judge(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logprobs of targets, and the entropies of the distributions that they were drawn from."""
    scores = logits.float().log_softmax(-1)
    logprobs = scores.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropies = -(scores.exp() * scores).sum(-1)
    return logprobs, entropies


def join(parts: list[tuple[Tensor, Tensor]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Chunks one after the other."""
    if not parts:
        return torch.zeros(0, device=device), torch.zeros(0, device=device)
    if len(parts) == 1:
        return parts[0]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


Sequence = tuple[Tensor, list[tuple[int, int]]]
"""Places of its tokens in the row; and for each trained one where it is predicted in them, and its entry."""


def unrolled(layout: Layout) -> Iterator[Sequence]:
    """Every segment behind its parent, as a sequence of its own; those with trained tokens."""
    segments = layout.segments
    runs = segments.runs()
    extent = {int(segments.numbers[start]): (start, end) for start, end in runs}
    owners = layout.known.segments.tolist()
    predictors = layout.predictors.tolist()
    entries: dict[int, list[int]] = {}
    for entry, owner in enumerate(owners):
        entries.setdefault(int(owner), []).append(entry)
    for start, end in runs:
        number, parent = int(segments.numbers[start]), int(segments.parents[start])
        if number not in entries:
            continue
        shared = np.arange(*extent[parent]) if parent != number else np.arange(0)
        places = np.concatenate([shared, np.arange(start, end)])
        column = {int(place): index for index, place in enumerate(places)}
        wanted = [(column[predictors[entry]], entry) for entry in entries[number]]
        yield torch.from_numpy(places).to(layout.device), wanted


def batches(sequences: Iterator[Sequence], tokens: int) -> Iterator[list[Sequence]]:
    """Sequences of like length beside each other, at most so many padded tokens, or one sequence."""
    batch: list[Sequence] = []
    for sequence in sorted(sequences, key=lambda sequence: len(sequence[0])):
        if batch and (len(batch) + 1) * len(sequence[0]) > tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch

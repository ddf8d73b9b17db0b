"""Base models as training needs them: logprobs with a gradient, for any folder that the engine loads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from heddle.models.decoder import Decoder
from heddle.models.fallback import load_fallback
from heddle.models.folder import NotNative, Weights
from heddle.models.interfaces import CausalModel, ModelError
from heddle.models.load import available_bytes, check_fits, choose_device, choose_dtype, load_model
from heddle.models.scoring import KnownSequence, TokenScorer
from heddle.training.trainer.attention import SegmentMixer, Segments
from heddle.training.trainer.loss import Tokens
from heddle.training.trainer.packing import Row
from heddle.training.trainer.ranks import spread_layers


@dataclass(slots=True)
class Layout:
    """One row, without its padding; `predictors` and below have one entry for each trained token."""

    tokens: Tensor
    """int64 [length]."""
    segments: Segments
    predictors: Tensor
    """int64: the place whose output predicts the token."""
    targets: Tensor
    """int64: the token itself."""
    known: Tokens
    device: torch.device

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return len(self.targets)

    @property
    def length(self) -> int:
        """The number of tokens that are read."""
        return len(self.tokens)


def lay_out(row: Row, device: torch.device) -> Layout:
    """Tensors of a row; a trained token that nothing stands before is not predicted and left out."""
    kept = np.flatnonzero(row.segments >= 0)
    numbers, parents = row.segments[kept], row.parents[kept]
    predictors = find_predecessors(numbers, parents)
    chosen = np.flatnonzero(row.mask[kept] & (predictors >= 0))
    source = kept[chosen]

    def values(array: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
        return torch.from_numpy(np.asarray(array[source], dtype=np.float64)).to(device)

    known = Tokens(
        old=values(row.logprobs),
        advantages=values(row.advantages),
        weights=values(row.weights),
        mask=torch.ones(len(source), dtype=torch.bool, device=device),
        segments=torch.from_numpy(numbers[chosen]).to(device),
    )
    tokens = torch.from_numpy(np.asarray(row.tokens[kept], dtype=np.int64)).to(device)
    return Layout(
        tokens=tokens,
        segments=Segments(numbers, parents, np.asarray(row.positions[kept], dtype=np.int64)),
        predictors=torch.from_numpy(predictors[chosen]).to(device),
        targets=tokens[torch.from_numpy(chosen).to(device)],
        known=known,
        device=device,
    )


def find_predecessors(
    numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]], parents: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The place before each token: in its segment, else the last one of its parent; -1 where there is none."""
    places = np.arange(len(numbers), dtype=np.int64) - 1
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    last = dict(zip(numbers[starts].tolist(), [*(starts[1:] - 1).tolist(), len(numbers) - 1], strict=True))
    for start in starts.tolist():
        number, parent = int(numbers[start]), int(parents[start])
        places[start] = last[parent] if parent != number else -1
    return places


RECOMPUTE_SHARE = 0.3
"""Of the free memory: when what a row keeps for its gradient would take more, layers are computed twice."""
ACTIVATIONS = 8
"""Numbers of the stream's width, and of the inner width, that a layer keeps for each token; about."""


def load_trained(folder: Path, device: str, dtype: str, spread: bool = False) -> "TrainedModel":
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
        """Logprobs (with a gradient) and entropies (without) of the trained tokens, float32 [trained].

        `chunk` is for how many tokens the logits are in memory at once.
        """
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
                parts.append(checkpoint(self._judge, rows, targets, use_reentrant=False))
            else:
                parts.append(self._judge(rows, targets))
        return join_parts(parts, self.device)

    def _judge(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return judge(self.module.lm_head(rows), targets)


class FallbackTrained:
    """A model of `transformers`: each sequence is computed in full, some beside each other."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module
        self.device = device

    def score(self, layout: Layout, chunk: int) -> tuple[Tensor, Tensor]:
        """As `NativeTrained.score`; `chunk` tokens, or one sequence, are computed at once."""
        places, parts = [], []
        for batch in make_batches(unroll(layout), chunk):
            tokens = pad_sequence([layout.tokens[rows] for rows, _ in batch], batch_first=True)
            lengths = torch.tensor([len(rows) for rows, _ in batch], device=self.device)
            attended = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
            logits: Tensor = self.module(input_ids=tokens, attention_mask=attended.long(), use_cache=False).logits
            chosen = [(index, place) for index, (_, wanted) in enumerate(batch) for place, _ in wanted]
            rows, columns = (torch.tensor(values, device=self.device) for values in zip(*chosen, strict=True))
            entries = torch.tensor([entry for _, wanted in batch for _, entry in wanted], device=self.device)
            parts.append(judge(logits[rows, columns], layout.targets[entries]))
            places.append(entries)
        logprobs, entropies = join_parts(parts, self.device)
        if not places:
            return logprobs, entropies
        order = torch.argsort(torch.cat(places))
        return logprobs[order], entropies[order]


TrainedModel = NativeTrained | FallbackTrained


class EngineScorer:
    """The engine's own forward pass: what it gives tokens here are the bits that it gave them when it sampled them."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model

    def score(self, layout: Layout, adapter: Path | None) -> Tensor:
        """Logprobs of the trained tokens under the adapter in a folder or the base model, float32 [trained].

        Raises ModelError.
        """
        sequences, entries = [], []
        before = np.arange(0)
        for places, wanted in unroll(layout):
            own = places.numpy()
            equal = [bool(one) for one in own[: len(before)] == before[: len(own)]]
            shared = equal.index(False) if False in equal else len(equal)
            sequences.append(KnownSequence(layout.tokens[places], [column + 1 for column, _ in wanted], shared))
            entries += [entry for _, entry in wanted]
            before = own
        found = self.score_sequences(sequences, adapter)
        return torch.empty(layout.trained).index_copy_(0, torch.tensor(entries, dtype=torch.int64), found)

    def score_sequences(self, sequences: list[KnownSequence], adapter: Path | None) -> Tensor:
        """Logprobs of the wanted tokens of sequences, in order: float32. Raises ModelError."""
        name = None if adapter is None else str(adapter)
        if adapter is not None:
            self._model.load_adapter(str(adapter), adapter)
        try:
            return TokenScorer(self._model, name).score(sequences)
        finally:
            if adapter is not None:
                self._model.unload_adapter(str(adapter))


def load_scorer(folder: Path, device: str, dtype: str) -> EngineScorer | None:
    """Read a base model as the engine does; None where its results depend on the batch, or where it does not fit."""
    if choose_device(device).type != "cpu":
        return None
    try:
        model = load_model(folder, device=device, dtype=dtype)
    except ModelError:
        return None
    return EngineScorer(model) if model.batch_invariant else None


def find_sampled(new: Tensor, sampled: Tensor, owners: Tensor, dtype: torch.dtype) -> Tensor:
    """Which tokens this policy seems to have sampled, bool [tokens]: all of their owner's logprobs are within what
    rounding in the type of the weights explains. `owners` are int64 from 0 on."""
    is_far = (new - sampled).abs() > math.sqrt(torch.finfo(dtype).eps)
    others = torch.zeros(int(owners.max()) + 1 if len(owners) else 0, dtype=torch.bool, device=owners.device)
    others[owners[is_far]] = True
    return ~others[owners]


def judge(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logprobs of targets, and the entropies of the distributions that they were drawn from."""
    scores = logits.float().log_softmax(-1)
    logprobs = scores.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropies = -(scores.exp() * scores).sum(-1)
    return logprobs, entropies


def join_parts(parts: list[tuple[Tensor, Tensor]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Chunks one after the other."""
    if not parts:
        return torch.zeros(0, device=device), torch.zeros(0, device=device)
    if len(parts) == 1:
        return parts[0]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


Sequence = tuple[Tensor, list[tuple[int, int]]]
"""Places of its tokens in the row; and for each trained one where it is predicted in them, and its entry."""


def unroll(layout: Layout) -> Iterator[Sequence]:
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


def make_batches(sequences: Iterator[Sequence], tokens: int) -> Iterator[list[Sequence]]:
    """Sequences of like length beside each other, at most so many padded tokens, or one sequence."""
    batch: list[Sequence] = []
    for sequence in sorted(sequences, key=lambda sequence: len(sequence[0])):
        if batch and (len(batch) + 1) * len(sequence[0]) > tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch

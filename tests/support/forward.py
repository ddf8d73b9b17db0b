"""Driving a `CausalModel` sequence by sequence, and the same through `transformers`."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from heddle.models.interfaces import Batch, CausalModel, KeyValueCache, Lane, Span
from heddle.models.scoring import find_scale


def tokens_of(count: int, seed: int = 0, vocab: int = 512) -> torch.Tensor:
    """Random token ids, int64 [count]."""
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


class Runner:
    """One model and cache; grows lanes as the scheduler would."""

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.cache: KeyValueCache = model.new_cache()

    def open(self, tokens: int = 1) -> Lane:
        """A lane."""
        return self.cache.open_lane(tokens)

    def step(
        self,
        prefills: Sequence[tuple[Lane, torch.Tensor, int, str | None]] = (),
        decodes: Sequence[tuple[Lane, int, int, str | None]] = (),
    ) -> list[torch.Tensor]:
        """One batch of (lane, token ids or id, first position, adapter); log-softmax rows of each, in order."""
        spans = [Span(lane, first, len(ids), adapter) for lane, ids, first, adapter in prefills]
        singles = [Span(lane, first, 1, adapter) for lane, _, first, adapter in decodes]
        for span in spans + singles:
            self.cache.grow_lane(span.lane, span.first_position + span.count)
        parts = [ids for _, ids, _, _ in prefills] + [torch.tensor([token]) for _, token, _, _ in decodes]
        ids = torch.cat(parts)
        logits = self.model.forward(Batch(ids, spans, singles, range(len(ids))), self.cache)
        assert logits.dtype == torch.float32
        assert logits.shape == (len(ids), self.model.vocab_size)
        highest, total = find_scale(logits)
        return list(((logits - highest) - total).split([len(part) for part in parts]))

    def prefill(
        self, lane: Lane, ids: torch.Tensor, chunks: Sequence[int] = (), adapter: str | None = None, first: int = 0
    ) -> torch.Tensor:
        """Log-softmax of all positions of a prompt from `first` on, computed in chunks that end at the given places."""
        edges = [first, *chunks, len(ids)]
        results = [self.step([(lane, ids[start:stop], start, adapter)])[0] for start, stop in itertools.pairwise(edges)]
        return torch.cat(results)

    def decode(self, lane: Lane, ids: torch.Tensor, first: int, adapter: str | None = None) -> torch.Tensor:
        """Log-softmax of the positions from `first` on, one step each."""
        rows = [self.step(decodes=[(lane, int(ids[place]), place, adapter)])[0] for place in range(first, len(ids))]
        return torch.cat(rows)


def reference(folder: Path, dtype: torch.dtype = torch.float32, adapter: Path | None = None) -> Any:
    """The same folder in `transformers`, with a PEFT adapter if one is given."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter))
    return model.eval()


@torch.no_grad()
def reference_logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Log-softmax of all positions, float32 [tokens, vocab]."""
    logits: torch.Tensor = model(ids[None]).logits[0].float()
    return logits.log_softmax(-1)

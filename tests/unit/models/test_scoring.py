"""Scoring known tokens: the same numbers as reading whole sequences, however they share, begin and are cut."""

from pathlib import Path

import pytest
import torch

from heddle.models import scoring
from heddle.models.load import load_model
from heddle.models.scoring import KnownSequence, TokenScorer, pick_logprobs
from tests.support.forward import Runner, tokens_of
from tests.support.models import make_adapter, make_model


@pytest.mark.parametrize("step", [scoring.STEP_TOKENS, 40])
@pytest.mark.parametrize("with_adapter", [True, False])
def test_tokens_are_scored_as_in_whole_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, with_adapter: bool
) -> None:
    monkeypatch.setattr(scoring, "STEP_TOKENS", step)
    monkeypatch.setattr(scoring, "LOGIT_BYTES", step * 4 * 100)
    model = load_model(make_model(tmp_path / "model"), device="cpu", dtype="float32")
    adapter = "a" if with_adapter else None
    model.load_adapter("a", make_adapter(tmp_path / "a", tmp_path / "model"))
    prompt = tokens_of(70, seed=1)
    children = [torch.cat([prompt, tokens_of(size, seed=size)]) for size in (9, 50, 1, 30)]
    alone = tokens_of(120, seed=2)
    sequences = [
        KnownSequence(alone, [1, 2, 60, 119]),
        *(
            KnownSequence(child, list(range(70, len(child))), 70 if index else 0)
            for index, child in enumerate(children)
        ),
        KnownSequence(children[1], [3, 80], 70),
        KnownSequence(alone, [119]),
    ]
    found = TokenScorer(model, adapter).score(sequences)
    wanted = []
    for sequence in sequences:
        runner = Runner(model)
        rows = runner.prefill(runner.open(len(sequence.tokens)), sequence.tokens, adapter=adapter)
        wanted += [rows[place - 1, sequence.tokens[place]] for place in sequence.wanted]
    assert torch.allclose(found, torch.stack(wanted), atol=1e-4)
    assert TokenScorer(model, adapter).score([]).shape == (0,)


def test_a_shared_prompt_is_read_once(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path / "model"), device="cpu", dtype="float32")
    rows: list[int] = []
    forward = model.forward
    model.forward = lambda batch, cache: rows.append(len(batch.token_ids)) or forward(batch, cache)  # type: ignore[method-assign]
    prompt = tokens_of(64)
    sequences = [KnownSequence(torch.cat([prompt, tokens_of(8, seed=n)]), [71], 64 if n else 0) for n in range(5)]
    TokenScorer(model, None).score(sequences)
    assert rows == [71, 4 * 7]


def test_one_token_of_each_row_is_picked() -> None:
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)) * 20
    tokens = torch.arange(7)
    wanted = logits.log_softmax(1)[torch.arange(7), tokens]
    assert torch.allclose(pick_logprobs(logits, tokens), wanted, atol=1e-5)

"""What transformers says about some prompts, and the comparison with it."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.inference.engine.helpers import Result, request

TOLERANCE = 1e-4
"""Most difference of a log-probability in float32."""


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=length)


PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((1, 5, 16, 17, 33, 40, 64, 150, 50, 56, 60))]
TIGHT = 14
"""Blocks for three lanes of 64 tokens, and not for a longer one beside them."""

Expected = tuple[list[int], list[list[float]], list[list[float]]]
"""Greedy tokens, their log-softmax rows, and those of the prompt."""


def reference(folder: Path, adapter: Path | None = None, prompts: list[list[int]] = PROMPTS) -> list[Expected]:
    """What transformers (and peft, with an adapter) make of each prompt in float32."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter is not None:
        model = pytest.importorskip("peft").PeftModel.from_pretrained(model, adapter).eval()
    results = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = model.generate(
                input_ids=torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            rows = model(ids).logits[0].log_softmax(-1).tolist()
            end = len(prompt)
            results.append((ids[0, end:].tolist(), rows[end - 1 : -1], rows[: end - 1]))
    return results


def check(result: Result, tokens: list[int], rows: list[list[float]]) -> None:
    """Tokens are equal, logprobs nearly."""
    assert result.failure is None
    assert result.tokens == tokens
    for (token, logprob, rank, top), chosen, row in zip(result.logprobs, tokens, rows, strict=True):
        check_logprob(token, logprob, rank, top, chosen, row)


def check_logprob(token: int, logprob: float, rank: int, top: Any, chosen: int, row: list[float]) -> None:
    assert token == chosen
    assert logprob == pytest.approx(row[chosen], abs=TOLERANCE)
    surely, perhaps = (sum(value > row[chosen] + margin for value in row) for margin in (TOLERANCE, -TOLERANCE))
    assert surely < rank <= perhaps
    best = sorted(row, reverse=True)[: len(top)]
    assert [value for _, value in top] == pytest.approx(best, abs=TOLERANCE)


def greedy(prompt: list[int], **fields: Any) -> Any:
    return request(prompt, **({"logprobs": 3, "ignore_eos": True} | fields))

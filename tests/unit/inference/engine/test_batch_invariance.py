"""The same bits alone and in company: batches, adapters, the prefix cache, chunks, preemption, threads, training."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks import exact
from heddle.models.load import load_model
from heddle.training.trainer.models import EngineScorer
from tests.support.models import make_adapter, make_model

REQUESTS = 20
TOKENS = 40


OTHERS = [("qwen3", "float32"), ("mistral", "bfloat16")]
MODELS = [("llama", "float32"), *(pytest.param(other, marks=pytest.mark.thorough) for other in OTHERS)]
FIRST = ("batch 64", "preemption, batch 16")
CASES = [
    pytest.param(setting, id=setting.name, marks=() if setting.name in FIRST else pytest.mark.thorough)
    for setting in exact.SETTINGS
]


@pytest.fixture(scope="module", params=MODELS, ids=str)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A model, its requests, and what they give one after the other."""
    pytest.importorskip("numba")
    architecture, dtype = request.param
    place = tmp_path_factory.mktemp("exact")
    folder = make_model(place / "model", model_type=architecture)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load_model(folder, device="cpu", dtype=dtype)
    assert model.batch_invariant
    adapters = [make_adapter(place / f"a{rank}", folder, rank=rank, seed=rank) for rank in (8, 4)]
    requests = exact.make_requests(model, adapters, TOKENS, REQUESTS)
    yield folder, dtype, model, requests, exact.answer(model, folder, requests, exact.Setting())[0]
    torch.set_num_threads(threads)


@pytest.mark.parametrize("setting", CASES)
def test_tokens_and_logprobs_have_the_same_bits(alone: Any, setting: exact.Setting) -> None:
    folder, dtype, model, requests, wanted = alone
    if setting.threads > 1:
        model = exact.load_on(folder, dtype, setting.threads)
    kept = [number for number, request in enumerate(requests) if setting.has(request, requests[1].adapter)]
    found, preemptions = exact.answer(model, folder, [requests[number] for number in kept], setting)
    assert exact.compare([wanted[number] for number in kept], found) == (len(kept) * TOKENS, 0, 0, 0.0)
    assert bool(preemptions) == bool(setting.lanes)


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_training_job_recomputes_the_same_bits(alone: Any, threads: int) -> None:
    folder, dtype, model, requests, wanted = alone
    if threads > 1:
        model = exact.load_on(folder, dtype, threads)
    for adapter in {request.adapter.path for request in requests if request.adapter}:
        own = [number for number, one in enumerate(requests) if one.adapter and one.adapter.path == adapter]
        row = exact.make_row([requests[number] for number in own], [wanted[number] for number in own])
        assert exact.check_training(EngineScorer(model), row, adapter, threads) == 0


def test_another_bit_is_counted() -> None:
    assert exact.compare([([1, 2, 3], [-1.0, -2.0, -3.0])], [([1, 2, 4], [-1.0, -2.5, -3.0])]) == (3, 1, 1, 0.5)

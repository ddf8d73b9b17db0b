"""States of the last position equal those of transformers, whatever runs beside them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.inference.engine.base import RequestRefused, TokenRequest  # noqa: E402
from heddle.inference.engine.local.engine import EngineCore  # noqa: E402
from heddle.inference.engine.local.options import LocalOptions  # noqa: E402
from heddle.models.load import load_model  # noqa: E402
from tests.support.models import make_adapter, make_model, make_unknown_model  # noqa: E402
from tests.unit.inference.engine.conftest import CoreMaker  # noqa: E402
from tests.unit.inference.engine.exact import PROMPTS, TIGHT, greedy  # noqa: E402
from tests.unit.inference.engine.helpers import run  # noqa: E402


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model for the own forward pass, and one that runs through transformers."""
    make = make_unknown_model if request.param == "gpt2" else make_model
    return make(tmp_path_factory.mktemp(request.param) / "model", model_type=request.param)


@pytest.fixture(scope="module")
def make_core(folder: Path) -> CoreMaker:
    """A core with a memory of `blocks` blocks and changed options."""
    model = load_model(folder, device="cpu", dtype="float32")

    def make(blocks: int = 4096, **options: Any) -> EngineCore:
        return EngineCore(model, LocalOptions(folder=folder, **options), (2,), blocks * model.new_cache().block_bytes)

    return make


def states_of_transformers(folder: Path, prompts: list[list[int]], adapter: Path | None = None) -> list[list[float]]:
    """What transformers makes of the last position of each prompt."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter is not None:
        model = pytest.importorskip("peft").PeftModel.from_pretrained(model, adapter).eval()
    with torch.inference_mode():
        return [
            model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0, -1].tolist()
            for prompt in prompts
        ]


def pooling(prompt: list[int], **more: Any) -> TokenRequest:
    return replace(greedy(prompt, **more), pools=True)


def close(state: bytes | None, expected: list[float]) -> None:
    assert state is not None
    assert torch.frombuffer(bytearray(state), dtype=torch.float32).tolist() == pytest.approx(expected, abs=1e-4)


def test_alone_and_together(make_core: CoreMaker, folder: Path) -> None:
    expected = states_of_transformers(folder, PROMPTS)
    for prompt, state in zip(PROMPTS, expected, strict=True):
        (result,) = run(make_core(), pooling(prompt))
        assert (result.tokens, result.end, result.cached, result.events) == ([], ("stop", None), 0, 1)
        close(result.state, state)
    core = make_core(max_prefill=40, max_prefill_beside=7)
    results = run(core, *(pooling(prompt) for prompt in PROMPTS))
    for result, state in zip(results, expected, strict=True):
        close(result.state, state)
    assert core.scheduler.pool.used == 0 and core.stats().generated_tokens == 0


def test_beside_sequences_that_generate_and_with_cached_prefixes(make_core: CoreMaker, folder: Path) -> None:
    expected = states_of_transformers(folder, PROMPTS)
    core = make_core()
    (alone,) = run(make_core(), greedy(PROMPTS[3]))
    for round_ in range(2):
        beside, *results = run(core, greedy(PROMPTS[3]), *(pooling(prompt) for prompt in PROMPTS))
        assert beside.tokens == alone.tokens
        for prompt, result, state in zip(PROMPTS, results, expected, strict=True):
            close(result.state, state)
            if round_ and prompt is not PROMPTS[3]:
                assert result.cached == (len(prompt) - 1) // 16 * 16


def test_with_too_little_memory_for_all(make_core: CoreMaker, folder: Path) -> None:
    core = make_core(blocks=TIGHT)
    places = (8, 9, 10, 6)
    *_, last = run(core, *(greedy(PROMPTS[place]) for place in places), pooling(PROMPTS[7][:60]))
    close(last.state, *states_of_transformers(folder, [PROMPTS[7][:60]]))
    assert core.scheduler.pool.used == 0


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_an_adapter_changes_the_state(make_core: CoreMaker, folder: Path) -> None:
    adapter = make_adapter(folder.parent / "adapter", folder, seed=1)
    plain, changed = run(make_core(), pooling(PROMPTS[5]), pooling(PROMPTS[5], adapter=adapter))
    close(changed.state, *states_of_transformers(folder, [PROMPTS[5]], adapter))
    assert plain.state != changed.state


def test_a_prompt_may_fill_the_whole_context(make_core: CoreMaker) -> None:
    core = make_core(max_model_len=48)
    (result,) = run(core, pooling([5] * 48))
    assert result.state is not None
    with pytest.raises(RequestRefused, match="takes 48"):
        core.add(99, pooling([5] * 49))
    assert not core.has_work

"""The engine's tokens and log-probabilities equal those of transformers, whatever runs beside, per architecture."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.inference.engine.local.engine import EngineCore  # noqa: E402
from heddle.inference.engine.local.options import LocalOptions  # noqa: E402
from heddle.models.load import load_model  # noqa: E402
from tests.support.models import make_adapter, make_model  # noqa: E402
from tests.unit.inference.engine.conftest import CoreMaker  # noqa: E402
from tests.unit.inference.engine.exact import (  # noqa: E402
    PROMPTS,
    TIGHT,
    Expected,
    check,
    check_logprob,
    greedy,
    reference,
)
from tests.unit.inference.engine.helpers import run  # noqa: E402


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of each architecture; Mistral's window is shorter than some prompts."""
    config = {"sliding_window": 48} if request.param == "mistral" else {}
    return make_model(tmp_path_factory.mktemp(request.param) / "model", model_type=request.param, config=config)


@pytest.fixture(scope="module")
def adapters(folder: Path) -> list[Path]:
    """Two LoRA adapters for it."""
    return [make_adapter(folder.parent / f"adapter-{seed}", folder, seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Expected]:
    """What transformers says."""
    return reference(folder)


@pytest.fixture(scope="module")
def make_core(folder: Path) -> CoreMaker:
    """A core with a memory of `blocks` blocks and changed options."""
    model = load_model(folder, device="cpu", dtype="float32")

    def make(blocks: int = 4096, **options: Any) -> EngineCore:
        return EngineCore(model, LocalOptions(folder=folder, **options), (2,), blocks * model.new_cache().block_bytes)

    return make


def test_alone_and_together_greedy_tokens_and_logprobs_are_those_of_transformers(
    make_core: CoreMaker, expected: Any
) -> None:
    for prompt, (tokens, rows, _) in zip(PROMPTS, expected, strict=True):
        (result,) = run(make_core(), greedy(prompt))
        check(result, tokens, rows)
        assert result.cached == 0
        assert result.end == ("length", None)
    results = run(make_core(max_prefill=40), *(greedy(prompt) for prompt in PROMPTS))
    for result, (tokens, rows, _) in zip(results, expected, strict=True):
        check(result, tokens, rows)


def test_a_cached_prefix_changes_nothing_but_the_count(make_core: CoreMaker, expected: Any) -> None:
    core = make_core()
    for round_ in range(2):
        results = run(core, *(greedy(prompt) for prompt in PROMPTS))
        for prompt, result, (tokens, rows, _) in zip(PROMPTS, results, expected, strict=True):
            check(result, tokens, rows)
            assert result.cached == (len(prompt) - 1) // 16 * 16 * round_
    stats = core.stats()
    assert stats.kv_blocks_used == 0 and stats.kv_blocks_cached > 0
    assert stats.prefix_query_tokens == 2 * sum(map(len, PROMPTS))
    assert stats.generated_tokens == 2 * 16 * len(PROMPTS)


def test_the_output_of_one_turn_is_the_cached_prefix_of_the_next(make_core: CoreMaker) -> None:
    core = make_core()
    (first,) = run(core, greedy(PROMPTS[3], max_tokens=32))
    prompt = [*PROMPTS[3], *first.tokens, 11, 12]
    (second,) = run(core, greedy(prompt))
    (fresh,) = run(make_core(), greedy(prompt))
    assert second.cached == 48
    assert second.tokens == fresh.tokens


def test_after_a_preemption_the_tokens_are_the_same(make_core: CoreMaker, expected: Any) -> None:
    core = make_core(blocks=TIGHT)
    results = run(core, *(greedy(PROMPTS[index]) for index in (8, 9, 10, 6)))
    for result, index in zip(results, (8, 9, 10, 6), strict=True):
        check(result, *expected[index][:2])
    assert core.scheduler.preemptions > 0
    assert core.scheduler.pool.used == 0


def test_random_draws_do_not_depend_on_neighbours_or_preemption(make_core: CoreMaker) -> None:
    fields = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 30, "seed": 11}
    own = greedy(PROMPTS[10], **fields)
    (alone,) = run(make_core(), own)
    others = [greedy(prompt, temperature=1.5, seed=seed, top_k=9) for seed, prompt in enumerate(PROMPTS)]
    (beside, *_) = run(make_core(), own, *others)
    squeezed = make_core(blocks=TIGHT)
    *_, late = run(squeezed, *others[8:10], own)
    (other_seed,) = run(make_core(), greedy(PROMPTS[10], **{**fields, "seed": 12}))
    assert squeezed.scheduler.preemptions > 0
    assert alone.tokens == beside.tokens == late.tokens
    assert alone.tokens != other_seed.tokens
    assert len(set(alone.tokens)) > 5


@pytest.mark.parametrize("pieces", [1024, 7])
def test_prompt_logprobs_are_those_of_transformers(make_core: CoreMaker, expected: Any, pieces: int) -> None:
    core = make_core(max_prefill=pieces, max_prefill_beside=pieces)
    run(core, greedy(PROMPTS[7]))
    results = run(core, *(greedy(prompt, prompt_logprobs=2) for prompt in PROMPTS))
    for prompt, result, (tokens, rows, before) in zip(PROMPTS, results, expected, strict=True):
        check(result, tokens, rows)
        assert result.cached == 0
        assert result.prompt_logprobs is not None and len(result.prompt_logprobs) == len(prompt)
        assert result.prompt_logprobs[0] is None
        for (token, logprob, rank, top), chosen, row in zip(
            result.prompt_logprobs[1:], prompt[1:], before, strict=True
        ):
            check_logprob(token, logprob, rank, top, chosen, row)


def test_prompt_logprobs_survive_a_preemption(make_core: CoreMaker, expected: Any) -> None:
    core = make_core(blocks=TIGHT)
    results = run(core, *(greedy(PROMPTS[index], prompt_logprobs=0) for index in (8, 9, 10, 6)))
    assert core.scheduler.preemptions > 0
    for result, index in zip(results, (8, 9, 10, 6), strict=True):
        check(result, *expected[index][:2])
        assert [item and item[0] for item in result.prompt_logprobs or []] == [None, *PROMPTS[index][1:]]


def test_adapters_in_a_mixed_batch_are_those_of_peft(
    make_core: CoreMaker, folder: Path, adapters: list[Path], expected: list[Expected]
) -> None:
    """Base model and two adapters side by side, fresh and with cached prefixes, and put back for want of memory."""
    prompts = [PROMPTS[index] for index in (8, 9, 10)]
    known = {None: [expected[index] for index in (8, 9, 10)]}
    known |= {adapter: reference(folder, adapter, prompts) for adapter in adapters}
    assert known[None][0][0] != known[adapters[0]][0][0] != known[adapters[1]][0][0]
    order = [(adapter, place) for place in range(3) for adapter in (None, *adapters)]
    for core in (make_core(), make_core(blocks=TIGHT)):
        for _ in range(2):
            wanted = [greedy(prompts[place], adapter=adapter) for adapter, place in order]
            for result, (adapter, place) in zip(run(core, *wanted), order, strict=True):
                check(result, *known[adapter][place][:2])
    assert core.scheduler.preemptions > 0

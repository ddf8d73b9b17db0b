"""The engine core on a real model: the same tokens and logprobs as transformers, whatever runs beside."""

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.inference.engine.base import (  # noqa: E402
    EngineBusy,
    EngineFailed,
    EngineStats,
    RepetitionRule,
    RequestRefused,
)
from tests.unit.inference.engine.conftest import CoreMaker  # noqa: E402
from tests.unit.inference.engine.helpers import Result, collect, request, run  # noqa: E402


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=length)


PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((1, 5, 16, 17, 33, 40, 64, 150, 50, 56, 60))]
TIGHT = 14
"""Blocks for three lanes of 64 tokens, and not for a longer one beside them."""


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[list[int], list[list[float]], list[list[float]]]]:
    """For each prompt: greedy tokens of transformers, their log-softmax rows, and those of the prompt."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results = []
    with torch.inference_mode():
        for prompt in PROMPTS:
            ids = model.generate(
                torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
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
    assert logprob == pytest.approx(row[chosen], abs=2e-4)
    surely, perhaps = (sum(value > row[chosen] + margin for value in row) for margin in (2e-4, -2e-4))
    assert surely < rank <= perhaps
    best = sorted(row, reverse=True)[: len(top)]
    assert [value for _, value in top] == pytest.approx(best, abs=2e-4)


def greedy(prompt: list[int], **fields: Any) -> Any:
    return request(prompt, **({"logprobs": 3, "ignore_eos": True} | fields))


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
    stats = EngineStats()
    core.fill_stats(stats)
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


def test_every_state_can_be_aborted_and_holds_nothing_afterwards(make_core: CoreMaker) -> None:
    for stage in range(12):
        core = make_core(blocks=40, max_prefill=32, max_prefill_beside=16)
        for number in range(6):
            core.add(number, greedy(PROMPTS[7 - number % 3], max_tokens=20, prompt_logprobs=1 if number == 2 else None))
        results: dict[int, Result] = {}
        for _ in range(stage):
            collect(results, core)
        for number in (3, 0, 5, 1, 2, 4):
            core.abort(number)
            if core.has_work:
                collect(results, core)
        assert not core.has_work
        assert core.step() == []
        assert core.scheduler.pool.used == 0
        assert core.cache.allocated_bytes() == 0  # type: ignore[attr-defined]
        core.abort(0)
        assert core.totals.aborted == 6


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"stop_token_ids": tuple(range(512))}, ("stop", "first")),
        ({"max_tokens": 1}, ("length", None)),
        ({"repetition": RepetitionRule(8, 1, 2), "max_tokens": 200}, ("repetition", "repetition_detected")),
        ({"logit_bias": {2: 100.0}, "ignore_eos": False}, ("stop", None)),
    ],
)
def test_ends(make_core: CoreMaker, fields: dict[str, Any], end: tuple[str, Any]) -> None:
    (result,) = run(make_core(), greedy(PROMPTS[2], **fields))
    assert result.end == (end if end[1] != "first" else ("stop", result.tokens[-1]))
    if fields.get("logit_bias"):
        assert result.tokens == [2]


def test_min_tokens_holds_the_end_back(make_core: CoreMaker) -> None:
    fields = {"logit_bias": {2: 100.0, 9: 50.0}, "ignore_eos": False, "stop_token_ids": (9,)}
    (result,) = run(make_core(), greedy(PROMPTS[2], min_tokens=3, **fields))
    assert len(result.tokens) == 4 and result.tokens[-1] == 2 and not {2, 9} & set(result.tokens[:3])


@pytest.mark.parametrize(
    ("each", "text", "param"),
    [
        (request([]), "the prompt has no tokens", "prompt"),
        (request([5, 512]), "prompt: token id 512 is not in the vocabulary of 512", "prompt"),
        (request([-1]), "prompt: token id -1", "prompt"),
        (request([5], logit_bias={600: 1.0}), "logit_bias: token id 600", "logit_bias"),
        (request([5], allowed_token_ids=(1, 700)), "allowed_token_ids: token id 700", "allowed_token_ids"),
        (request([5], allowed_token_ids=()), "allowed_token_ids is empty", "allowed_token_ids"),
        (request([5], bad_words=((1, 900),)), "bad_words: token id 900", "bad_words"),
        (request([5], bad_words=((),)), "bad_words: a word has no tokens", "bad_words"),
        (request([5], stop_token_ids=(512,)), "stop_token_ids: token id 512", "stop_token_ids"),
        (request([5], max_tokens=0), "max_tokens is 0", "max_tokens"),
        (request([5] * 100, max_tokens=4000), "together 4100, and this engine takes 4096", "max_tokens"),
        (request([5] * 4096, max_tokens=1), "together 4097", "prompt"),
        (request([5], priority=1), "priority needs an engine", "priority"),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_runs(make_core: CoreMaker, each: Any, text: str, param: str) -> None:
    core = make_core()
    with pytest.raises(RequestRefused, match=text) as caught:
        core.add(1, each)
    assert caught.value.param == param
    assert not core.has_work


def test_what_memory_cannot_hold_is_refused_and_what_just_fits_runs(make_core: CoreMaker) -> None:
    core = make_core(blocks=8)
    assert core.max_model_len == 128
    with pytest.raises(RequestRefused, match="together 129, and this engine takes 128"):
        core.add(1, greedy(PROMPTS[5], max_tokens=89))
    (result,) = run(core, greedy(PROMPTS[5], max_tokens=88))
    assert len(result.tokens) == 88
    with pytest.raises(EngineFailed, match="too few"):
        make_core(blocks=3)


def test_more_waiting_requests_than_allowed_are_refused(make_core: CoreMaker) -> None:
    core = make_core(max_waiting=2)
    core.add(1, greedy([5]))
    core.add(2, greedy([5]))
    with pytest.raises(EngineBusy, match="2 requests wait already"):
        core.add(3, greedy([5]))
    collect({}, core)
    core.add(3, greedy([5]))


def test_a_request_whose_masks_leave_nothing_fails_alone(make_core: CoreMaker, expected: Any) -> None:
    core = make_core()
    bad = greedy(PROMPTS[4], allowed_token_ids=(7,), bad_words=((7, 7), (7,)))
    good, failed = run(core, greedy(PROMPTS[3]), bad)
    check(good, *expected[3][:2])
    assert isinstance(failed.failure, RequestRefused)
    assert failed.tokens == []
    assert core.scheduler.pool.used == 0


def test_what_a_broken_step_had_delivered_still_counts(make_core: CoreMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    core.add(1, greedy(PROMPTS[2], max_tokens=1))
    core.add(2, greedy(PROMPTS[3], max_tokens=1))
    core.add(3, greedy(PROMPTS[4], max_tokens=9))
    finish = core.scheduler.finish

    def breaks(sequence: Any) -> None:
        if sequence.number == 2:
            raise MemoryError
        finish(sequence)

    monkeypatch.setattr(core.scheduler, "finish", breaks)
    with pytest.raises(MemoryError):
        core.step()
    events = core.fail_all(EngineFailed("broken"))
    assert [(event.number, event.end, event.failure is None) for event in events] == [
        (1, ("length", None), True),
        (2, ("length", None), True),
        (3, None, False),
    ]
    assert not core.has_work
    assert core.scheduler.pool.used == 0


def test_a_step_that_breaks_fails_its_requests_and_the_next_ones_work(
    make_core: CoreMaker, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core()
    for number in range(3):
        core.add(number, greedy(PROMPTS[number]))
    collect({}, core)
    core.add(3, greedy(PROMPTS[7]))
    with monkeypatch.context() as patch:
        patch.setattr(core.model, "forward", lambda batch, cache: torch.zeros(1)[3])
        with pytest.raises(IndexError):
            core.step()
    events = core.fail_all(EngineFailed("broken"))
    assert sorted(event.number for event in events) == [0, 1, 2, 3]
    assert not core.has_work
    assert (core.scheduler.pool.used, core.scheduler.pool.cached) == (0, 0)
    (result,) = run(core, greedy(PROMPTS[6]))
    check(result, *expected[6][:2])

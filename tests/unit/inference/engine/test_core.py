"""The engine core on a real model: ends, refusals, aborts, and faults that stay with their request."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.inference.engine.base import (  # noqa: E402
    EngineBusy,
    EngineFailed,
    RepetitionRule,
    RequestRefused,
)
from tests.unit.inference.engine.conftest import CoreMaker  # noqa: E402
from tests.unit.inference.engine.exact import PROMPTS, check, greedy, reference  # noqa: E402
from tests.unit.inference.engine.helpers import Result, collect, request, run  # noqa: E402


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    """What transformers says."""
    return reference(folder)


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
        assert core.cache.slabs == {}  # type: ignore[attr-defined]
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
        (request([5], max_tokens=0), "max_tokens must be at least 1", "max_tokens"),
        (request([5] * 100, max_tokens=4000), "together 4100, and this engine takes 4096", "max_tokens"),
        (request([5] * 4096, max_tokens=1), "together 4097", "prompt"),
        (request([5], priority=1), "priority requires an engine", "priority"),
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
    with pytest.raises(EngineBusy, match="2 requests are already waiting"):
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

"""Admission, counting and tracing of completions, with a store in memory and a sink that can fail."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from heddle.auth import Caller, Grant
from heddle.errors import Busy, Forbidden, InvalidRequest, StorageFull
from heddle.inference import accounts
from heddle.inference.accounts import Accounts, project_of
from heddle.inference.limits import KEY, PROJECT
from heddle.inference.metrics import InferenceMetrics
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import Changes
from heddle.store.control.inference import InferenceRows, Used
from heddle.store.control.redaction import Redaction
from heddle.wire.inference import Completion, InferenceCall
from heddle.wire.refs import internal_project
from tests.support.memory import MemoryExecutor

ANN = Caller("ann", (Grant.parse("write"),), key_id="key-1")


class Sink:
    """Keeps calls, or fails with `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[InferenceCall] = []
        self.error = error

    async def store(self, call: InferenceCall) -> None:
        """Keep a call."""
        if self.error is not None:
            raise self.error
        self.calls.append(call)


class Desk:
    """Accounts with everything around them."""

    def __init__(self, sink: Sink | None = None, rows: Any = None, **settings: Any) -> None:
        self.rows = rows or InferenceRows(MemoryExecutor())
        self.sink = sink or Sink()
        self.registry = CollectorRegistry()
        shared = MemoryExecutor()
        store = cast(Store, SimpleNamespace(inference=self.rows, changes=Changes(shared), redaction=Redaction(shared)))
        figures = InferenceMetrics(self.registry)
        self.accounts = Accounts(Settings(**settings), store, self.sink, cast(Any, None), figures)

    def used(self, *by: str) -> list[dict[str, Any]]:
        """The usage rows."""
        return asyncio.run(self.rows.usage((0, 99_999), by or ("project", "day", "model", "key", "user")))

    def figure(self, line: str) -> float:
        """A value of /metrics."""
        (found,) = [
            text for text in generate_latest(self.registry).decode().splitlines() if text.startswith(line + " ")
        ]
        return float(found.rpartition(" ")[2])

    def answer(self, **fields: Any) -> None:
        """One completion from admission to its end."""

        async def work() -> None:
            completion = done(**fields)
            ticket = await self.accounts.admit(ANN, completion.project, completion.served, 10, 20)
            await ticket.close(completion)

        asyncio.run(work())


def done(**fields: Any) -> Completion:
    """A completion of 10 + 5 tokens."""
    values: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "caller": ANN,
        "project": "team/p",
        "model": "asked",
        "served": "tiny",
        "base": "tiny",
        "started_at": datetime(1970, 1, 2, 23, 59, 59, tzinfo=UTC),
        "request": {"messages": [{"role": "user", "content": "hi"}]},
        "response": {"object": "chat.completion", "choices": []},
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "seconds": 2.0,
        "first_token_seconds": 1.2,
    }
    return Completion(**(values | fields))


@pytest.mark.parametrize("name", ["Compat-Project", "OpenAI-Project"])
def test_the_project_comes_from_either_header(name: str) -> None:
    assert project_of({name: " team/p "}, ANN) == "team/p"
    for encoding in ("utf-8", "latin-1"):  # headers are read as Latin-1
        assert project_of({name: "küche/ü".encode(encoding).decode("latin-1")}, ANN) == "küche/ü"


def test_the_project_of_a_bound_key_needs_no_header() -> None:
    bound = Caller("ann", (Grant.parse("write:team/p"),))
    assert project_of({}, bound) == "team/p"
    assert project_of({}, ANN) is None
    assert project_of({"Compat-Project": ""}, ANN) is None
    assert project_of({"OpenAI-Project": "team/x"}, Caller("ann", (Grant.parse("write:team"),))) == "team/x"
    for caller in (bound, Caller("ann", (Grant.parse("write:other"),))):
        with pytest.raises(Forbidden, match="cannot access") as refused:
            project_of({"OpenAI-Project": "team/x"}, caller)
        assert refused.value.param == "OpenAI-Project"


@pytest.mark.parametrize("value", ["team", "team/", "/p", "a/b/c", "team/p:x", "team/" + "p" * 600])
def test_a_malformed_project_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest, match="Compat-Project must be 'team/project'") as refused:
        project_of({"Compat-Project": value}, ANN)
    assert refused.value.param == "Compat-Project"


def test_a_completion_is_counted_on_the_day_it_began(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.answer(user="u1", cached_tokens=3, reasoning_tokens=2)
    (row,) = desk.used()
    assert (row["project"], row["day"], row["model"]) == (internal_project("team/p"), 1, "tiny")
    assert (row["key"], row["user"], row["requests"], row["errors"]) == ("key-1", "u1", 1, 0)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (10, 5)
    assert (row["cached_tokens"], row["reasoning_tokens"], row["seconds"]) == (3, 2, 2.0)
    assert desk.sink.calls == [], "nothing is traced unless the setting says so"
    assert desk.figure('heddle_inference_requests_total{model="tiny",status="200"}') == 1
    assert desk.figure('heddle_inference_tokens_total{kind="completion",model="tiny"}') == 5
    assert desk.figure('heddle_inference_inter_token_seconds_sum{model="tiny"}') == pytest.approx(0.2)
    assert caplog.records == []


def test_without_a_project_it_counts_under_none_and_is_not_traced() -> None:
    desk = Desk(trace_inference="on")
    desk.answer(project=None, user="x" * 1000)
    (row,) = desk.used()
    assert (row["project"], row["user"]) == ("", "x" * 256)
    assert desk.sink.calls == []


def test_a_failed_completion_is_counted_and_traced_as_one() -> None:
    desk = Desk(trace_inference="on")
    desk.answer(error="The engine died", status=503, response=None, completion_tokens=0)
    (row,) = desk.used()
    assert (row["requests"], row["errors"]) == (1, 1)
    (call,) = desk.sink.calls
    assert (call.exception, call.output, call.attributes["status"]) == ("The engine died", None, 503)
    assert desk.figure('heddle_inference_requests_total{model="tiny",status="503"}') == 1


def test_a_traced_completion_has_its_request_answer_and_usage() -> None:
    desk = Desk(trace_inference="on")
    completion = done(cached_tokens=4, reasoning_tokens=1, policy="tiny@3", stream=True)
    asyncio.run(_close(desk, completion))
    (call,) = desk.sink.calls
    assert (call.project, call.op_name, call.caller) == ("team/p", "heddle.chat.completions", ANN)
    assert (call.inputs, call.output, call.exception) == (completion.request, completion.response, None)
    assert (call.ended_at - call.started_at).total_seconds() == 2.0
    assert call.attributes["kind"] == "llm"
    assert (call.attributes["policy"], call.attributes["stream"]) == ("tiny@3", True)
    assert call.usage == {
        "tiny": {
            "requests": 1,
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "cache_read_input_tokens": 4,
            "reasoning_tokens": 1,
        }
    }


async def _close(desk: Desk, completion: Completion) -> None:
    ticket = await desk.accounts.admit(ANN, completion.project, completion.served, 10, 20)
    await ticket.close(completion)


def test_what_another_call_shows_is_counted_but_not_traced() -> None:
    desk = Desk(trace_inference="on")
    desk.answer(traced=True)
    assert desk.sink.calls == []
    assert [row["requests"] for row in desk.used()] == [1]


@pytest.mark.parametrize("error", [StorageFull("The disk is full"), Busy("Too much waits"), ZeroDivisionError("odd")])
def test_a_failing_trace_spoils_nothing_but_is_counted_and_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(Sink(error), trace_inference="on")
    desk.answer()
    assert [row["requests"] for row in desk.used()] == [1]
    assert desk.figure('heddle_inference_bookkeeping_failures_total{what="trace"}') == 1
    assert [record.getMessage().startswith("trace of a completion was not stored") for record in caplog.records] == [
        True
    ]


class BusyRows:
    """Rows of a store that is busy a few times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.added: list[Used] = []

    async def limits(self) -> list[Any]:
        """None."""
        return []

    async def add(self, used: Used) -> None:
        """Count, when not busy."""
        self.times -= 1
        if self.times >= 0:
            raise Busy("Too much waits to be written")
        self.added.append(used)


@pytest.mark.parametrize(("times", "kept", "failures"), [(3, 1, 0), (99, 0, 1)])
def test_counting_waits_for_a_busy_store(times: int, kept: int, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_WAITS", (0.0, 0.0, 0.0))
    rows = BusyRows(times)
    desk = Desk(rows=rows)
    desk.answer()
    assert len(rows.added) == kept
    if failures:
        assert desk.figure('heddle_inference_bookkeeping_failures_total{what="usage"}') == failures


def test_closing_frees_the_place_once_and_corrects_the_tokens() -> None:
    desk = Desk(inference_key_tokens_per_minute=10**6)

    async def work() -> None:
        limits = desk.accounts.limits
        ticket = await desk.accounts.admit(ANN, None, "tiny", 100, 10**6)
        assert ticket.headers["x-ratelimit-remaining-tokens"] == str(10**6 - 100 - accounts.EXPECTED_COMPLETION)
        assert limits.running((KEY, "key-1")) == limits.running((PROJECT, "")) == 1
        await asyncio.gather(ticket.close(done(project=None)), ticket.close(done(project=None)))
        await ticket.release()
        assert limits.running((KEY, "key-1")) == 0
        again = await desk.accounts.admit(ANN, None, "tiny", 0, 0)
        assert int(again.headers["x-ratelimit-remaining-tokens"]) >= 10**6 - 15
        await again.release()
        assert limits.running((KEY, "key-1")) == 0

    asyncio.run(work())
    assert [row["requests"] for row in desk.used()] == [1], "a released request is not counted"


def test_counting_goes_on_when_the_one_who_waits_goes_away() -> None:
    class SlowRows(BusyRows):
        async def add(self, used: Used) -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await super().add(used)

    rows = SlowRows(0)
    desk = Desk(rows=rows)

    async def work() -> None:
        ticket = await desk.accounts.admit(ANN, None, "tiny", 1, 1)
        closing = asyncio.create_task(ticket.close(done()))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert rows.added == []
        await desk.accounts.drain()
        assert len(rows.added) == 1

    asyncio.run(work())


def test_stored_limits_hold_from_the_first_request(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()

    async def work(run: Callable[[], Any]) -> None:
        await desk.rows.set_limit("key", "key-1", 1, None, "root")
        await run()
        with pytest.raises(Busy, match="key 'key-1'"):
            await run()

    with caplog.at_level(logging.INFO):
        asyncio.run(work(lambda: desk.accounts.admit(ANN, "team/p", "tiny", 1, 1)))
    assert desk.figure("heddle_inference_limited_total") == 1

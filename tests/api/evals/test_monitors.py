"""Monitors: which calls they choose as calls end, each once, also when the server dies between noting and scoring."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from heddle.auth import Caller, Scope
from heddle.errors import Busy, InvalidRequest, Unavailable
from heddle.evals.monitors import Monitors
from heddle.services import Services
from heddle.store.control.coordination import MONITOR_CLASS
from heddle.wire import refs
from tests.support.inprocess import Trace, running_services

PROJECT = "team/watched"
LOCAL = {"user": "local", "grants": [["", ["admin", "annotate", "delete", "read", "write"]]], "key_id": None}
Json = dict[str, Any]
EXISTS = {"$expr": {"$gt": [{"$getField": "inputs.n"}, {"$literal": 1}]}}


class Submitted:
    """Stands for the scoring queue: keeps one job per id, and refuses a number of times."""

    def __init__(self) -> None:
        self.jobs: dict[str, Json] = {}
        self.failures: list[Exception] = []
        self.full: set[str] = set()

    async def __call__(
        self,
        caller: Caller,
        project_id: str,
        call_ids: Sequence[str],
        scorer_refs: Sequence[str],
        *,
        trigger_ref: str | None = None,
        traced: bool = True,
        failed: bool = False,
        job_id: str | None = None,
    ) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if project_id in self.full:
            raise Busy("The queue of this project is full")
        assert job_id is not None
        job = {"caller": caller, "calls": list(call_ids), "scorers": list(scorer_refs), "traced": traced}
        self.jobs[job_id] = {**job, "project": project_id, "trigger": trigger_ref}

    def calls(self) -> list[str]:
        """Every call that was handed over, in order of handing."""
        return [call for job in self.jobs.values() for call in job["calls"]]


class Watch:
    """Monitors over the services, with a queue that only records."""

    def __init__(self, services: Services, trace: Trace) -> None:
        self.services, self.trace = services, trace
        self.queue = Submitted()
        self.monitors = Monitors(services.store, self.queue)

    async def monitor(self, name: str = "mon", **fields: Any) -> str:
        """Publish an active monitor."""
        head = {"_type": "Monitor", "_class_name": "Monitor", "_bases": ["Object", "BaseModel"], "active": True}
        scorer = f"weave:///{PROJECT}/object/judge:v0"
        return await self.trace.publish(name, {**head, "name": name, "scorers": [scorer], **fields})

    async def write(self, *, op: str = "answer", n: int = 5, call_id: str | None = None, **more: Any) -> str:
        """A whole call."""
        call = {
            "project_id": PROJECT,
            "id": call_id or str(uuid.uuid4()),
            "trace_id": "t" * 32,
            "op_name": f"weave:///{PROJECT}/op/{op}:abc",
            "started_at": "2026-01-01T00:00:00Z",
            "ended_at": "2026-01-01T00:00:01Z",
            "attributes": {},
            "inputs": {"n": n},
            "summary": {},
            **more,
        }
        await self.trace.post(f"/v2/{PROJECT}/calls/complete", batch=[call])
        return str(call["id"])

    async def settled(self, count: int) -> list[str]:
        """The calls that were handed over, once everything that was noted is handled."""
        async with asyncio.timeout(30):
            while len(self.queue.calls()) < count or await self.services.store.calls.take_endings(1):
                await asyncio.sleep(0.01)
        return self.queue.calls()


@pytest.fixture
async def watch(tmp_path: Path) -> Any:
    """A services whose own monitors are replaced by ones that only record."""
    async with running_services(tmp_path) as (services, client):
        await services.monitors.stop()
        made = Watch(services, Trace(client, PROJECT))
        await made.monitors.start()
        try:
            yield made
        finally:
            await made.monitors.stop()


pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server runs on asyncio."""
    return "asyncio"


async def test_only_matching_calls_are_chosen(watch: Watch) -> None:
    early = await watch.write()
    ref = await watch.monitor(op_names=["answer"], query=EXISTS)
    wanted = [await watch.write(), await watch.write()]
    await watch.write(op="other")
    await watch.write(n=1)
    await watch.write(attributes={"weave": {"kind": "scorer"}})
    assert sorted(await watch.settled(2)) == sorted(wanted)
    assert early not in watch.queue.calls()
    job = next(iter(watch.queue.jobs.values()))
    assert job["project"] == PROJECT
    assert job["caller"].scopes_in(PROJECT) >= {Scope.READ, Scope.WRITE}
    assert not job["caller"].reaches("team/other")
    assert job["trigger"].endswith(ref.rpartition("/")[2])


async def test_a_call_in_two_halves_counts_when_it_is_whole(watch: Watch) -> None:
    await watch.monitor(op_names=[f"weave:///{PROJECT}/op/answer:*"])
    call = str(uuid.uuid4())
    end = {"project_id": PROJECT, "id": call, "ended_at": "2026-01-01T00:00:01Z", "summary": {}}
    await watch.trace.post("/call/end", end=end)
    assert await watch.settled(0) == []
    start = {"project_id": PROJECT, "id": call, "trace_id": "t", "op_name": f"weave:///{PROJECT}/op/answer:1"}
    start |= {"started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": {}}
    await watch.trace.post("/call/start", start=start)
    assert await watch.settled(1) == [call]


async def test_the_sample_rate(watch: Watch) -> None:
    await watch.monitor(sampling_rate=0.3)
    calls = [await watch.write(call_id=f"{number:032x}") for number in range(200)]
    await watch.monitor("none", sampling_rate=0)
    last = await watch.write(call_id="f" * 32)
    found = await watch.settled(20)
    assert 35 < len(found) < 85
    assert set(found) <= {*calls, last}
    assert len(set(found)) == len(found)


async def test_switching_off_and_deleting(watch: Watch) -> None:
    await watch.monitor()
    first = await watch.write()
    await watch.settled(1)
    await watch.monitor(active=False)
    await watch.write()
    await watch.monitor("second")
    third = await watch.write()
    assert await watch.settled(2) == [first, third]
    await watch.trace.post("/obj/delete", project_id=PROJECT, object_id="second", digests=[])
    await watch.write()
    assert await watch.settled(2) == [first, third]


async def test_nothing_is_lost_or_doubled_when_the_queue_fails_or_the_server_dies(watch: Watch) -> None:
    await watch.monitor()
    await watch.monitors.stop()
    calls = [await watch.write() for _ in range(3)]
    store = watch.services.store
    taken = await store.calls.take_endings(2)
    assert [ending.call_id for ending in taken] == calls[:2]
    late = await watch.write()
    assert await store.calls.take_endings(500) == taken  # the same batch, whatever came meanwhile
    again = Monitors(store, watch.queue)
    await again.start()
    assert await watch.settled(4) == [*calls, late]
    await again.stop()
    # A second start over the same notes would make the same job ids; there are none left.
    before = dict(watch.queue.jobs)
    third = Monitors(store, watch.queue)
    await third.start()
    await third.stop()
    assert watch.queue.jobs == before


async def test_a_busy_queue_is_tried_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.evals.monitors.PAUSE_SECONDS", 0.05)
    await watch.monitor()
    watch.queue.failures = [Unavailable("not now"), Unavailable("not now")]
    call = await watch.write()
    assert await watch.settled(1) == [call]


async def test_scorers_that_cannot_run_are_shown(watch: Watch) -> None:
    await watch.monitor()
    watch.queue.failures = [InvalidRequest("judge is code")]
    await watch.write()
    await watch.settled(0)
    [state] = watch.monitors.states(watch.services.store and next(iter(watch.monitors._rules)))
    assert state.problem == "judge is code"
    await watch.monitor("odd", sampling_rate=2)
    await watch.monitor("words", active="yes")
    await watch.monitor("untraced", is_traced=0)
    problems = {item.name: item.problem for item in watch.monitors.states(state.project)}
    assert problems["odd"].startswith("sampling_rate")
    assert problems["words"] == "active must be true or false, got 'yes'"
    assert problems["untraced"] == "is_traced must be true or false, got 0"


async def test_a_thread_is_scored_once_it_is_quiet(watch: Watch) -> None:
    debounce = {"aggregation_field": "thread_id", "timeout_seconds": 0.3}
    await watch.monitor(scorer_debounce_config=debounce)
    for _ in range(3):
        await watch.write(thread_id="one")
    last = await watch.write(thread_id="one")
    other = await watch.write(thread_id="two")
    assert sorted(await watch.settled(2)) == sorted([last, other])
    assert await watch.services.store.monitor_waits.next_due() is None


async def test_turns_of_agents(watch: Watch) -> None:
    await watch.monitor(op_names=["weave.genai.turn_ended"])
    turn = str(uuid.uuid4())
    await watch.write(call_id=turn, thread_id="one", turn_id=turn)
    await watch.write(thread_id="one", turn_id=turn)
    assert await watch.settled(1) == [turn]


async def test_the_state_is_listed(watch: Watch) -> None:
    await watch.monitor()
    watch.services.monitors = watch.monitors
    await watch.monitor("off", active=False)
    await watch.write()
    await watch.settled(1)
    found = (await watch.trace.post("/monitors/query", project_id=PROJECT))["monitors"]
    assert [(item["name"], item["active"], item["problem"], item["submitted"]) for item in found] == [
        ("mon", True, None, 1),
        ("off", False, None, 0),
    ]


async def test_a_rule_that_cannot_be_applied_holds_up_no_other(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the store can run: known only when calls are looked for."""
    calls = watch.services.store.calls
    stream = calls.stream

    def refusing(query: Any) -> Any:
        if "heavy" in repr(query):
            raise InvalidRequest("The query is too complex")
        return stream(query)

    monkeypatch.setattr(calls, "stream", refusing)
    query = {"$not": [{"$eq": [{"$getField": "inputs.n"}, {"$literal": "heavy"}]}]}
    await watch.monitor("deep", query={"$expr": query})
    await watch.monitor("plain")
    call = await watch.write()
    assert await watch.settled(1) == [call]
    states = {state.name: state for state in watch.monitors.states(refs.internal_project(PROJECT))}
    assert "too complex" in str(states["deep"].problem)
    assert states["plain"].problem is None and states["plain"].submitted == 1


async def test_numbers_that_no_float_holds_do_not_stop_the_monitors(watch: Watch) -> None:
    ref = await watch.monitor(sampling_rate=1.0, note=10**400, count=10**30)
    found = await watch.trace.post("/obj/read", project_id=PROJECT, object_id="mon", digest=ref.rpartition(":")[2])
    assert found["obj"]["val"]["note"] is None and found["obj"]["val"]["count"] == 10**30
    await watch.monitors.refresh()
    call = await watch.write()
    assert await watch.settled(1) == [call]


async def test_a_project_whose_queue_is_full_holds_up_no_other(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.evals.monitors.PAUSE_SECONDS", 0.05)
    other = Trace(watch.trace.client, "team/free")
    await watch.monitor()
    head = {"_type": "Monitor", "_class_name": "Monitor", "_bases": ["Object", "BaseModel"], "active": True}
    await other.publish("free", {**head, "scorers": ["weave:///team/free/object/judge:v0"]})
    watch.queue.full = {PROJECT}
    blocked = await watch.write()
    call = {"id": str(uuid.uuid4()), "trace_id": "t", "op_name": "op", "attributes": {}, "inputs": {}, "summary": {}}
    call |= {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z", "project_id": "team/free"}
    await other.post("/v2/team/free/calls/complete", batch=[call])
    async with asyncio.timeout(30):
        while watch.queue.calls() != [call["id"]]:
            await asyncio.sleep(0.01)
    watch.queue.full = set()
    assert await watch.settled(2) == [call["id"], blocked]


async def test_of_two_readings_at_once_the_later_one_counts(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has read the monitors before there was one, and goes on after the second could have ended."""
    store, goes_on = watch.services.store, asyncio.Event()
    before = await store.objects.latest_of_class(MONITOR_CLASS)
    await watch.monitor()
    readings = [before, await store.objects.latest_of_class(MONITOR_CLASS)]

    async def number(_: str) -> int:
        return 1

    async def latest(_: str) -> Any:
        is_first, found = len(readings) == 2, readings.pop(0)
        if is_first:
            await goes_on.wait()
        return found

    monkeypatch.setattr(store.changes, "number", number)
    monkeypatch.setattr(store.objects, "latest_of_class", latest)
    both = [asyncio.create_task(watch.monitors.refresh()) for _ in range(2)]
    for _ in range(20):
        await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(*both)
    assert [state.name for state in watch.monitors.states(refs.internal_project(PROJECT))] == ["mon"]


async def test_a_monitor_that_cannot_score_is_logged_once(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """Not with each monitor that is stored later; and what is large in it is cut."""
    await watch.monitor("bad", sampling_rate="x" * 1_000_000)
    for name in ("one", "two"):
        await watch.monitor(name)
    told = [record.getMessage() for record in caplog.records if record.name == "heddle.monitors"]
    assert len(told) == 1 and told[0].startswith(
        "monitor bad does not score: sampling_rate must be between 0 and 1, got 'xxx"
    )
    assert len(told[0]) < 300


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_monitor_that_is_off_or_gone_scores_no_more(watch: Watch, is_deleted: bool) -> None:
    """What waits in the queue ends, too: each score may cost money."""
    call, scorer = await watch.write(output="{}"), await watch.trace.scorer("ValidJSONScorer")
    ref, caller = await watch.monitor(scorers=[scorer]), Caller.from_json(LOCAL)
    scoring, jobs = watch.services.scoring, watch.services.jobs

    async def ended() -> tuple[str, str | None, Json | None]:
        job = await scoring.submit(caller, PROJECT, [call], [scorer], trigger_ref=refs.to_internal(ref))
        found = await jobs.wait(PROJECT, job.id)
        return found.state, found.error, found.result

    assert await ended() == ("succeeded", None, {"scored": 1, "skipped": 0, "failed": 0})
    if is_deleted:
        await watch.trace.post("/obj/delete", project_id=PROJECT, object_id="mon")
        assert await ended() == ("cancelled", "The monitor mon was deleted", None)
    else:
        await watch.monitor(scorers=[scorer], active=False)
        assert await ended() == ("cancelled", "The monitor mon was switched off", None)

"""The control tables on SQLite and on PostgreSQL: the same work has the same answers.

Each story below runs on both; the routes of every group are tested on both by `make test-scale`.
"""

import asyncio
import dataclasses
import math
import random
import re
import string
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.base import ControlGroups
from heddle.store.control import pending_calls
from heddle.store.control.agents.aggregates import Ranges, SpanAggregate
from heddle.store.control.agents.fields import SpanFilter
from heddle.store.control.annotation_queues import ItemFilter, ItemRow, QueueRow
from heddle.store.control.audit import AuditQuery
from heddle.store.control.costs import PriceRow
from heddle.store.control.eval_jobs import JobRow as EvalJob
from heddle.store.control.eval_jobs import ReplayItem
from heddle.store.control.feedback import SPANS, STRUCTURES
from heddle.store.control.feedback import feedback as feedback_table
from heddle.store.control.inference import AdapterRow, QuotaCount, Used
from heddle.store.control.links import LinkRow, SourceRow
from heddle.store.control.log_records import remove_of_spans
from heddle.store.control.monitors import Waiting
from heddle.store.control.objects import NewVersion, ObjectFilter
from heddle.store.control.projects import RuntimeRow
from heddle.store.control.redaction import RejectionRow
from heddle.store.control.responses import ConversationRow, ResponseRow
from heddle.store.control.row_queries import RowRequest, Sort
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.control.tinker import RequestRow, RunRow, SamplerRow, SavedRow, SessionRow
from heddle.store.control.training import EventRow
from heddle.store.control.training import JobRow as TrainJob
from heddle.store.control.training_models import CheckpointRow, ModelRow
from heddle.store.postgres.control import open_control
from heddle.store.query.compiler import Kind
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteControl, open_file
from heddle.wire import query, refs, table_rows, times
from heddle.wire.aggregates import Measure, Value
from heddle.wire.calls import UniformRun
from heddle.wire.metric_series import Bin, Figures, MetricKind, Sample, Series
from heddle.wire.records import VersionLabels
from heddle.wire.spans import AgentSpan, StoredRecord
from tests.support.postgres import PostgresServer

Story = Callable[[ControlGroups], Awaitable[list[Any]]]
STORIES: list[Story] = []
_P = "cHJvamVjdA"


def story(told: Story) -> Story:
    """Let a story be told on both."""
    STORIES.append(told)
    return told


@story
async def the_longest_keys(store: ControlGroups) -> list[Any]:
    """What routes let through fits into the rows of every index; random letters cannot be compressed."""
    chance = random.Random(0)

    def text(length: int) -> str:
        return "".join(chance.choices(string.ascii_letters, k=length))

    project = refs.internal_project(f"e/{text(refs.MAX_PROJECT_LENGTH - 2)}")
    name, other, third = (text(refs.MAX_ID_BYTES) for _ in range(3))
    source = SourceRow("s1", project, text(512), "v", text(128), "call", name, other, None, "me", 1, 1)
    found: list[Any] = await store.dataset_sources.link([source])
    await store.inference.add(Used(project, 1, name, key=times.uuid7(), user=text(1024)))
    feedback = {column.name: "" for column in feedback_table.c if column.name != "seq"}
    feedback |= {"project": project, "id": third, "weave_ref": text(refs.MAX_REF_BYTES), "created_at": 1}
    feedback |= dict.fromkeys(STRUCTURES, "{}")
    await store.feedback.create([feedback])
    return [len(found), [row["id"] for row in (await store.feedback.query(project, RowRequest(["id"]))).rows]]


@story
async def the_largest_numbers(store: ControlGroups) -> list[Any]:
    """Sums beyond the largest float are infinite, which no answer shows; PostgreSQL refuses them by itself."""
    given = {
        "up": [1e308, 1.7e308, 1.0],
        "down": [-1.7e308, -1e308],
        "far": [-1.7e308, 1e-300, 1.7e308, 1e-9],
        "few": [0.5],
    }
    given["wide"] = [0.0, 1e-300, 5e-324, 1e300]
    attribute = Value("x", "custom_attrs_float")
    measures = [Measure(name, name, attribute) for name in ("sum", "avg", "total", "min", "max", "count")]
    found: list[Any] = []
    for name, numbers in given.items():
        project = refs.internal_project(f"e/{name}")
        spans = [
            AgentSpan(project, "t", f"s{n}", n, n, custom_attrs_float={"x": number}) for n, number in enumerate(numbers)
        ]
        await store.agent_spans.write(spans)
        request = SpanAggregate(SpanFilter(project), measures)
        rows, _ = await store.agent_spans.groups(request)
        values = rows[0].values
        assert values["count"] == len(numbers)
        if name in ("up", "down"):
            assert values["sum"] == values["avg"] == values["total"] == (math.inf if name == "up" else -math.inf)
        ranges = await store.agent_spans.by_range(SpanAggregate(SpanFilter(project)), attribute, Ranges(5))
        found += [values, [(one.low, one.high, one.values) for one in ranges]]
    series = Series(_P, "cost", MetricKind.SUM, "1", "{}", "d")
    at = 1_600_000_000 * 10**9
    samples = [Sample(series, "s", at, at + n * 60 * 10**9, False, Figures(0, 1.7e308)) for n in (1, 2, 3)]
    await store.metric_series.write(samples, 5)
    run = UniformRun(0, at // 1000, 10**12, at // 1000, at // 1000 + 10**12)
    points = [await store.metric_series.points(_P, [series.id], [run], with_bins=bins) for bins in (False, True)]
    assert points[0][0].figures.total == sys.float_info.max
    return [*found, *points]


@pytest.mark.parametrize("told", STORIES, ids=lambda told: told.__name__)
def test_both_tell_the_same(told: Story, postgres: PostgresServer, tmp_path: Path) -> None:
    async def on_sqlite() -> list[Any]:
        settings = Settings(data=str(tmp_path))
        path = tmp_path / DATABASE
        control = SqliteControl(settings, path, open_file(settings, path))
        try:
            return await told(_groups(control))
        finally:
            await control.close()

    async def on_postgres() -> list[Any]:
        control = await open_control(Settings(control=postgres.new_database()))
        try:
            return await told(_groups(control))
        finally:
            await control.close()

    ours, theirs = _plain(asyncio.run(on_sqlite())), _plain(asyncio.run(on_postgres()))
    assert theirs == ours
    assert any(ours), "the story says nothing"


def _groups(control: Any) -> ControlGroups:
    return ControlGroups(control.executor, control.keys, control.spans, ControlRowTexts(control.executor))


def _plain(value: Any) -> Any:
    """What a story told, without instants and names of servers, which differ from run to run."""
    text = orjson.dumps(value, default=_shown, option=orjson.OPT_NON_STR_KEYS).decode()
    text = re.sub(r"\b1[789]\d{14}\b|\b20\d\d-\d\d-\d\dT2?\d+:\d\d:\d\d\.\d{6}Z", "0", text)
    return orjson.loads(re.sub(r'"lease_owner":"[^"]*"', '"lease_owner":"me"', text))


def _shown(value: Any) -> Any:
    if isinstance(value, sa.Row):
        return dict(value._mapping)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [type(value).__name__, str(value)]


async def _told(work: Awaitable[Any]) -> Any:
    """What it comes to, or how it was refused."""
    try:
        return await work
    except HeddleError as error:
        return f"{type(error).__name__}: {error.reason}"


@story
async def objects(store: ControlGroups) -> list[Any]:
    for number, name in enumerate(("b", "B", "a", "é", "b", "b")):
        digest = f"{number:043}" if number != 4 else f"{0:043}"
        base = "Model" if name == "b" else None
        new = NewVersion(_P, "object", name, digest, f'{{"n":{number}}}', 9, base, None, "me")
        await store.objects.create(new)
    found: list[Any] = [
        [page async for page in store.objects.pages(_P, ObjectFilter(), sort=[("object_id", down)])]
        for down in (False, True)
    ]
    other = NewVersion(_P, "object", "b", "9" * 43, "{}", 2, "Dataset", None, "me")
    found.append(await _told(store.objects.create(other)))
    await store.objects.set_aliases(_P, "b", f"{0:043}", ["prod", "latest"], "me")
    await store.objects.add_tags(_P, "b", f"{5:043}", ["x", "a", "x"], "me")
    await store.objects.add_tags(_P, "b", f"{5:043}", ["x"], "me")
    for name, number, tags in (("a", 2, ["t", "u"]), ("b", 5, None)):
        again = NewVersion(_P, "object", name, f"{number:043}", "{}", 2, "Model" if name == "b" else None, None, "me")
        await store.objects.create(dataclasses.replace(again, labels=VersionLabels(["named"], tags)))
    stale = NewVersion(_P, "object", "b", "8" * 43, "{}", 2, "Model", None, "me", after=f"{5:043}")
    found += [
        await _told(store.objects.create(stale)),
        await _told(store.objects.create(dataclasses.replace(stale, after=""))),
    ]
    found.append(await store.objects.read(_P, "b", "prod", with_labels=True))
    found.append(await store.objects.delete(_P, "b", ["v0"], "me"))
    found.append(await _told(store.objects.delete(_P, "b", ["v0", "v1"], "me")))
    newest_first = [("object_id", False), ("version_index", True)]
    found.append([page async for page in store.objects.pages(_P, ObjectFilter(), sort=newest_first)])
    found.append([await store.objects.total_size(_P), await store.objects.tags(_P), await store.objects.aliases(_P)])
    found.append(await store.objects.latest_of_class("Model"))
    found.append(await store.objects.latest.digests(_P, "object", ["b", "a", "nothing"]))
    return [
        *found,
        [(row.user, row.action, row.project, row.details) for row in await store.audit_log.query(AuditQuery(), 100)],
        await store.projects.exists(_P),
        await store.projects.stored_bytes(_P),
    ]


@story
async def tables(store: ControlGroups) -> list[Any]:
    rows = {
        f"{number:043}": orjson.dumps({"n": number * 7 % 11, "t": f"{number}\x00é"}).decode() for number in range(2500)
    }
    names = list(rows)
    for _ in range(2):
        await store.tables.create(_P, "t1", [*names, names[0]], rows)
    await store.tables.create(_P, "t2", ["absent", *names[:3]], {})
    keys = [table_rows.parse_sort("n", True)]
    found: list[Any] = [await store.tables.query(_P, "t1", limit=3, offset=1998)]
    found.append(await store.tables.query(_P, "t1", sort=keys, limit=5, offset=2))
    found.append(await store.tables.query(_P, "t1", sort=keys, row_digests=names[:9]))
    found.append(await store.tables.query(_P, "t2"))
    found.append(await store.tables.stats(_P, ["t1", "t2", "no"], True))
    found.append(await store.tables.digests_at(_P, "t1", [0, 2500, 1000]))
    return [*found, await store.tables.total_size(_P), await store.tables.count(_P, "no")]


_EMPTY = dict.fromkeys(column.name for column in feedback_table.columns if column.name != "seq")
_EMPTY |= {"project": _P, "wb_user_id": "me", "feedback_type": "t", **SPANS}
_EMPTY |= {name: "[]" if kind is Kind.TEXTS else "{}" for name, kind in STRUCTURES.items()}


@story
async def feedback(store: ControlGroups) -> list[Any]:
    payloads = ({"a": 1}, {"a": "x", "b": [1]}, {"a": 2.5}, {"a": None}, {"a\u0000": "\u0000"}, {"a": 10**15, "%": "%"})
    rows = []
    for number, payload in enumerate(payloads):
        row = _EMPTY | {"id": f"f{number}", "weave_ref": f"ref{number % 2}", "created_at": number * 10**6}
        row["creator"] = "ours" if number % 3 else None
        rows.append(row | {"payload": orjson.dumps(payload).decode(), "scorer_ratings": f'{{"a b":{number}.5}}'})
    await store.feedback.create(rows)
    found: list[Any] = [await store.feedback.query(_P, RowRequest())]
    for sort in ("payload.a", "id", "created_at", "payload", "scorer_ratings.a b"):
        for down in (False, True):
            request = RowRequest(fields=["id", "payload.a"], sort_by=[Sort(sort, down)])
            found.append((await store.feedback.query(_P, request)).rows)
    for expression in (
        {"$eq": [{"$getField": "payload.a"}, {"$literal": 1}]},
        {"$gt": [{"$getField": "payload.a"}, {"$literal": 1.5}]},
        {"$contains": {"input": {"$getField": "payload"}, "substr": {"$literal": "%"}}},
        {"$in": [{"$getField": "weave_ref"}, [{"$literal": "ref1"}, {"$literal": "\x00"}]]},
        {"$not": [{"$eq": [{"$convert": {"input": {"$getField": "payload.a"}, "to": "string"}}, {"$literal": "x"}]}]},
    ):
        request = RowRequest(fields=["id"], query=query.parse_stored({"$expr": expression}))
        found.append((await store.feedback.query(_P, request)).rows)
    about = [row["weave_ref"] for row in (await store.feedback.query(_P, RowRequest(fields=["weave_ref"]))).rows]
    for creator in ("nobody", "ours"):
        found.append(sorted(await store.feedback.targets_of(_P, [*about, "unknown"], creator)))
        await store.feedback.move(_P, {about[0]: "moved", "unknown": "x"}, creator)
        found.append((await store.feedback.query(_P, RowRequest(fields=["id", "weave_ref"]))).rows)
    found.append(await store.feedback.purge(_P, ["f0", "f1", "unknown"], "me"))
    found.append(await store.feedback.query(_P, RowRequest(fields=["count(*)"])))
    targets = [("call", 1), ("call", 4), ("call", 5), ("object", 1)]
    rows = [
        _EMPTY
        | {"id": f"{kind}{at}", "created_at": at, "payload": "{}"}
        | {"weave_ref": f"{refs.INTERNAL}{_P}/{kind}/x"}
        for kind, at in targets
    ]
    await store.feedback.create([*rows, rows[0] | {"project": "q"}])
    assert [await store.feedback.purge_older(_P, 5) for _ in range(2)] == [2, 0]
    left = [(await store.feedback.query(project, RowRequest(fields=["id"]))).rows for project in (_P, "q")]
    assert {row["id"] for row in left[0]} >= {"call5", "object1"} and len(left[0]) == 6 and len(left[1]) == 1
    return [*found, left]


@story
async def queues_that_are_deleted_meanwhile(store: ControlGroups) -> list[Any]:
    queues = store.annotation_queues
    await queues.create(QueueRow("q", _P, "Q", "", [], 1, "me", 1))
    items = [ItemRow(f"i{n}", _P, "q", f"c{n}", 1, None, "op", "t", [], "me", n, n) for n in range(3)]
    found: list[Any] = [await queues.add(_P, "q", items[:2]), await queues.add(_P, "q", items[:2])]
    label = _EMPTY | {"id": "f", "weave_ref": "r", "creator": None, "created_at": 1, "payload": "{}", "queue_id": "q"}
    await store.feedback.create([label])
    found.append(await queues.is_live(_P, "q"))
    await queues.delete(_P, "q", "me")
    found.append(await queues.is_live(_P, "q"))
    assert found[-2:] == [True, False]
    # What was checked before the deletion must not be stored after it.
    for write in (
        queues.add(_P, "q", items),
        queues.progress(_P, "q", "i0", "me", "completed", lambda _: True),
        store.feedback.create([label | {"id": "g"}]),
        store.feedback.create([label | {"id": "g", "project": "other"}]),
    ):
        with pytest.raises(HeddleError, match="Queue q not found") as refused:
            await write
        found.append((refused.value.status, refused.value.reason))
    found += [await queues.items(_P, "q", ItemFilter({}), ()), await queues.stats(_P, ["q"])]
    assert [item.annotation_state for item in found[-2]] == ["unstarted"] * 2
    return [*found, (await store.feedback.query(_P, RowRequest(fields=["id"]))).rows]


@story
async def prices_and_usage(store: ControlGroups) -> list[Any]:
    prices = [
        PriceRow(f"c{n}", model, "p", n, 1e-7 * n, 0.25, 0.0, 1e22, "USD", "USD", "me", n)
        for n, model in enumerate(("m", "M", "m"))
    ]
    await store.costs.create(_P, prices)
    found: list[Any] = [await store.costs.project_rows(_P)]
    for sort in ("llm_id", "prompt_token_cost", "effective_date"):
        found.append(await store.costs.query(_P, RowRequest(sort_by=[Sort(sort, True)])))
    found.append(await store.costs.purge(_P, ["c0", "no"], "me"))
    for number in range(6):
        used = Used(
            _P,
            20_000 + number % 2,
            "m",
            user=f"u{number % 3}",
            prompt_tokens=2**40,
            seconds=0.3,
            completion_tokens=number,
        )
        await store.inference.add(used)
    found.append(await store.inference.usage((20_000, 20_001), ["day", "user"]))
    found.append(await store.inference.usage((20_000, 20_001), [], [_P]))
    found.append(await store.inference.usage((1, 2), []))
    await store.inference.set_limit("project", "a/b", 3, None, "me", "all requests 5/day")
    ended = QuotaCount("key", "k", "all requests second", 1, 2, 1)
    used = [
        QuotaCount("project", "a/b", "calls bytes day", 0, 2**40, 2**40),
        QuotaCount("key", "k", "all", 0, 2**40, -3),
    ]
    found += [await store.meters.count([ended, *used]), await store.meters.counts(1), await store.meters.count(used)]
    found += [await store.meters.counts(1), await store.meters.counts(2**40)]
    return [*found, await store.inference.limits(), await store.inference.projects(0, 30_000)]


@story
async def jobs(store: ControlGroups) -> list[Any]:
    found: list[Any] = []
    for number in range(3):
        job = EvalJob(
            id=f"j{number}", kind="run", project_id="a/b", body={"n": number}, caller={"user": "me"}, created_at=number
        )
        found.append(await _told(store.eval_jobs.add(job, 2)))
    found.append(await store.eval_jobs.take(["run"], 5))
    await store.eval_jobs.note("j0", {"done": 1})
    found.append(await store.eval_jobs.ask_to_cancel("a/b", "j1"))
    found += [await store.eval_jobs.take(["run"], 5, only_cancelled=True), await store.eval_jobs.take(["run"], 5)]
    found += [await store.eval_jobs.finish("j0", "succeeded", 9, result={"x": "\x00"}, error=None)]
    found += [
        await store.eval_jobs.put_back("j1", not_before=7, error="again"),
        await store.eval_jobs.next_time(["run"]),
    ]
    found += [
        await store.eval_jobs.query("a/b"),
        sorted((await store.eval_jobs.count_open()).items()),
        await store.eval_jobs.forget_older(10),
    ]
    await store.replays.choose("j1", [f"call{number}" for number in range(2100)])
    await store.replays.decide([ReplayItem("j1", number, "", "failed", "no") for number in range(3)])
    found += [await store.replays.left("j1", 2), await store.replays.page("j1", ["failed"], 2, 1)]
    return [*found, await store.replays.counts("j1"), await store.leases.take("tidy", 5.0)]


@story
async def responses(store: ControlGroups) -> list[Any]:
    def row(number: int, **fields: Any) -> ResponseRow:
        body = {"output": [{"id": f"out{number}", "text": "\x00é"}], "status": "completed"}
        given = {"id": f"r{number}", "owner": _P, "thread_id": "r0", "status": "completed", "created_at": 10 + number}
        return ResponseRow(**{**given, "body": body, "input": [{"id": f"in{number}"}], **fields})

    conversation = ConversationRow(id="c0", owner=_P, metadata={"a": "b"}, created_at=1, changed_at=1)
    await store.conversations.add(conversation, [{"id": "first"}])
    await store.responses.store(row(0), None)
    await store.responses.store(row(1, previous_id="r0"), "c0")
    await store.responses.add(row(2, previous_id="r1", status="queued"), 9)
    found: list[Any] = [await store.responses.chain(_P, "r2"), await store.responses.chain("other", "r2")]
    found += [await store.responses.count_open(_P), await store.responses.renew(["r0", "r2"])]
    await store.responses.begin(row(2, body={"output": [], "status": "in_progress"}))
    await store.responses.ask_to_cancel(_P, "r2")
    found += [await store.responses.renew(["r2"]), await store.responses.cut()]
    await store.responses.finish(row(2, status="cancelled"), "c0")
    found += [await store.responses.find(_P, "r2"), await store.responses.find("other", "r2")]
    # Each has spaces of its own in JSON.
    found += [await store.responses.chain_chars(_P, "r2") > 0, await store.conversations.chars("c0") > 0]
    found += [await store.conversations.items("c0"), await store.conversations.remove_item(_P, "c0", "first", "me")]
    found += [await store.conversations.update(_P, "c0", {}), await store.conversations.update("other", "c0", {})]
    found += [await store.responses.forget_older(12), await store.responses.delete("other", "r0", "me")]
    found += [await store.responses.delete(_P, "r0", "me"), await store.responses.chain(_P, "r2")]
    found += [await store.responses.forget_older(13), await store.conversations.find(_P, "c0")]
    return [*found, await store.conversations.delete(_P, "c0", "me")]


@story
async def training(store: ControlGroups) -> list[Any]:
    found: list[Any] = []
    for name in ("m0", "m1"):
        first = CheckpointRow(name, name, 0, None, None, name, "digest", 1, {}, 1)
        await store.train_models.create(ModelRow(name, "e", "p", name, "base", None, {}, 1, "me"), first)
    late = ModelRow("m2", "e", "p", "m0", "base", None, {}, 1, "me")
    found.append(
        await _told(store.train_models.create(late, CheckpointRow("c2", "m2", 0, None, None, "m2", "d", 1, {}, 1)))
    )
    # What was never known is removed without a trace in the audit log.
    assert await store.train_models.delete(late, 2, "me") == []
    assert [row.action for row in await store.audit_log.query(AuditQuery(), 100)] == ["train_model.create"] * 2
    for number, model in enumerate(("m0", "m1", "m0", "m1", "gone")):
        job = TrainJob(
            id=f"j{number}",
            model_id=model,
            kind="rl",
            config={"n": 1},
            payload="blob",
            created_at=number,
            created_by="me",
        )
        found.append(await _told(store.train_jobs.add(job, 5)))
    found += [await store.train_jobs.lease(10, 30.0), await store.train_jobs.lease(10, 30.0)]
    found.append(await store.train_jobs.lease(10, 30.0))
    await store.train_jobs.update("j0", step=1, metrics={"loss": 0.5})
    for number in range(2):
        event = EventRow("j0", number, f"e{number}", "gradient_step", {"loss": 1e-9}, number)
        found.append(await store.train_jobs.add_event(event, number))
    found.append(await store.train_jobs.add_event(EventRow("j0", 1, "e1", "gradient_step", {}, 3), 1))
    await store.train_jobs.ask_to_cancel("j1")
    found += [await store.train_jobs.read_held(), await store.train_jobs.events("j0", 0)]
    found += [
        await store.train_jobs.open(),
        await store.train_jobs.release_all_leases(),
        await store.train_jobs.runs(["m0", "m1"]),
    ]
    row = AdapterRow("e", "p", "n", 1, "base", "folder", 1, "me")
    await store.adapters.add(row)
    await store.adapters.point(("e", "p", "n"), 1)
    return [*found, await store.adapters.all(), list(await store.adapters.pointers())]


@story
async def runs_of_tinkers_protocol(store: ControlGroups) -> list[Any]:
    """Steps of a run are those of a job, which ends with the run; what was drawn from its weights is found."""
    model = ModelRow("m", "e", "p", "n", "base", None, {}, 1, "me")
    await store.train_models.create(model, CheckpointRow("c", "m", 0, None, None, "folder", "digest", 1, {}, 1))
    about: dict[str, Any] = {"entity": "e", "project": "p", "key_id": None, "about": {}, "created_by": "me"}
    await store.tinker.add_session(SessionRow(id="s", **about, created_at=1, seen_at=50))
    run = RunRow(id="s:train:0", model_id="m", session_id="s", lora={}, user_metadata=None, created_at=1, seen_at=1)
    await store.tinker.add_run(
        run, RequestRow(id="made", target=run.id, seq=0, kind="create_model", state="succeeded", body=b"", created_at=1)
    )
    path = f"tinker://{run.id}/sampler_weights/a"
    for sampler, follows in (("s:sample:1", None), ("s:sample:2", run.id)):
        await store.tinker.add_sampler(
            SamplerRow(id=sampler, session_id="s", base_model="base", path=path, follows=follows)
        )
    saved = SavedRow(
        path=path, run_id=run.id, kind="sampler", step=1, bytes=1, user_metadata=None, expires_at=None, created_at=1
    )
    await store.tinker.add_saved(saved)
    queue, found = store.tinker_requests, list[Any]()
    for target in ("s:sample:1", "s:sample:2"):
        await queue.add(RequestRow(id=f"{target}:0", target=target, seq=0, kind="sample", body=b"asked", created_at=1))
        drawn = await queue.lease(2, 30.0, (), samples=True)
        assert drawn is not None
        await queue.finish(drawn, 7, b"drawn")
    found += [
        [step for *_, step in await queue.samples_of(run, 7)],
        [step for *_, step in await queue.samples_of(run, 8)],
    ]
    for seq, kind in ((1, "optim_step"), (2, "load_weights"), (3, "optim_step")):
        await queue.add(RequestRow(id=f"r{seq}", target=run.id, seq=seq, kind=kind, body=b"", created_at=1))
        row = await queue.lease(2, 30.0, (), samples=False)
        assert row is not None and row.seq == seq
        settings = {"settings": {"learning_rate": seq}}
        made = {"config": settings, "metrics": {"a": seq}, "created_at": 1, "created_by": "me"}
        job = TrainJob(id="j", model_id="m", kind="tinker", state="running", payload="", **made)
        event = EventRow("j", seq, f"e{seq}", "gradient_step", settings, 5)
        found.append(await queue.finish(row, 9, b"{}", step=None if kind == "load_weights" else (job, event)))
        if seq == 1:
            found.append(await queue.finish(row, 9, b"{}", step=(job, event)))
    found += [await queue.has_loaded(run.id, 1), await queue.has_loaded(run.id, 2)]
    jobs = store.train_jobs
    found += [await jobs.last_step("j", 3), await jobs.last_step("j", 1), await jobs.count_steps("j", 0, 9)]
    found += [await jobs.lease(10, 30.0), await jobs.release_all_leases(), await jobs.open()]
    for unseen_since in (40, 60, 60):
        await store.tinker.end_jobs(70, unseen_since)
        found += [await jobs.find("j"), await jobs.events("j")]
    return found


@story
async def small_groups(store: ControlGroups) -> list[Any]:
    await store.files.create(_P, "n\x00ame", "d", 2**40, "blob")
    await store.files.create(_P, "other", "d", 1, "blob2")
    found: list[Any] = [
        await store.files.find(_P, "d"),
        await store.files.total_size(_P),
        await store.files.find(_P, "x"),
    ]
    for number in range(2):
        await store.runtimes.apply(
            RuntimeRow(_P, "r", f"http://{number}", None, {"a": "b"}, {"m": number}, number, "me")
        )
    found.append(await store.runtimes.all(_P))
    link = LinkRow("registry", "portfolio", "ref", "d", 1, "me")
    await store.registry.link(link)
    await store.registry.link(link)
    found.append(await store.registry.links("registry"))
    source = SourceRow("s1", _P, "set", "d", "row", "call", "c1", "t1", None, "me", 1, 1)
    found.append(await store.dataset_sources.link([source, dataclasses.replace(source, id="s2", link_metadata="{}")]))
    found.append(await store.dataset_sources.delete(_P, ["s1"], "me", 5))
    found.append(await store.dataset_sources.of_sources(_P, [source.source], True))
    waits = [Waiting(_P, "m", group, f"c{number}", number) for number, group in enumerate(("g", "h", "g"))]
    await store.monitor_waits.put(waits, lambda _: None)
    found += [await store.monitor_waits.due(5, 10), await store.monitor_waits.next_due()]
    await store.monitor_waits.remove(waits[:2])
    found.append(await store.monitor_waits.due(5, 10))
    # One that was read before the same call ended again.
    await store.monitor_waits.put([dataclasses.replace(waits[2], due_at=9)], lambda _: None)
    await store.monitor_waits.remove([waits[2]])
    assert await store.monitor_waits.next_due() == 9
    await store.projects.set_retention(_P, 7, "me")
    await store.projects.make(_P, "said")
    found += [await store.projects.with_retention(), await store.projects.description(_P)]
    await store.ping()
    await store.control.write(
        lambda connection: pending_calls.note_ended(connection, [(_P, "c1"), ("q", "c2"), (_P, "c3")])
    )
    ended = pending_calls.EndedCalls(store.control)
    found += [await ended.take(1, []), await ended.take(5, [_P]), await ended.count()]
    await ended.drop(await ended.take(2, []))
    return [*found, await ended.take(5, [])]


@story
async def telemetry(store: ControlGroups) -> list[Any]:
    begin = 1_600_000_000 * 10**9
    bins = (Bin(None, 1.0, 2), Bin(1.0, None, 3))
    shapes = {"cost": Figures(0, 0.5), "seconds": Figures(5, 7.5, 0.25, 4.0, bins), "level": Figures(1, 2.0, 2.0, 2.0)}
    kinds = {"cost": MetricKind.SUM, "seconds": MetricKind.HISTOGRAM, "level": MetricKind.GAUGE}
    samples = [
        Sample(Series(_P, name, kinds[name], "1", f'{{"model":"m{n}"}}', "d"), "s", begin, at, True, figures)
        for name, figures in shapes.items()
        for n in range(2)
        for at in (begin + 1, begin + 10**9)
    ]
    left = await store.metric_series.write(samples, 5)
    rows = await store.metric_series.all(_P)
    run = UniformRun(3, begin // 1000 - 7, 60_000_000, begin // 1000 - 7, begin // 1000 + 10**9)
    names = [row.series for row in rows]
    found: list[Any] = [left, rows, await store.metric_series.points(_P, names, [run], with_bins=True)]
    found.append(sorted(await store.metric_series.points(_P, names, [run])))
    found.append(await store.metric_series.purge_older(_P, begin))
    records = [StoredRecord(_P, "t", f"s{n % 2}", f"r{n}", 9 - n, "me", '{"a":1}') for n in range(4)]
    for _ in range(2):
        await store.log_records.add(records, 10**12)
    await store.log_records.add([StoredRecord(_P, "old", "", "r", 1, "me", "{}")], -1)
    await store.log_records.add([StoredRecord("q", "t", "s", "r", 1, "me", "{}")], 10**12)
    found.append(await store.log_records.read([(_P, "t"), ("q", "t"), (_P, "old"), (_P, "none")]))
    await store.control.write(lambda connection: remove_of_spans(connection, _P, ["t"], ["s1", "none"]))
    rows = [RejectionRow(_P, "traces", cause, 2, at, f"m{at}") for cause in ("a", "b") for at in (5, 7)]
    await store.rejections.add([*rows, RejectionRow("q", "traces", "a", 1, 9, "other")])
    await store.rejections.add([])
    found += [await store.rejections.of_project(_P, 7), await store.rejections.of_project(_P, 8)]
    assert [(row.cause, row.count, row.message) for row in found[-2]] == [("a", 4, "m7"), ("b", 4, "m7")]
    found += [await store.log_records.read([(_P, "t")]), await store.log_records.purge_older(_P, 1)]
    return [*found, await store.log_records.spans([(_P, "t"), ("q", "t")])]

"""What a purge removes from the control tables: rows that name the subject, and no others, however many they are."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from heddle.store.control import erasure
from heddle.store.control.agents.table import agent_spans
from heddle.store.control.audit import AuditQuery, audit, audit_log
from heddle.store.control.erasure import ERASED_USER, Counts, Erasure, NamedIn
from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.feedback import feedback
from heddle.store.control.log_records import log_records
from heddle.store.control.metric_series import METRIC_TABLES
from heddle.store.control.project_tables import PROJECT_TABLES, Condition, ProjectTable
from heddle.store.control.repository import metadata
from heddle.store.control.training import train_events, train_jobs
from heddle.store.control.training_models import TrainModels, train_logs, train_models
from heddle.wire import refs
from tests.support import planted
from tests.support.memory import MemoryExecutor

T = TypeVar("T")
OWN, OTHER = "team/own", "team/other"
PROJECT = refs.internal_project(OWN)


@pytest.fixture
def executor() -> MemoryExecutor:
    """A row in every table of one project and of another, each with a name of its own in all its texts."""
    executor = MemoryExecutor()

    def work(connection: sa.Connection) -> None:
        for project, marker in ((OWN, "zebra"), (OTHER, "okapi")):
            planted.fill(connection, project, marker, lambda content: content.decode())

    run(executor.write(work))
    return executor


def run(work: Awaitable[T]) -> T:
    """The result of a coroutine."""

    async def awaited() -> T:
        return await work

    return asyncio.run(awaited())


def counted(executor: MemoryExecutor, project: str = OWN) -> dict[str, int]:
    return run(executor.read(lambda connection: planted.count(connection, project)))


def test_rows_in_whose_words_a_name_stands_go_and_no_others(
    executor: MemoryExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "_SLICE", 1)
    before, elsewhere = counted(executor), counted(executor, OTHER)
    counts: dict[str, int] = {}
    run(Erasure(executor).mentions(PROJECT, NamedIn(name="okapi"), counts))
    assert (counts, counted(executor)) == ({}, before)
    run(Erasure(executor).mentions(PROJECT, NamedIn(name="zebra"), counts))
    below = {"replay_items": 1, "conversation_items": 1}
    assert counts == {"eval_jobs": 1, "responses": 1, "conversations": 1} | below
    after = counted(executor)
    for name in below:
        query = sa.select(sa.func.count()).select_from(metadata.tables[name])
        assert run(executor.read(lambda connection, query=query: connection.execute(query).scalar_one())) == 1
    assert {name: before[name] - after[name] for name in before if before[name] != after[name]} == counts
    assert counted(executor, OTHER) == elsewhere


def test_what_others_add_below_a_row_before_it_goes_goes_with_it(
    executor: MemoryExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows below rows that were gone stayed for ever; a new table may have the number of one that was."""
    delete, elsewhere = erasure._delete, counted(executor, OTHER)
    parents = {name for table in PROJECT_TABLES if table.parent for name in table.parent[1:]}

    def add_again(connection: sa.Connection, erased: ProjectTable, condition: Condition, folders: set[str]) -> Counts:
        """Each time before rows with others below them go, all of those come again."""
        if erased.table.name in parents:
            for column, below in erasure._below(erased):
                for row in rows[below.table.name]:
                    connection.execute(below.table.delete().where(column == row[column.name]))
                    connection.execute(below.table.insert().values(row))
        return delete(connection, erased, condition, folders)

    def read(connection: sa.Connection) -> dict[str, list[dict[str, Any]]]:
        within = [(one.table, one.within([PROJECT])) for one in PROJECT_TABLES if one.parent]
        return {
            table.name: [dict(row) for row in connection.execute(sa.select(table).where(mine)).mappings()]
            for table, mine in within
        }

    rows = run(executor.read(read))
    assert sum(map(len, rows.values())) == len(rows) > 5
    monkeypatch.setattr(erasure, "_delete", add_again)
    run(Erasure(executor).project(PROJECT, {}))
    for name, mine in rows.items():
        table = metadata.tables[name]
        query = sa.select(sa.func.count()).select_from(table)
        left = run(executor.read(lambda connection, query=query: connection.execute(query).scalar_one()))
        assert left == len(mine), name
    assert counted(executor, OTHER) == elsewhere


def test_jobs_that_are_open_stay_though_they_name_the_subject(executor: MemoryExecutor) -> None:
    def begin(connection: sa.Connection) -> None:
        connection.execute(eval_jobs.update().values(state="running"))

    run(executor.write(begin))
    counts: dict[str, int] = {}
    run(Erasure(executor).mentions(PROJECT, NamedIn(name="zebra"), counts))
    run(Erasure(executor).project(PROJECT, counts))
    assert "eval_jobs" not in counts and counts["responses"] == 1


def test_jobs_of_models_that_were_deleted_go_with_their_project(executor: MemoryExecutor) -> None:
    """They stay for whoever follows them; nothing said any more whose they were."""

    def authors() -> dict[str, str]:
        query = sa.select(train_jobs.c.id, train_jobs.c.created_by)
        rows = run(executor.read(lambda connection: connection.execute(query).all()))
        return {row.id: row.created_by for row in rows}

    run(executor.write(lambda connection: connection.execute(train_jobs.update().values(former_project=None))))
    for model in run(TrainModels(executor).all()):
        run(TrainModels(executor).delete(model, 1, "me"))
    run(Erasure(executor).named(PROJECT, "user", "zebra", {}))
    assert authors() == {"zebra": ERASED_USER, "okapi": "okapi"}
    counts: dict[str, int] = {}
    run(Erasure(executor).project(PROJECT, counts))
    assert (counts["train_jobs"], counts["train_events"]) == (1, 1)
    assert authors() == {"okapi": "okapi"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ada", '{"user": "ada"}'),
        ("ada", '{"users": ["eve", "ada"]}'),
        ('a "b" \u00e9', '{"user": "a \\"b\\" \\u00e9"}'),
        ("zoo", '["weave:///team/own/object/zoo:latest"]'),
        ("zoo", "no object weave-trace-internal:///cHJvag==/op/zoo:v1/attr/rows here"),
        ("a b", "weave:///team/own/call/a%20b"),
    ],
)
def test_a_name_is_found_as_a_value_and_in_refs(name: str, text: str) -> None:
    assert NamedIn(name=name)(text) and NamedIn([name])(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model", '{"model": "m", "input": {"model" : 1}}'),
        ("user", '{"input": [{"role": "user", "type": "message", "content": "hi"}]}'),
        ("zoo", '["weave:///team/own/object/zoo-2:latest", "weave:///team/own/object/my-zoo:v1"]'),
        ("own", '["weave:///team/own/object/zoo:latest"]'),
        ("object", '["weave:///team/own/object/zoo:latest"]'),
        ("e", "https://example.org/e/f"),
        ("ada", '{"text": "ada went \\"ada\\" home"}'),
    ],
)
def test_a_name_is_not_found_in_keys_words_of_an_interface_and_parts_of_others(name: str, text: str) -> None:
    assert not NamedIn(name=name)(text)


def test_what_is_named_alike_but_for_capital_letters_stays(executor: MemoryExecutor) -> None:
    target = refs.object_ref(PROJECT, "object", "Zoo", "d")
    elsewhere = {"entity": "Team", "project": "own"}

    def say(connection: sa.Connection) -> None:
        connection.execute(feedback.update().where(feedback.c.project == PROJECT).values(weave_ref=target))
        audit(connection, 1, "ada", "limit.update", None, elsewhere)
        connection.execute(log_records.update().where(log_records.c.project == PROJECT).values(owner="claude.Zoo"))

    run(executor.write(say))
    counts: dict[str, int] = {}
    run(Erasure(executor).named(PROJECT, "thread", "zoo", counts))
    assert counts == {}
    run(Erasure(executor).named(PROJECT, "thread", "Zoo", counts))
    assert counts.pop("log_records") == 1
    run(Erasure(executor).named(PROJECT, "object", "zoo", counts))
    assert counts == {}
    run(Erasure(executor).named(PROJECT, "object", "Zoo", counts))
    assert counts == {"feedback": 1}
    run(Erasure(executor).project(PROJECT, {}))
    query = sa.select(audit_log.c.details).where(audit_log.c.action == "limit.update")
    assert run(executor.read(lambda connection: connection.execute(query).scalars().all())) == [elsewhere]
    for action, found in (("limit", 1), ("Limit", 0)):
        assert len(run(executor.read(lambda c, a=action: read_actions(c, a)))) == found  # type: ignore[misc]


def read_actions(connection: sa.Connection, action: str) -> list[Any]:
    return list(connection.execute(sa.select(audit_log.c.at).where(*AuditQuery(action=action).conditions())))


def test_spans_of_a_user_are_not_those_that_say_the_same_of_something_else(executor: MemoryExecutor) -> None:
    def say(connection: sa.Connection) -> None:
        mores = ('{"wb_user_id":"stop"}', '{"finish_reasons":["stop"]}', '{"wb_user_id":"eve"}', None)
        [row] = connection.execute(sa.select(agent_spans).where(agent_spans.c.project == PROJECT)).mappings()
        connection.execute(agent_spans.delete().where(agent_spans.c.project == PROJECT))
        for number, more in enumerate(mores):
            connection.execute(agent_spans.insert().values({**row, "seq": None, "span_id": str(number), "more": more}))

    run(executor.write(say))
    counts: dict[str, int] = {}
    run(Erasure(executor).named(PROJECT, "user", "wb_user_id", counts))
    assert counts == {}
    run(Erasure(executor).named(PROJECT, "user", "stop", counts))
    assert counts == {"agent_spans": 1}


def test_metrics_that_a_user_is_named_in_go_and_so_do_the_names_of_authors(executor: MemoryExecutor) -> None:
    def metrics(project: str) -> dict[str, int]:
        found = counted(executor, project)
        return {table.name: found[table.name] for table in METRIC_TABLES}

    def authors() -> list[str]:
        query = sa.select(train_models.c.created_by).order_by(train_models.c.created_by)
        return list(run(executor.read(lambda connection: connection.execute(query).scalars().all())))

    there = {table.name: 1 for table in METRIC_TABLES}
    run(Erasure(executor).named(PROJECT, "user", "okapi", {}))
    assert (metrics(OWN), authors()) == (there, ["okapi", "zebra"])
    run(Erasure(executor).named(PROJECT, "user", "zebra", {}))
    assert (metrics(OWN), metrics(OTHER)) == (dict.fromkeys(there, 0), there)
    assert authors() == [ERASED_USER, "okapi"]


def test_what_training_was_given_goes_with_the_events_of_its_job(executor: MemoryExecutor) -> None:
    given = run(Erasure(executor).payloads(PROJECT))
    assert given == [(name, "zebra", f"{name} zebra") for name in ("train_jobs", "train_logs")]
    counts: dict[str, int] = {}
    for table, row_id, _ in given:
        run(Erasure(executor).payload(table, row_id, counts))
    assert counts == {"train_jobs": 1, "train_logs": 1}

    def left(connection: sa.Connection) -> list[int]:
        tables = (train_jobs, train_logs, train_events)
        return [connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables]

    assert run(executor.read(left)) == [1, 1, 1]

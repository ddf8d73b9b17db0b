"""The short rows of trials are always what the calls say, however and in whatever order these are written."""

import asyncio
import itertools
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from heddle import settings
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.wire import refs
from heddle.wire.calls import End, Start, Usage
from heddle.wire.query import parse_query
from heddle.wire.trials import Trial, TrialFilter, TrialsQuery, row_digest

Json = Any
PROJECT = refs.internal_project("team/trials")
MODEL = f"{refs.INTERNAL}{PROJECT}/object/m:v"


def in_store(folder: Path, work: Callable[[SqliteStore], Awaitable[None]], **options: Json) -> None:
    """Run with a store in a folder."""

    async def run() -> None:
        store = await open_store(settings.load({"data": str(folder), **options}, {}))
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def start(call_id: str, parent: str | None, op: str, at: int, inputs: Json, attributes: Json = None) -> Start:
    """The first half of a call."""
    texts = orjson.dumps(inputs).decode(), orjson.dumps(attributes or {}).decode()
    return Start(PROJECT, call_id, "run", op, at, *texts, "ada", parent_id=parent)


def end(call_id: str, at: int, output: Json, tokens: int | None = None, **more: Json) -> End:
    """The second half."""
    usage = [] if tokens is None else [Usage("gpt", 1, tokens, 0, tokens, 0, 0)]
    return End(PROJECT, call_id, at, orjson.dumps(output).decode(), "{}", 0, usage=usage, **more)


def halves() -> tuple[list[Start], list[End]]:
    """A run of one trial with a predict call and a score."""
    given = {"model": MODEL, "example": {"n": 1}}
    starts = [
        start("run", None, "Evaluation.evaluate", 0, {"model": MODEL}),
        start("trial", "run", "Evaluation.predict_and_score", 1, given),
        start("trial-p", "trial", "call_it", 3, {"self": MODEL}),
        start("trial-s", "trial", "predict_score", 2, {}, {"_weave_eval_meta": {"score": True}}),
    ]
    ends = [
        end("run", 9, {}),
        end("trial", 8, {"output": "a", "scores": {"s": 0.5}}, 7),
        end("trial-p", 4, "a", 5),
        end("trial-s", 5, 0.5),
    ]
    return starts, ends


async def read(store: SqliteStore) -> list[Trial]:
    """All trials of the run."""
    digests = (await store.trials.page(TrialsQuery(PROJECT, ("run",)))).row_digests
    return await store.trials.of_rows(PROJECT, ("run",), digests, True) if digests else []


def facts(trial: Trial) -> list[Json]:
    """What the row of a trial keeps."""
    scores = orjson.loads(trial.call.output or "{}").get("scores")
    return [trial.predict and trial.predict.id, trial.total_tokens, [child.id for child in trial.children], scores]


WHOLE = ["trial-p", 5, ["trial-s", "trial-p"], {"s": 0.5}]
ORDERS = [*itertools.permutations(range(4))][::5]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("apart", [False, True], ids=["whole", "ends-later"])
def test_any_order_of_writes_ends_alike(tmp_path: Path, order: Sequence[int], apart: bool) -> None:
    async def work(store: SqliteStore) -> None:
        starts, ends = halves()
        for index in order:
            await store.calls.write([starts[index]], [] if apart else [ends[index]])
        for index in reversed(order) if apart else ():
            await store.calls.write([], [ends[index]])
        assert [facts(trial) for trial in await read(store)] == [WHOLE]

    in_store(tmp_path, work)


def test_ends_may_come_before_starts(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        starts, ends = halves()
        await store.calls.write([], ends)
        assert await read(store) == []
        await store.calls.write(starts, [])
        assert [facts(trial) for trial in await read(store)] == [WHOLE]

    in_store(tmp_path, work)


def test_what_is_written_again_replaces(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        await store.calls.write(*halves())
        await store.calls.write([], [end("trial", 8, {"output": "b", "scores": {"s": 1}})])
        await store.calls.write([], [end("trial-p", 4, "b", 11)])
        assert [facts(trial) for trial in await read(store)] == [["trial-p", 11, ["trial-s", "trial-p"], {"s": 1}]]
        first = (await read(store))[0].row_digest
        again = {"model": MODEL, "example": {"n": 2}}
        await store.calls.write([start("trial", "run", "Evaluation.predict_and_score", 1, again)], [])
        (trial,) = await read(store)
        assert trial.row_digest != first
        await store.calls.write([start("trial", "run", "something else", 1, again)], [])
        assert await read(store) == []

    in_store(tmp_path, work)


def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        await store.calls.write(*halves())
        await store.calls.delete(PROJECT, ["trial-p"], "ada")
        assert [facts(trial) for trial in await read(store)] == [[None, 7, ["trial-s"], {"s": 0.5}]]
        await store.calls.delete(PROJECT, ["trial"], "ada")
        assert await read(store) == []
        await store.calls.write([], [end("trial", 8, {"output": "late", "scores": {}})])
        assert await read(store) == []

    in_store(tmp_path, work)


def test_what_is_purged_is_gone(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        await store.calls.write(*halves())
        await store.calls.purge_older(PROJECT, 100)
        assert await read(store) == []

    in_store(tmp_path, work)


def test_texts_in_files_count_whole(tmp_path: Path) -> None:
    long = "x" * 5000

    async def work(store: SqliteStore) -> None:
        starts, ends = halves()
        example, output = {"n": long}, {"output": {"k": long}, "scores": {"s": 0.5, "why": long}}
        blobs = [store.blobs.put_bytes(orjson.dumps(value)) for value in ({"model": MODEL, "example": example}, output)]
        starts[1] = start("trial", "run", "Evaluation.predict_and_score", 1, {"model": MODEL, "example": {"n": "x"}})
        starts[1].files["inputs"] = blobs[0]
        ends[1] = end("trial", 8, {"output": {"k": "x"}, "scores": {"s": 0.5, "why": "x"}}, files={"output": blobs[1]})
        await store.calls.write(starts, ends)
        (trial,) = await read(store)
        assert trial.row_digest == row_digest(example)
        assert orjson.loads(trial.call.output or "") == output
        for field in ("output.k", "inputs.n", "scores.why"):
            query = {"$expr": {"$eq": [{"$getField": field}, {"$literal": long}]}}
            filters = (TrialFilter(parse_query(query)),)
            assert (await store.trials.page(TrialsQuery(PROJECT, ("run",), filters=filters))).total == 1

    in_store(tmp_path, work)


def test_after_a_restart_children_are_still_noticed(tmp_path: Path) -> None:
    starts, ends = halves()

    async def before(store: SqliteStore) -> None:
        await store.calls.write(starts[:2], ends[:2])
        assert [facts(trial) for trial in await read(store)] == [[None, 7, [], {"s": 0.5}]]

    async def after(store: SqliteStore) -> None:
        await store.calls.write(starts[2:], ends[2:])
        assert [facts(trial) for trial in await read(store)] == [WHOLE]

    in_store(tmp_path, before)
    in_store(tmp_path, after)


def test_an_older_file_gets_the_rows_of_its_trials(tmp_path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        await store.calls.write(*halves())

    async def compare(store: SqliteStore) -> None:
        assert [facts(trial) for trial in await read(store)] == [WHOLE]

    in_store(tmp_path, write)
    with sqlite3.connect(tmp_path / "heddle.db") as raw:
        raw.execute("DROP TABLE eval_trials")
        raw.execute("PRAGMA user_version = 3")
    raw.close()
    in_store(tmp_path, compare)

"""Complete spans beside their calls: small on disk, and in every answer as they were exported."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from heddle import settings
from heddle.auth import LOCAL
from heddle.store.sqlite import call_bodies
from heddle.store.sqlite.call_table import select
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.trace.calls.packing import Packed
from heddle.trace.otel.export import Export, ProjectResolver
from heddle.wire import refs
from heddle.wire.calls import CallsQuery, End, Filter, SharedText, Start
from heddle.wire.query import parse_query

RECORDED = sorted((Path(__file__).parents[1] / "data" / "otel").glob("*"))
PROJECT = refs.internal_project("team/project")
BODIES = frozenset(("otel_dump",))


def packed(path: Path, large: int = 2**30) -> Packed:
    """The calls of a recorded export."""
    limits: Any = SimpleNamespace(large_field_bytes=large)
    export = Export(limits, cast(Any, None), cast(Any, None), ProjectResolver(LOCAL, "team/project"))
    return export.pack(path.read_bytes(), path.suffix == ".json")[0]


def in_store(folder: Path, work: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await open_store(settings.load({"data": str(folder)}, {}))
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


async def read(store: SqliteStore, query: CallsQuery) -> dict[str, str | None]:
    return {row.id: row.otel_dump async for rows in store.calls.stream(query) for row in rows}


async def matching(store: SqliteStore, path: str, value: str) -> list[str]:
    condition = parse_query({"$expr": {"$eq": [{"$getField": path}, {"$literal": value}]}})
    return sorted(await read(store, CallsQuery(PROJECT, query=condition)))


def span(call_id: str, said: str, answer: str) -> tuple[Start, End]:
    """A span whose dump shares its input and its output with its call."""
    inputs, output = f'{{"input.value":{{"said":"{said}"}}}}', f'{{"output.value":{{"answer":"{answer}"}}}}'
    parts = ('{"name":"chat","attributes":{"input":{"value":', '},"output":{"value":', '},"user":"ann"}}')
    first, second = inputs[15:-1], output[16:-1]
    start = Start(PROJECT, call_id, "t", "op", 1, inputs, "{}", "user")
    start.otel_dump = f"{parts[0]}{first}{parts[1]}{second}{parts[2]}"
    at = len(parts[0])
    start.shared = (
        SharedText(at, len(first), "inputs", 15),
        SharedText(at + len(first) + len(parts[1]), len(second), "output", 16),
    )
    return start, End(PROJECT, call_id, 2, output, "{}", 0)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_spans_come_back_as_they_were(path: Path) -> None:
    calls = packed(path)
    for start, end in zip(calls.starts, calls.ends, strict=True):
        assert start.otel_dump is not None
        stored = call_bodies.pack(start.otel_dump, start.shared)
        assert call_bodies.unpack(stored, start.inputs, end.output) == start.otel_dump
        orjson.loads(call_bodies.rest(stored) or "")
        for part in start.shared:
            column = start.inputs if part.column == "inputs" else end.output or ""
            assert start.otel_dump[part.at : part.at + part.length] == column[part.start : part.start + part.length]


def test_what_the_call_says_is_not_stored_again() -> None:
    calls = [packed(path) for path in RECORDED if path.name.startswith(("openinference-", "genai-", "vercel7-"))]
    starts = [start for one in calls for start in one.starts]
    whole = sum(len(start.otel_dump or "") for start in starts)
    assert sum(len(call_bodies.pack(start.otel_dump or "", start.shared)) for start in starts) < whole / 6


def test_a_cut_input_is_stored_in_the_dump() -> None:
    calls = packed(next(path for path in RECORDED if path.name == "openinference-tools.bin"), large=100)
    assert calls.spills and not any(start.shared for start in calls.starts)


def test_spans_are_read_filtered_and_indexed(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        halves = [span("a", "hello", "yes"), span("b", "bye", "no")]
        await store.calls.write([start for start, _ in halves], [end for _, end in halves])
        whole = {start.id: start.otel_dump for start, _ in halves}
        assert await read(store, CallsQuery(PROJECT, columns=BODIES)) == whole
        dumps = await store.calls.otel_dumps(PROJECT, ["a", "b"], containing='"said":"bye"')
        assert dumps.dumps == [("b", "t", whole["b"])]
        for prefix in ("attributes.otel_span", "otel_dump"):
            assert await matching(store, f"{prefix}.attributes.user", "ann") == ["a", "b"]
            assert await matching(store, f"{prefix}.attributes.input.value.said", "bye") == ["b"]
            assert await matching(store, f"{prefix}.attributes.output.value.answer", "yes") == ["a"]
            assert await matching(store, f"{prefix}.attributes.input", '{"value":{"said":"hello"}}') == ["a"]
        path = "attributes.otel_span.attributes.user"
        query = parse_query({"$expr": {"$eq": [{"$getField": path}, {"$literal": "ann"}]}})
        await build_index(store, CallsQuery(PROJECT, query=query))
        again = span("c", "hello", "yes")
        await store.calls.write([again[0]], [again[1]])
        assert await matching(store, path, "ann") == ["a", "b", "c"]

    in_store(tmp_path, work)


async def build_index(store: SqliteStore, query: CallsQuery) -> None:
    def work(session: Any) -> None:
        selection = select(session.raw, NameReader(), query)
        assert selection is not None
        (expression,) = selection.indexable
        store.indexes.build(session.raw, expression)
        store.indexes.now_built(expression)

    await store._control.writer.write(work)


def test_an_answer_that_comes_again_leaves_the_span_as_it_was(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        start, end = span("a", "hello", "yes")
        await store.calls.write([start], [end])
        await store.calls.write([], [End(PROJECT, "a", 3, '{"output.value":{"answer":"another"}}', "{}", 0)])
        assert await read(store, CallsQuery(PROJECT, columns=BODIES)) == {"a": start.otel_dump}
        start, end = span("a", "hello", "at last")
        await store.calls.write([start], [end])
        assert await read(store, CallsQuery(PROJECT, columns=BODIES)) == {"a": start.otel_dump}

    in_store(tmp_path, work)


def test_plain_dumps_of_older_versions_are_read(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        halves = [span("old", "hello", "yes"), span("new", "hello", "yes")]
        await store.calls.write([start for start, _ in halves], [end for _, end in halves])
        dump = halves[0][0].otel_dump
        sql = "UPDATE body_in SET otel_dump = ? WHERE rid = (SELECT rid FROM calls WHERE id = 'old')"
        await store._control.writer.write(lambda session: session.raw.execute(sql, (dump,)))
        only = CallsQuery(PROJECT, Filter(call_ids=("old",)), columns=BODIES)
        assert await read(store, only) == {"old": dump}
        for path, value in (("user", "ann"), ("input.value.said", "hello")):
            assert await matching(store, f"attributes.otel_span.attributes.{path}", value) == ["new", "old"]

    in_store(tmp_path, work)

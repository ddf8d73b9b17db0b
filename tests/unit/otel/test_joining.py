"""Spans and log records that meet across restarts, at the same time, and in great numbers."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.trace.otel import export
from heddle.wire import refs
from heddle.wire.spans import StoredRecord
from tests.support.inprocess import Trace, running_services
from tests.support.otlp import PROTOBUF
from tests.support.otlp_logs import ANSWERED, ASKED, chat_span, details, logs, record
from tests.support.selection import with_breadth

PROJECT = "team/joins"
_POINT = {"startTimeUnixNano": "1600000000000000000", "timeUnixNano": "1600000001000000000", "asInt": "3"}
COUNTER = {"name": "tokens", "sum": {"dataPoints": [_POINT], "aggregationTemporality": 2, "isMonotonic": True}}
Json = dict[str, Any]


async def send(client: httpx.AsyncClient, path: str, message: Any) -> httpx.Response:
    answer = await client.post(path, content=message.SerializeToString(), headers={"project_id": PROJECT, **PROTOBUF})
    assert answer.status_code == 200, answer.text
    return answer


async def only_call(client: httpx.AsyncClient) -> Json:
    (call,) = await Trace(client, PROJECT).calls()
    return call


@pytest.mark.parametrize("first", ["/v1/logs", "/v1/traces"])
def test_they_join_across_a_restart(tmp_path: Path, first: str) -> None:
    messages = {"/v1/logs": logs(details()), "/v1/traces": chat_span()}
    second = next(path for path in messages if path != first)

    async def run() -> None:
        for path in (first, second):
            async with running_services(tmp_path) as (_, client):
                await send(client, path, messages[path])
                call = await only_call(client)
        assert call["inputs"]["gen_ai.input.messages"] == ASKED
        assert call["output"]["gen_ai.output.messages"] == ANSWERED
        assert call["attributes"]["otel_span"]["name"] == "chat m" and "of_logs" not in call["attributes"]["otel_span"]

    asyncio.run(run())


@pytest.mark.parametrize("order", with_breadth([(order,) for order in itertools.permutations(range(4))], every=9))
def test_whatever_comes_at_the_same_time_is_all_there(tmp_path: Path, order: tuple[int, ...]) -> None:
    things = [
        ("/v1/traces", chat_span(own="attribute")),
        *(("/v1/logs", logs(record(f"note {number}", number))) for number in range(2)),
        ("/v1/logs", logs(details())),
    ]

    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            await asyncio.gather(*(send(client, *things[number]) for number in order))
            dump = (await only_call(client))["attributes"]["otel_span"]
            assert dump["attributes"]["own"] == "attribute"
            assert [event["name"] for event in dump["events"]][:2] == ["note 0", "note 1"]
            assert len(dump["events"]) == 3

    asyncio.run(run())


def test_a_span_has_room_for_so_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_EVENTS", 3)

    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            await send(client, "/v1/traces", chat_span())
            answer = await send(client, "/v1/logs", logs(*(record(f"note {number}", number) for number in range(5))))
            assert answer.content.count(b"Rejected log record") == 2
            dump = (await only_call(client))["attributes"]["otel_span"]
            assert [event["name"] for event in dump["events"]] == ["note 0", "note 1", "note 2"]

    asyncio.run(run())


def test_a_large_span_keeps_everything(tmp_path: Path) -> None:
    """What lies in a file of its own is read whole before it is written again."""
    text = "canary " * 400_000

    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            await send(client, "/v1/logs", logs(details()))
            await send(client, "/v1/traces", chat_span(long=text))
            await send(client, "/v1/logs", logs(record("late", 9)))
            dump = (await only_call(client))["attributes"]["otel_span"]
            assert dump["attributes"]["long"] == text
            assert [event["name"] for event in dump["events"]] == ["late", "gen_ai.client.inference.operation.details"]

    asyncio.run(run())


def test_retention_holds_for_records_and_points(tmp_path: Path) -> None:
    """Both are from long ago; the records of another project stay."""

    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            store = services.store
            await send(client, "/v1/logs", logs({**details(), "time_unix_nano": 1_600_000_000 * 10**9}))
            body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [COUNTER]}]}]}
            for project in (PROJECT, "team/other"):
                answer = await client.post("/v1/metrics", json=body, headers={"project_id": project})
                assert answer.json() == {"partial_success": None}
                assert len(await store.metric_series.all(refs.internal_project(project))) == 1
            mine = refs.internal_project(PROJECT)
            await store.projects.set_retention(mine, 1, "me")
            assert await store.log_records.spans([(mine, f"{1:032x}")]) != set()
            await services.retention.purge()
            assert await store.log_records.spans([(mine, f"{1:032x}")]) == set()
            assert await store.metric_series.all(mine) == []
            assert len(await store.metric_series.all(refs.internal_project("team/other"))) == 1

    asyncio.run(run())


def test_a_record_that_comes_during_the_first_look_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with running_services(tmp_path) as (services, _):
            records = services.store.log_records
            look, place = records._scalar, ("p", "t", "s")

            async def look_and_add(query: Any) -> Any:
                found = await look(query)
                await records.add([StoredRecord(*place, "r", 1, "user", "{}")], export.LIFE)
                return found

            monkeypatch.setattr(records, "_scalar", look_and_add)
            assert await records.spans([("p", "t")]) == {place}
            monkeypatch.setattr(records, "_scalar", None)
            assert await records.spans([("p", "t"), ("p", "other")]) == {place}

    asyncio.run(run())

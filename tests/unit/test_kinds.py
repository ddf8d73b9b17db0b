"""What a call is: one rule for new calls and for those that were stored before, in both stores."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.store.clickhouse import schema
from heddle.store.sqlite import migrations
from heddle.wire.calls import CallsQuery, kind_of
from tests.support import two_stores, written_calls
from tests.support.two_stores import TwoStores
from tests.support.written_calls import PROJECT

Json = dict[str, Any]
CASES: list[tuple[str, Json, str]] = [
    ("ask", {"weave": {"kind": "llm"}}, "llm"),
    ("ask", {"kind": "LLM"}, "llm"),
    ("ask", {"weave": {"kind": "odd"}, "kind": "retriever"}, "tool"),
    ("ask", {"weave": {"kind": "agent"}, "kind": "llm"}, "agent"),
    ("ask", {"weave": "kind", "kind": 7}, "fn"),
    ("ask", {"deep": {"kind": "llm"}}, "fn"),
    ("ask", {}, "fn"),
    ("openai.chat.completions.create", {}, "llm"),
    ("weave-trace-internal:///cHJvamVjdA/op/anthropic.Messages.create:abc", {}, "llm"),
    ("create", {}, "fn"),
    ("Evaluation.evaluate", {}, "chain"),
    ("Mine.predict_and_score", {"kind": "workflow"}, "chain"),
    ("Contains.score", {}, "scorer"),
    ("LLM_Judge", {}, "scorer"),
    ("underscore", {}, "fn"),
    ("judge", {"kind": "tool"}, "tool"),
]


@pytest.mark.parametrize(("op", "attributes", "kind"), CASES)
def test_it_follows_from_what_the_call_says_and_from_its_op(op: str, attributes: Json, kind: str) -> None:
    assert kind_of(op, json.dumps(attributes)) == kind


def test_stored_calls_get_theirs_in_both_stores(tmp_path: Path) -> None:
    wanted = {f"call-{place}": kind for place, (_, _, kind) in enumerate(CASES)}
    starts = [
        replace(written_calls.first_half(f"call-{place}"), op_name=op, attributes=json.dumps(attributes))
        for place, (op, attributes, _) in enumerate(CASES)
    ]

    async def kinds(stores: TwoStores) -> tuple[Json, Json]:
        found = {row.id: row.kind async for part in stores.sqlite.calls.stream(CallsQuery(PROJECT)) for row in part}
        return found, dict(await stores.clickhouse.rows("SELECT id, kind FROM calls FINAL"))

    async def work(stores: TwoStores) -> None:
        await stores.write(starts, [])
        assert await kinds(stores) == (wanted, wanted)
        await stores.control.write(_as_before)
        for statement in ("ALTER TABLE calls DROP COLUMN kind", *schema.add_kind(stores.clickhouse.place)):
            await stores.clickhouse.command(statement)
        assert await kinds(stores) == (wanted, wanted)

    two_stores.in_both(tmp_path, work)


def _as_before(connection: Any) -> None:
    raw = connection.connection.driver_connection
    raw.execute("ALTER TABLE calls DROP COLUMN kind")
    migrations._add_kind(migrations.Session(raw, connection))

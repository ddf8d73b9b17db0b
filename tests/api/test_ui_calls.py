"""The list of calls as its page reads it: pages both ways, exact counts over time, facets, files."""

import csv
import io
import json
import random
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from heddle.ui.reads.calls_export import missing_package
from tests.conftest import Wire

Json = dict[str, Any]
DAY = 86_400


def call(wire: Wire, at: datetime, **more: Any) -> Json:
    """A finished call of half a second."""
    return {
        "project_id": wire.project,
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": f"weave:///{wire.project}/op/answer:{'a' * 43}",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=0.5)).isoformat(),
        "attributes": {},
        "inputs": {"question": "why?"},
        "output": "because",
        "summary": {},
        **more,
    }


def store(wire: Wire, *calls: Json) -> None:
    """Write whole calls."""
    answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": list(calls)})
    assert answer.status_code == 200, answer.text


def rows(answer: Json) -> list[Json]:
    """The rows of a page, which come as a list per field."""
    fields = answer["rows"]
    count = len(fields.get("id", []))
    return [{name: values[index] for name, values in fields.items()} for index in range(count)]


def spread(wire: Wire, count: int, days: float) -> list[Json]:
    """Calls at random instants of the last days; every fifth failed, every second is a child."""
    chance, now = random.Random(3), datetime.now(UTC)
    made = []
    for number in range(count):
        more: Json = {"exception": "ValueError: no"} if number % 5 == 0 else {}
        if number % 2:
            more["parent_id"] = str(uuid.uuid4())
        made.append(call(wire, now - timedelta(days=chance.random() * days), **more))
    store(wire, *made)
    return made


def test_a_row_shows_what_matters(wire: Wire) -> None:
    usage = {"gpt-4o": {"requests": 1, "prompt_tokens": 1000, "completion_tokens": 100}}
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Where is\n my order?"}]
    answered = {"choices": [{"message": {"role": "assistant", "content": "On its way."}}]}
    chat = call(
        wire,
        datetime.now(UTC),
        inputs={"model": "gpt-4o", "messages": messages, "options": {"deep": {"er": [1, 2]}}},
        output=answered,
        summary={"usage": usage},
        attributes={"weave": {"kind": "llm"}},
        thread_id="thread",
    )
    store(wire, chat)
    body = {"feedback_type": "wandb.runnable.judge", "payload": {"output": {"good": 0.5}}}
    ref = f"weave:///{wire.project}/call/{chat['id']}"
    judged = {"runnable_ref": f"weave:///{wire.project}/op/judge:v1", "call_ref": ref}
    wire.post("/feedback/create", weave_ref=ref, **judged, **body)
    columns = ["inputs.options.deep", "scores.judge.good", "output.nothing"]
    [row] = rows(wire.post("/_ui/api/calls", columns=columns))
    assert row["input"] == "Where is my order?" and row["output"] == "On its way."
    assert (row["op"], row["kind"], row["model"], row["tokens"], row["thread"]) == (
        "answer",
        "llm",
        "gpt-4o",
        1100,
        "thread",
    )
    assert row["cost"] == pytest.approx(0.0035) and row["took"] == 500_000 and row["feedback"] == 1
    assert row["values"] == ["er: [1,2]", 0.5, None]
    assert "status" not in row and "child" not in row, "success and roots go without saying"


def test_a_failure_that_is_nested_without_end_is_shown(wire: Wire) -> None:
    """It was a 500 for the whole page."""
    store(wire, call(wire, datetime.now(UTC), exception="[" * 5000))
    [row] = rows(wire.post("/_ui/api/calls"))
    assert row["error"].startswith("[[[")


@pytest.mark.parametrize("sort", ["-started_at", "started_at", "-latency"])
def test_pages_lead_there_and_back(wire: Wire, sort: str) -> None:
    now = datetime.now(UTC)
    same = [call(wire, now) for _ in range(5)]
    longer = [
        call(wire, now - timedelta(minutes=n), ended_at=(now + timedelta(seconds=n % 3)).isoformat()) for n in range(20)
    ]
    store(wire, *same, *longer)

    def place(row: Json) -> str:
        return f"{row['took'] // 1000 if sort == '-latency' else row['at']}_{row['id']}"

    first = wire.post("/_ui/api/calls", sort=sort, limit=10)
    second = wire.post("/_ui/api/calls", sort=sort, limit=10, after=place(rows(first)[-1]))
    third = wire.post("/_ui/api/calls", sort=sort, limit=10, after=place(rows(second)[-1]))
    everything = rows(wire.post("/_ui/api/calls", sort=sort, limit=100))
    assert rows(first) + rows(second) + rows(third) == everything and len(everything) == 25
    back = wire.post("/_ui/api/calls", sort=sort, limit=10, before=place(rows(third)[0]))
    assert rows(back) == rows(second)
    shown = [(page["newer"], page["older"]) for page in (first, second, third, back)]
    assert shown == [(False, True), (True, True), (True, False), (True, True)]
    assert wire.client.post("/_ui/api/calls", json={"project_id": wire.project, "after": "nowhere"}).status_code == 400


@pytest.mark.parametrize("days", [0.01, 0.4, 3, 400])
def test_bars_count_exactly_between_two_instants(wire: Wire, days: float) -> None:
    made = spread(wire, 120, days)
    starts = sorted(datetime.fromisoformat(item["started_at"]).timestamp() for item in made)
    lower, upper = starts[10] + 1e-3, starts[-10]
    chosen = [item for item in made if lower <= datetime.fromisoformat(item["started_at"]).timestamp() < upper]
    found = wire.post("/_ui/api/calls/summary", **{"from": lower, "to": upper})
    assert found["count"] == len(chosen) == sum(found["bars"]["total"])
    assert found["errors"] == sum("exception" in item for item in chosen)
    assert len(found["bars"]["total"]) <= 82 and found["bars"]["start"] <= lower
    everything = wire.post("/_ui/api/calls/summary")
    assert (everything["count"], everything["errors"]) == (120, 24)
    roots = wire.post("/_ui/api/calls/summary", filter={"trace_roots_only": True})
    assert roots["count"] == 60
    failed = {"$expr": {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}}
    assert wire.post("/_ui/api/calls/summary", query=failed)["count"] == 24
    asked = {"$expr": {"$eq": [{"$getField": "inputs.question"}, {"$literal": "why?"}]}}
    assert wire.post("/_ui/api/calls/summary", query=asked)["count"] == 120


def test_bars_of_all_time_span_what_is_selected(wire: Wire) -> None:
    now = datetime.now(UTC).replace(minute=30)
    asked = [call(wire, now - timedelta(days=100, minutes=minute), op_name="ask") for minute in range(20)]
    store(wire, call(wire, now - timedelta(days=400)), *asked, call(wire, now))
    every = wire.post("/_ui/api/calls/summary")
    found = wire.post("/_ui/api/calls/summary", filter={"op_names": ["ask"]})
    assert (every["count"], found["count"]) == (22, 20) == (sum(every["bars"]["total"]), sum(found["bars"]["total"]))
    bars = found["bars"]
    assert bars["step"] * len(bars["total"]) <= 86_400 < every["bars"]["step"]
    starts = [datetime.fromisoformat(item["started_at"]).timestamp() for item in asked]
    assert bars["start"] <= min(starts) and max(starts) < bars["start"] + bars["step"] * len(bars["total"])
    ended = wire.post("/_ui/api/calls/summary", filter={"op_names": ["ask"]}, to=max(starts))
    assert ended["count"] == 19 and ended["bars"]["step"] < every["bars"]["step"]
    assert wire.post("/_ui/api/calls/summary", filter={"op_names": ["none"]})["count"] == 0


def test_counts_follow_every_change_of_a_call(wire: Wire) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=3)
    first, second = (call(wire, long_ago + timedelta(days=day)) for day in (0, 2))
    store(wire, first, second)
    half = {name: first[name] for name in ("project_id", "trace_id", "op_name", "attributes", "inputs")}
    running = str(uuid.uuid4())
    wire.client.post("/call/start", json={"start": {**half, "id": running, "started_at": long_ago.isoformat()}})

    def counted() -> tuple[int, int, bool]:
        found = wire.post("/_ui/api/calls/summary")
        return found["count"], found["errors"], found["any"]

    assert counted() == (3, 0, True)
    end = {"project_id": wire.project, "id": running, "summary": {}, "exception": "ValueError"}
    wire.client.post("/call/end", json={"end": {**end, "ended_at": datetime.now(UTC).isoformat()}})
    assert counted() == (3, 1, True)
    wire.post("/calls/delete", call_ids=[running])
    assert counted() == (2, 0, True)
    wire.post("/calls/delete", call_ids=[first["id"], second["id"]])
    assert counted() == (0, 0, False)
    assert wire.post("/_ui/api/calls/facets")["ops"] == []


def test_calls_are_found_by_what_they_cost(wire: Wire) -> None:
    def spent(tokens: int) -> Json:
        usage = {"gpt-4o": {"requests": 1, "prompt_tokens": tokens, "completion_tokens": 0}}
        return call(wire, datetime.now(UTC), summary={"usage": usage})

    store(wire, spent(1_000_000), spent(10), call(wire, datetime.now(UTC)))
    dear, cheap = {"op": "gt", "dollars": 1}, {"op": "lt", "dollars": 1}
    assert [row["tokens"] for row in rows(wire.post("/_ui/api/calls", cost=dear))] == [1_000_000]
    assert wire.post("/_ui/api/calls/summary", cost=cheap)["count"] == 2


def test_a_span_without_a_model_names_none(wire: Wire) -> None:
    """Its usage stands in an entry of its own, whose name is no model's."""
    counts = {"usage": {"usage": {"input_tokens": 3, "output_tokens": 4}}}
    store(wire, call(wire, datetime.now(UTC), summary=counts))
    (row,) = rows(wire.post("/_ui/api/calls"))
    assert (row.get("model"), row["tokens"]) == (None, 7)
    assert wire.post("/_ui/api/calls/facets")["models"] == []


def test_facets_name_what_the_calls_hold(wire: Wire) -> None:
    usage = {"my.model": {"requests": 1, "prompt_tokens": 1}}
    store(wire, call(wire, datetime.now(UTC), inputs={"a.b": {"c": 1}}, output={"d": [1]}, summary={"usage": usage}))
    found = wire.post("/_ui/api/calls/facets")
    assert found["ops"] == [["answer", 1]] and found["models"] == ["my.model"]
    assert {r"inputs.a\.b.c", "output.d"} <= set(found["paths"])


def test_large_payloads_stay_small_in_the_list(wire: Wire) -> None:
    messages = [{"role": "user", "content": "x" * 200_000} for _ in range(10)]
    store(wire, *(call(wire, datetime.now(UTC), inputs={"messages": messages}, output="y" * 500_000) for _ in range(5)))
    started = time.process_time()
    answer = wire.client.post("/_ui/api/calls", json={"project_id": wire.project})
    assert len(answer.content) < 4000 and answer.json()["rows"]["input"][0].startswith("xxx")
    assert time.process_time() - started < 1


def exported(wire: Wire, kind: str, **chosen: Any) -> bytes:
    """The file of the chosen calls."""
    asked = {"format": kind, "chosen": json.dumps({"project_id": wire.project, **chosen})}
    answer = wire.client.get("/_ui/api/calls/export", params=asked)
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    return bytes(answer.content)


def test_calls_are_exported_in_three_formats(wire: Wire) -> None:
    made = [call(wire, datetime.now(UTC) - timedelta(seconds=n), inputs={"n": n}, output="=1+1") for n in range(300)]
    store(wire, *made)
    ref = f"weave:///{wire.project}/op/answer:*"
    lines = [json.loads(line) for line in exported(wire, "jsonl", filter={"op_names": [ref]}).splitlines()]
    assert [line["inputs"]["n"] for line in lines] == list(range(300))
    assert lines[0]["op_name"].startswith(f"weave:///{wire.project}/op/answer:")
    table = list(csv.DictReader(io.StringIO(exported(wire, "csv").decode())))
    assert len(table) == 300 and table[7]["inputs.n"] == "7" and table[0]["status"] == "success"
    rows_read = parquet.read_table(io.BytesIO(exported(wire, "parquet"))).to_pylist()
    assert [json.loads(row["inputs"])["n"] for row in rows_read] == list(range(300))
    assert rows_read[0]["started_at"] == datetime.fromisoformat(made[0]["started_at"])
    chosen = {"filter": {"call_ids": [made[3]["id"]]}}
    assert len(exported(wire, "jsonl", **chosen).splitlines()) == 1
    assert wire.client.get("/_ui/api/calls/export?format=xlsx&check=1").status_code == 400
    assert exported(wire, "csv", filter={"op_names": ["nothing"]}) == b""


def test_a_table_has_a_column_per_field(wire: Wire) -> None:
    now = datetime.now(UTC)
    deep = {"a": {"b": [1, {"c": 2}], "d.e": "x", "none": {}}, "t": True}
    store(
        wire,
        call(wire, now, inputs=deep, output={"text": "=1+1"}),
        call(wire, now - timedelta(seconds=1), inputs={"a": "plain"}, output=[1]),
        call(wire, now - timedelta(seconds=2), inputs={f"key{number}": number for number in range(3000)}, output=None),
    )
    first, second, third = csv.DictReader(io.StringIO(exported(wire, "csv").decode()))
    assert json.loads(first["inputs.a.b"]) == [1, {"c": 2}] and first[r"inputs.a.d\.e"] == "x"
    assert (first["inputs.a.none"], first["inputs.t"], first["inputs.a"]) == ("{}", "True", "")
    assert (first["output.text"], second["inputs.a"], second["output"]) == ("'=1+1", "plain", "[1]")
    assert len(json.loads(third["inputs"])) == 3000 and len(third) < 60


def test_parquet_without_pyarrow_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    missing = missing_package()
    assert missing is not None and "pip install" in missing and "parquet" in missing


def test_the_kind_filter_finds_the_calls_that_wear_the_badge(wire: Wire) -> None:
    usage = {"usage": {"gpt-4o": {"requests": 1, "prompt_tokens": 9, "completion_tokens": 1}}}
    said: list[Json] = [
        {},
        {"kind": "CHAIN"},
        {"weave": {"kind": "tool"}},
        {"kind": "agent"},
        {"weave": {"kind": "llm"}},
    ]
    names = ["step", "openai.chat.completions.create", "Evaluation.evaluate", "judge"]
    trace = str(uuid.uuid4())
    made = [
        # What was used below is summed up in the parent, and does not make it a call of a model.
        call(wire, datetime.now(UTC), op_name=name, attributes=attributes, summary=usage, trace_id=trace)
        for name in names
        for attributes in said
    ]
    store(wire, *made)
    worn = {row["id"]: row["kind"] or "fn" for row in rows(wire.post("/_ui/api/calls", limit=100))}
    assert len(worn) == 20 and set(worn.values()) == {"fn", "llm", "chain", "scorer", "tool", "agent"}
    assert worn[made[0]["id"]] == "fn" and worn[made[5]["id"]] == "llm"
    for kind in set(worn.values()):
        query = {"$expr": {"$eq": [{"$getField": "kind"}, {"$literal": kind}]}}
        found = {row["id"] for row in rows(wire.post("/_ui/api/calls", limit=100, query=query))}
        assert found == {call_id for call_id, badge in worn.items() if badge == kind}
        assert wire.post("/_ui/api/calls/summary", query=query)["count"] == len(found)
    lines = wire.client.get(f"/_ui/api/trace/{wire.project}/{trace}").text.splitlines()
    _, page = map(json.loads, lines)
    assert {call_id: page["ops"][op][1] for call_id, op in zip(page["id"], page["op"], strict=True)} == worn
    query = {"filter": {"trace_ids": [trace]}, "include_conversation": True}
    assert {found["id"]: found["conversation"]["kind"] for found in wire.lines("/calls/stream_query", **query)} == worn
    listed = wire.client.get("/_ui/api/ops", params={"project": wire.project}).json()["ops"]
    for op in listed:
        newest = max((one for one in made if one["op_name"] == op["name"]), key=lambda one: one["started_at"])
        assert op["kind"] == worn[newest["id"]]


def test_user_traffic_evaluations_and_training_add_up_to_all_traces(wire: Wire) -> None:
    now = datetime.now(UTC)
    ops = [
        "answer",
        "answer",
        "Evaluation.evaluate",
        "Judge.score",
        "heddle.training_job",
        "score_it",
        "Evaluation.evaluate",
    ]
    names = [name if name == "heddle.training_job" else f"weave:///{wire.project}/op/{name}:{'a' * 43}" for name in ops]
    roots = [call(wire, now - timedelta(seconds=n), op_name=name) for n, name in enumerate(names)]
    inner = [call(wire, now, op_name=names[0], parent_id=root["id"], trace_id=root["trace_id"]) for root in roots]
    store(wire, *roots, *inner)
    expected = {"user": [0, 1, 5], "evaluation": [2, 3, 6], "training": [4], None: range(7)}
    for source, places in expected.items():
        chosen: Json = {"filter": {"trace_roots_only": True}, "source": source}
        found = rows(wire.post("/_ui/api/calls", **chosen))
        assert [row["id"] for row in found] == [roots[place]["id"] for place in places]
        summary = wire.post("/_ui/api/calls/summary", **chosen)
        assert summary["count"] == len(found)
        assert all(op.startswith("weave:///") or op == "heddle.training_job" for op in summary["source_ops"])
        lines = exported(wire, "jsonl", **chosen).splitlines()
        assert len(lines) == len(found)

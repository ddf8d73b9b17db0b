"""Replays over HTTP: chats asked again, side by side with the originals, once each whatever happens in between."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.gated import DEADLINE_SECONDS, GatedProvider
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess
from tests.support.stored_runs import Writer

Json = dict[str, Any]
ENDED = ("succeeded", "failed", "cancelled")


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as fake:
        yield fake


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[HeddleProcess]:
    """A server without a model, whose one provider answers in capitals."""
    folder = tmp_path_factory.mktemp("replay") / "data"
    with HeddleProcess(folder, providers=f"fake={provider.url}", model="none") as server:
        yield server


@pytest.fixture
def wire(process: HeddleProcess, project: str) -> Iterator[Wire]:
    """Plain HTTP to the test's own project."""
    wire = Wire(process.url, project)
    yield wire
    wire.client.close()


def chat_call(text: str, **inputs: Any) -> Json:
    """A stored chat of yesterday's model."""
    messages = inputs.pop("messages", [{"role": "system", "content": "Old."}, {"role": "user", "content": text}])
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"old {text}"}}]}
    usage = {"gpt-4o-mini": {"requests": 1, "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}
    return _call("chat", {"model": "gpt-4o-mini", "messages": messages, **inputs}, answer, {"usage": usage})


def _call(op: str, inputs: Json, output: Any = None, summary: Json | None = None) -> Json:
    call_id = str(uuid.uuid4())
    started = datetime.now(UTC) - timedelta(minutes=5)
    return {
        "id": call_id, "trace_id": call_id, "op_name": op, "started_at": started.isoformat(),
        "ended_at": (started + timedelta(milliseconds=1500)).isoformat(), "attributes": {},
        "inputs": inputs, "output": output, "summary": summary or {},
    }  # fmt: skip


def stored(wire: Wire, calls: list[Json]) -> list[str]:
    """The ids of stored calls."""
    wire.post(f"/v2/{wire.project}/calls/complete", batch=[{**call, "project_id": wire.project} for call in calls])
    return [call["id"] for call in calls]


def ended(wire: Wire, replay_id: str) -> Json:
    """The replay when it is done."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        replay: Json = wire.post("/replays/read", id=replay_id)["replay"]
        if replay["state"] in ENDED:
            return replay
        assert time.monotonic() < deadline, replay
        time.sleep(0.05)


def replayed(wire: Wire, **body: Any) -> Json:
    """A replay that is run to its end."""
    return ended(wire, wire.post("/replays/create", **body)["id"])


def rows_of(wire: Wire, replay: Json, **body: Any) -> list[Json]:
    """All rows of a replay."""
    return list(wire.post("/replays/results", id=replay["id"], **body)["rows"])


def test_chats_are_asked_again_and_shown_side_by_side(wire: Wire, provider: FakeProvider) -> None:
    ids = stored(wire, [chat_call(f"q{n}", temperature=0.9, max_tokens=5) for n in range(3)])
    others = stored(wire, [_call("chat", {"question": "no chat"})])
    wire.post(
        "/cost/create",
        costs={"swift": {"prompt_token_cost": 0.01, "completion_token_cost": 0.1}},
    )
    before = len(provider.requests)
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift", params={"temperature": 0}, name="try")
    assert replay["state"] == "succeeded" and replay["name"] == "try" and replay["error"] is None
    assert replay["counts"] == {"selected": 4, "replayed": 3, "failed": 0, "skipped": 1, "waiting": 0}
    sent = [request["body"] for request in provider.requests[before:]]
    assert all(body["model"] == "swift" and body["temperature"] == 0 and body["max_tokens"] == 5 for body in sent)
    assert sorted(body["messages"][-1]["content"] for body in sent) == ["q0", "q1", "q2"]
    rows = {row["original"]["call_id"]: row for row in rows_of(wire, replay)}
    assert set(rows) == {*ids, *others}
    for number, call_id in enumerate(ids):
        original, answer = rows[call_id]["original"], rows[call_id]["replay"]
        assert rows[call_id]["outcome"] == "replayed" and rows[call_id]["reason"] is None
        assert (original["answer"], answer["answer"]) == (f"old q{number}", f"Q{number}")
        assert (original["model"], answer["model"]) == ("gpt-4o-mini", "fake/swift")
        assert original["latency_ms"] == 1500 and isinstance(answer["latency_ms"], int)
        assert original["total_tokens"] == 110 and answer["total_tokens"] == 10
        assert original["total_cost"] == pytest.approx(100 * 1.5e-7 + 10 * 6e-7)
    skipped = rows[others[0]]
    assert (skipped["outcome"], skipped["reason"], skipped["replay"]) == ("skipped", "it holds no chat request", None)


def test_answers_are_calls_under_the_replay(wire: Wire) -> None:
    (source,) = stored(wire, [chat_call("hello")])
    replay = replayed(wire, filter={"call_ids": [source]}, model="fake/swift")
    root = wire.call(replay["id"])
    assert root["op_name"] == "heddle.replay" and root["ended_at"] and root["output"]["replayed"] == 1
    assert root["inputs"]["model"] == "fake/swift" and root["inputs"]["filter"] == {"call_ids": [source]}
    (answer,) = wire.calls(filter={"parent_ids": [replay["id"]]})
    assert answer["op_name"] == "heddle.replay.chat" and answer["trace_id"] == root["trace_id"] == replay["id"]
    assert answer["attributes"]["replay"] == {"id": replay["id"], "source_call_id": source, "source_trace_id": source}
    assert answer["output"]["choices"][0]["message"]["content"] == "HELLO"
    (usage,) = answer["summary"]["usage"].values()
    assert usage["prompt_tokens"] == 7 and usage["completion_tokens"] == 3 and usage["requests"] == 1
    assert wire.call(source)["output"]["choices"][0]["message"]["content"] == "old hello"


def test_spans_of_the_genai_conventions_are_replayed(wire: Wire, provider: FakeProvider) -> None:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "from a span"}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "old"}], "finish_reason": "stop"}]
    texts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be exact."}]),
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps(answer),
    }
    span = {
        "traceId": "1" * 32, "spanId": "2" * 16, "name": "chat gpt-4o-mini", "kind": 3,
        "startTimeUnixNano": "1795000000000000000", "endTimeUnixNano": "1795000001000000000",
        "attributes": [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]
        + [{"key": "gen_ai.request.temperature", "value": {"doubleValue": 0.25}}],
    }  # fmt: skip
    body = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": [span]}]}]}
    sent = wire.client.post("/otel/v1/traces", json=body, headers={"project_id": wire.project})
    assert sent.status_code == 200, sent.text
    before = len(provider.requests)
    replay = replayed(wire, filter={"call_ids": ["2" * 16]}, model="fake/swift")
    assert replay["counts"]["replayed"] == 1, rows_of(wire, replay)
    (request,) = provider.requests[before:]
    assert request["body"]["messages"] == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "from a span"},
    ]
    assert request["body"]["temperature"] == 0.25
    (row,) = rows_of(wire, replay)
    assert (row["original"]["answer"], row["replay"]["answer"]) == ("old", "FROM A SPAN")
    assert row["original"]["model"] == "gpt-4o-mini" and row["original"]["latency_ms"] == 1000


def test_a_prompt_stands_in_the_place_of_system_messages(wire: Wire, provider: FakeProvider) -> None:
    stored(wire, [chat_call("hi", template_vars={"tone": "kind"}), chat_call("ho")])
    head = {"_type": "MessagesPrompt", "_class_name": "MessagesPrompt", "_bases": ["Prompt", "Object", "BaseModel"]}
    messages = [{"role": "system", "content": "New and {tone}."}]
    prompt = Writer(wire.post, wire.project).object("voice", {**head, "messages": messages})
    before = len(provider.requests)
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift", prompt=prompt)
    (request,) = provider.requests[before:]
    assert request["body"]["messages"] == [
        {"role": "system", "content": "New and kind."},
        {"role": "user", "content": "hi"},
    ]
    assert replay["counts"]["skipped"] == 1
    (skipped,) = rows_of(wire, replay, outcomes=["skipped"])
    assert "uses [tone], which" in skipped["reason"]
    assert replay["request"]["prompt"] == prompt


def test_a_stored_model_brings_its_prompt_and_parameters(wire: Wire, provider: FakeProvider) -> None:
    stored(wire, [chat_call("hi", temperature=1.0, max_completion_tokens=9)])
    writer = Writer(wire.post, wire.project)
    parameters = {
        "messages_template": [{"role": "system", "content": "Fixed."}],
        "temperature": 0.5,
        "max_tokens": 7,
        "response_format": "text",
    }
    value = {"name": "m", "llm_model_id": "fake/swift", "default_params": parameters}
    body = {"project_id": wire.project, "object_id": "m", "val": value}
    made = wire.post("/obj/create", obj={**body, "builtin_object_class": "LLMStructuredCompletionModel"})
    ref = f"weave:///{wire.project}/object/m:{made['digest']}"
    before = len(provider.requests)
    replay = replayed(wire, filter={"op_names": ["chat"]}, model=ref, params={"temperature": 0.125})
    (request,) = provider.requests[before:]
    assert replay["state"] == "succeeded" and replay["request"]["model"] == ref
    sent = request["body"]
    assert sent["model"] == "swift" and sent["temperature"] == 0.125 and sent["max_tokens"] == 7
    assert "max_completion_tokens" not in sent
    assert [message["content"] for message in sent["messages"]] == ["Fixed.", "hi"]
    scorer = writer.scorer("ValidJSONScorer")
    answer = wire.client.post("/replays/create", json={"project_id": wire.project, "model": scorer})
    assert answer.status_code == 400 and "neither a LLMStructuredCompletionModel nor" in answer.json()["reason"]


def test_what_a_model_refuses_is_a_failed_call(wire: Wire) -> None:
    ids = stored(wire, [chat_call("fine", model="fake/swift"), chat_call("gone", model="fake/model-missing")])
    replay = replayed(wire, filter={"call_ids": ids})
    assert replay["state"] == "succeeded"
    assert replay["counts"] == {"selected": 2, "replayed": 1, "failed": 1, "skipped": 0, "waiting": 0}
    (failed,) = rows_of(wire, replay, outcomes=["failed"])
    assert failed["original"]["call_id"] == ids[1] and "no such model" in failed["reason"]
    assert failed["replay"]["status"] == "error" and failed["replay"]["answer"] is None


def test_a_model_that_is_nowhere_ends_the_replay(wire: Wire) -> None:
    stored(wire, [chat_call(f"q{n}") for n in range(30)])
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/model-missing")
    assert replay["state"] == "failed" and "no such model" in replay["error"]
    root = wire.call(replay["id"])
    assert root["ended_at"] and "no such model" in root["exception"]


def test_results_are_paged_in_a_fixed_order(wire: Wire) -> None:
    stored(wire, [chat_call(f"q{n}") for n in range(7)] + [_call("chat", {}) for _ in range(2)])
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift")
    whole = rows_of(wire, replay)
    assert [row["place"] for row in whole] == list(range(9))
    pages = [rows_of(wire, replay, limit=4, offset=offset) for offset in (0, 4, 8, 12)]
    assert [row for page in pages for row in page] == whole and pages[3] == []
    answer = wire.post("/replays/results", id=replay["id"], outcomes=["replayed"], limit=0)
    assert answer == {"rows": [], "total": 7}


def test_only_the_newest_calls_up_to_the_limit_are_chosen(wire: Wire) -> None:
    ids = stored(wire, [chat_call(f"q{n}") for n in range(5)])
    newest = sorted(wire.calls(filter={"op_names": ["chat"]}), key=lambda call: call["started_at"])[-2:]
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift", limit=2)
    chosen = {row["original"]["call_id"] for row in rows_of(wire, replay)}
    assert chosen == {call["id"] for call in newest} and chosen < set(ids)


def test_a_query_chooses_calls(wire: Wire) -> None:
    ids = stored(wire, [chat_call("red apple"), chat_call("green apple")])
    text = {"$contains": {"input": {"$getField": "inputs.messages"}, "substr": {"$literal": "green"}}}
    replay = replayed(wire, query={"$expr": text}, model="fake/swift")
    assert [row["original"]["call_id"] for row in rows_of(wire, replay)] == [ids[1]]


def test_the_set_becomes_a_dataset(wire: Wire) -> None:
    ids = stored(wire, [chat_call("one"), chat_call("two"), _call("chat", {})])
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift")
    made = wire.post("/replays/dataset", id=replay["id"], name="tried-again", description="both")
    assert made["rows"] == 2 and made["version_index"] == 0
    assert made["ref"] == f"weave:///{wire.project}/object/tried-again:{made['digest']}"
    value = wire.post("/obj/read", object_id="tried-again", digest="latest")["obj"]["val"]
    assert value["_class_name"] == "Dataset" and value["description"] == "both"
    rows = wire.post("/table/query", digest=value["rows"].rpartition("/")[2])["rows"]
    by_source = {row["val"]["source_call_id"]: row["val"] for row in rows}
    assert set(by_source) == set(ids[:2])
    row = by_source[ids[0]]
    assert (row["original_output"], row["replayed_output"]) == ("old one", "ONE")
    assert row["messages"][-1] == {"role": "user", "content": "one"} and row["inputs"]["model"] == "gpt-4o-mini"
    assert row["replayed_model"] == "fake/swift" and row["original_scores"] == {}
    assert wire.call(row["replayed_call_id"])["parent_id"] == replay["id"]


def test_results_say_which_calls_were_deleted(wire: Wire) -> None:
    """Their sides have no figures, which are neither those of an empty answer nor of a failure."""
    ids = stored(wire, [chat_call("one"), chat_call("two")])
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift")
    rows = {row["original"]["call_id"]: row for row in rows_of(wire, replay)}
    wire.post("/calls/delete", call_ids=[ids[0], rows[ids[1]]["replay"]["call_id"]])
    rows = {row["original"]["call_id"]: row for row in rows_of(wire, replay)}
    assert [rows[call_id]["reason"] for call_id in ids] == ["the recorded call was deleted", "the new call was deleted"]
    assert rows[ids[0]]["replay"]["answer"] == "ONE" and rows[ids[0]]["original"]["status"] is None
    assert rows[ids[1]]["replay"] is None and rows[ids[1]]["outcome"] == "replayed"
    made = wire.post("/replays/dataset", id=replay["id"], name="what-is-left")
    value = wire.post("/obj/read", object_id="what-is-left", digest=made["digest"])["obj"]["val"]
    kept = wire.post("/table/query", digest=value["rows"].rpartition("/")[2])["rows"]
    assert sorted(row["val"]["reason"] for row in kept) == ["the new call was deleted", "the recorded call was deleted"]


def test_scorers_judge_both_answers(wire: Wire) -> None:
    ids = stored(wire, [chat_call("one"), chat_call("two")])
    scorer = Writer(wire.post, wire.project).scorer("ValidJSONScorer", name="ValidJSONScorer")
    replay = replayed(wire, filter={"call_ids": ids}, model="fake/swift", scorer_refs=[scorer])
    assert replay["scoring_job_id"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        rows = rows_of(wire, replay)
        if all(row[side]["scores"] for row in rows for side in ("original", "replay")):
            break
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
    assert all(set(row[side]["scores"]) == {"ValidJSONScorer"} for row in rows for side in ("original", "replay"))


def test_replays_are_listed_newest_first(wire: Wire) -> None:
    stored(wire, [chat_call("one")])
    made = [replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift", name=f"n{n}") for n in range(3)]
    listed = wire.post("/replays/query")["replays"]
    assert [item["id"] for item in listed] == [item["id"] for item in reversed(made)]
    assert listed[0] == made[2]
    assert [item["name"] for item in wire.post("/replays/query", limit=1, offset=1)["replays"]] == ["n1"]
    for path in ("/replays/query", "/alerts/deliveries/query"):
        answer = wire.client.post(path, json={"project_id": wire.project, "offset": 2**64})
        assert answer.status_code == 400 and "64 bits" in answer.json()["reason"]
    assert wire.post("/replays/query", states=["failed"])["replays"] == []


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 404, "Replay"),
        ({"limit": 0}, 422, "limit"),
        ({"limit": 10_001}, 422, "limit"),
        ({"query": {"$expr": {"$nope": 1}}}, 422, "$nope"),
        ({"query": {"$expr": {"$eq": [{"$getField": "colour"}, {"$literal": 1}]}}}, 422, "colour"),
        ({"filter": {"call_ids": "x"}}, 422, "call_ids"),
        ({"filter": {"call_ids": ["x"] * 1001}}, 400, "call_ids"),
        ({"params": {"temperature": -1}}, 422, "temperature"),
        ({"params": {"messages": []}}, 422, "messages"),
        ({"params": {"stream": True}}, 422, "stream"),
        ({"model": ""}, 422, "model"),
        ({"prompt": "weave:///PROJECT/object/none:latest"}, 404, "none"),
        ({"prompt": "weave:///elsewhere"}, 400, "weave:///elsewhere"),
        ({"scorer_refs": ["weave:///PROJECT/object/none:latest"]}, 400, "none"),
        ({"scorer_refs": ["none"]}, 400, "scorer"),
        ({"project_id": "no-slash"}, 400, "no-slash"),
    ],
)
def test_bad_replays_are_refused_and_nothing_is_queued(wire: Wire, body: Json, status: int, word: str) -> None:
    path = "/replays/create" if body else "/replays/read"
    sent = {"project_id": wire.project, **(body or {"id": "unknown"})}
    text = httpx.Request("POST", wire.url, json=sent).content.replace(b"PROJECT", wire.project.encode())
    answer = wire.client.post(path, content=text)
    assert answer.status_code == status, answer.text
    assert word in answer.text and set(answer.json()) <= {"detail", "reason"}
    assert wire.post("/replays/query")["replays"] == [] and wire.calls() == []


def test_a_dataset_needs_a_name_and_rows(wire: Wire) -> None:
    stored(wire, [_call("chat", {})])
    replay = replayed(wire, filter={"op_names": ["chat"]}, model="fake/swift")
    for body, status in (({"name": "a b"}, 422), ({}, 422), ({"name": "d", "outcomes": []}, 422), ({"name": "d"}, 400)):
        answer = wire.client.post("/replays/dataset", json={"project_id": wire.project, "id": replay["id"], **body})
        assert answer.status_code == status, answer.text
    assert wire.objects() == []
    assert wire.post("/replays/dataset", id=replay["id"], name="d", outcomes=["skipped"])["rows"] == 1


@pytest.mark.parametrize("path", ["/replays/read", "/replays/results", "/replays/cancel", "/replays/dataset"])
def test_an_unknown_replay_is_not_found(wire: Wire, path: str) -> None:
    named = {"name": "d"} if path == "/replays/dataset" else {}
    answer = wire.client.post(path, json={"project_id": wire.project, "id": str(uuid.uuid4()), **named})
    assert answer.status_code == 404 and "not found" in answer.json()["reason"]


def test_keys_bound_elsewhere_and_readers_are_kept_out(tmp_path: Path, provider: FakeProvider) -> None:
    data = tmp_path / "data"
    keys = {
        "owner": make_key(data, "owner", "--project", "team/one"),
        "other": make_key(data, "other", "--project", "team/two"),
        "reader": make_key(data, "reader", "--scope", "read"),
    }
    with HeddleProcess(data, auth="on", providers=f"fake={provider.url}", model="none") as process:

        def post(who: str, path: str, **body: Any) -> httpx.Response:
            return httpx.post(process.url + path, json={"project_id": "team/one", **body}, auth=("api", keys[who]))

        call = {**chat_call("hi"), "project_id": "team/one"}
        assert post("owner", "/v2/team/one/calls/complete", batch=[call]).status_code == 200
        made = post("owner", "/replays/create", model="fake/swift")
        assert made.status_code == 200
        named: dict[str, Json] = {path: {"id": made.json()["id"]} for path in ("read", "results", "cancel", "dataset")}
        named["dataset"]["name"] = "d"
        for path in ("create", "query", "read", "results", "cancel", "dataset"):
            assert post("other", f"/replays/{path}", **named.get(path, {})).status_code == 403
        for path in ("create", "cancel", "dataset"):
            assert post("reader", f"/replays/{path}", **named.get(path, {})).status_code == 403
        assert post("reader", "/replays/read", id=made.json()["id"]).status_code == 200
        answer = post("other", "/replays/read", project_id="team/two", id=made.json()["id"])
        assert answer.status_code == 404


@contextmanager
def slow(folder: Path, first: int) -> Iterator[tuple[GatedProvider, HeddleProcess, Wire]]:
    """A server whose provider answers so many requests at once and the others when it is let."""
    with GatedProvider(first) as gated:
        process = HeddleProcess(
            folder / "data", providers=f"fake={gated.url}", model="none", evaluation_parallel=4
        ).start()
        wire = Wire(process.url, "team/slow")
        try:
            yield gated, process, wire
        finally:
            gated.opened.set()
            wire.client.close()
            process.kill()


def counted(wire: Wire, replay_id: str, least: int) -> Json:
    """The replay once so many of its calls are answered."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        replay: Json = wire.post("/replays/read", id=replay_id)["replay"]
        if replay["counts"]["replayed"] >= least:
            return replay
        assert time.monotonic() < deadline, replay
        time.sleep(0.02)


def test_killed_in_the_middle_each_chat_is_replayed_once(tmp_path: Path) -> None:
    with slow(tmp_path, first=25) as (gated, process, wire):
        ids = stored(wire, [chat_call(f"q{n}") for n in range(60)])
        replay_id = wire.post("/replays/create", filter={"op_names": ["chat"]}, model="fake/swift")["id"]
        counted(wire, replay_id, 25)
        process.kill()
        stored_before = len(gated.requests)
        gated.opened.set()
        process.start()
        later = stored(wire, [chat_call("later")])
        replay = ended(wire, replay_id)
        assert replay["state"] == "succeeded"
        assert replay["counts"] == {"selected": 60, "replayed": 60, "failed": 0, "skipped": 0, "waiting": 0}
        answers = wire.calls(filter={"parent_ids": [replay_id]})
        sources = [answer["attributes"]["replay"]["source_call_id"] for answer in answers]
        assert len(answers) == len(set(sources)) == 60 and set(sources) == set(ids)
        assert not set(later) & set(sources)
        assert stored_before >= 25 and len(gated.requests) <= 60 + 4
        assert len(wire.calls(filter={"call_ids": [replay_id]})) == 1


def test_a_cancelled_replay_keeps_what_was_answered(tmp_path: Path) -> None:
    with slow(tmp_path, first=5) as (_, _, wire):
        stored(wire, [chat_call(f"q{n}") for n in range(30)])
        replay_id = wire.post("/replays/create", filter={"op_names": ["chat"]}, model="fake/swift")["id"]
        counted(wire, replay_id, 5)
        wire.post("/replays/cancel", id=replay_id)
        replay = ended(wire, replay_id)
        assert replay["state"] == "cancelled" and replay["counts"]["waiting"] > 0
        root = wire.call(replay_id)
        assert root["exception"] == "cancelled" and root["ended_at"]
        assert len(wire.calls(filter={"parent_ids": [replay_id]})) >= 5
        assert wire.post("/replays/dataset", id=replay_id, name="part")["rows"] == replay["counts"]["replayed"]
        assert wire.post("/replays/cancel", id=replay_id)["replay"]["state"] == "cancelled"


def test_a_replay_whose_call_is_deleted_ends(tmp_path: Path) -> None:
    with slow(tmp_path, first=5) as (gated, _, wire):
        stored(wire, [chat_call(f"q{n}") for n in range(150)])
        replay_id = wire.post("/replays/create", filter={"op_names": ["chat"]}, model="fake/swift", limit=150)["id"]
        counted(wire, replay_id, 5)
        wire.post("/calls/delete", call_ids=[replay_id])
        gated.opened.set()
        replay = ended(wire, replay_id)
        assert replay["state"] == "failed" and "deleted" in replay["error"]
        assert wire.calls(filter={"parent_ids": [replay_id]}) == []
        assert len(gated.requests) <= 100 + 4, "the page that was at work, and no other"


@pytest.mark.thorough
def test_a_job_that_took_the_server_with_it_twice_is_never_run_again(tmp_path: Path) -> None:
    with slow(tmp_path, first=0) as (gated, process, wire):
        stored(wire, [chat_call("fatal")])
        replay_id = wire.post("/replays/create", filter={"op_names": ["chat"]}, model="fake/swift")["id"]
        for asked in (1, 2):
            deadline = time.monotonic() + DEADLINE_SECONDS
            while gated.waiting < asked:
                assert time.monotonic() < deadline, wire.post("/replays/read", id=replay_id)
                time.sleep(0.02)
            process.kill()
            process.start()
        replay = ended(wire, replay_id)
        assert replay["state"] == "failed" and "the server ended 2 times" in replay["error"]
        assert gated.waiting == 2


@pytest.mark.parametrize("others", [[], ["RegexMatchScorer"]])
def test_a_scorer_that_is_deleted_meanwhile_is_named_and_the_others_score(tmp_path: Path, others: list[str]) -> None:
    """Every answer was there, and the replay ended as failed, without its scoring job."""
    with slow(tmp_path, first=0) as (gated, _process, wire):
        writer = Writer(wire.post, wire.project)
        scorer = writer.scorer("ValidJSONScorer", name="ValidJSONScorer")
        left = [writer.scorer(name, name=name, pattern="x") for name in others]
        ids = stored(wire, [chat_call("one")])
        asked = {"filter": {"call_ids": ids}, "model": "fake/swift", "scorer_refs": [scorer, *left]}
        replay_id = wire.post("/replays/create", **asked)["id"]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not gated.waiting:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        wire.post("/obj/delete", object_id=scorer.rpartition("/")[2].partition(":")[0])
        gated.opened.set()
        replay = ended(wire, replay_id)
        assert (replay["state"], replay["error"], replay["counts"]["replayed"]) == ("succeeded", None, 1)
        while True:
            [job] = wire.post("/evaluations/jobs/query", kinds=["score_calls"])["jobs"]
            if job["state"] in ENDED:
                break
            assert time.monotonic() < deadline, job
            time.sleep(0.02)
        assert job["id"] == replay["scoring_job_id"]
        assert job["state"] == ("succeeded" if others else "failed")
        replay = wire.post("/replays/read", id=replay_id)["replay"]
        assert replay["scoring_state"] == job["state"]
        assert f"The scorer {scorer} was not found" in replay["scoring_problem"]
        [row] = rows_of(wire, replay)
        assert [set(row[side]["scores"]) for side in ("original", "replay")] == [set(others)] * 2
        assert job["result"] == (
            {"scored": 2, "skipped": 0, "failed": 0, "refused_scorers": [replay["scoring_problem"]]} if others else None
        )

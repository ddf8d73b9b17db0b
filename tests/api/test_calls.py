"""Calls over HTTP: halves in any order, large and media fields, reads, sums, deletion."""

import base64
import io
import uuid
import wave
from typing import Any

import pytest

from tests.conftest import Wire

ON_BOTH_STORES = True

T0 = "2026-03-01T10:00:00.000000Z"
MISSING = {"reason", "detail"}


def new_id() -> str:
    return str(uuid.uuid4())


def start(wire: Wire, call_id: str, **fields: Any) -> dict[str, Any]:
    """The first half of a call of the test's project."""
    base = {
        "op_name": "op",
        "trace_id": fields.get("trace_id", call_id),
        "started_at": T0,
        "attributes": {},
        "inputs": {},
    }
    return {**base, "project_id": wire.project, "id": call_id, **fields}


def end(wire: Wire, call_id: str, **fields: Any) -> dict[str, Any]:
    """The second half of a call of the test's project."""
    return {
        "project_id": wire.project,
        "id": call_id,
        "ended_at": "2026-03-01T10:00:01.500000Z",
        "summary": {},
        **fields,
    }


def complete(wire: Wire, *calls: dict[str, Any]) -> None:
    """Store whole calls."""
    entity, project = wire.project.split("/")
    answer = wire.client.post(f"/v2/{entity}/{project}/calls/complete", json={"batch": list(calls)})
    assert (answer.status_code, answer.json()) == (200, {}), answer.text


def whole(wire: Wire, call_id: str, **fields: Any) -> dict[str, Any]:
    """A whole call: both halves in one."""
    return {**start(wire, call_id), **end(wire, call_id), **fields}


def one(wire: Wire, call_id: str, **body: Any) -> dict[str, Any]:
    found = wire.calls(filter={"call_ids": [call_id]}, **body)
    assert len(found) == 1
    return found[0]


def test_missing_ids_are_made(wire: Wire) -> None:
    body = start(wire, "")
    del body["id"], body["trace_id"]
    made = wire.client.post("/call/start", json={"start": body}).json()
    assert one(wire, made["id"])["trace_id"] == made["trace_id"]


@pytest.mark.parametrize("name", ["id", "trace_id"])
@pytest.mark.parametrize("text", [".", ".."])
def test_ids_that_no_address_can_hold_are_refused(wire: Wire, name: str, text: str) -> None:
    answer = wire.client.post("/call/start", json={"start": {**start(wire, new_id()), name: text}})
    assert answer.status_code == 400
    assert answer.json() == {"reason": f"Invalid {name}: '{text}' cannot be part of a web address"}
    assert wire.calls() == []


def test_an_end_alone_is_invisible_until_its_start_comes(wire: Wire) -> None:
    call_id = new_id()
    usage = {"m": {"requests": 1, "prompt_tokens": 5, "completion_tokens": 2}}
    assert (
        wire.client.post("/call/end", json={"end": end(wire, call_id, output=[1], summary={"usage": usage})}).json()
        == {}
    )
    assert wire.calls() == []
    assert wire.post("/call/read", id=call_id) == {"call": None}
    assert wire.post("/calls/query_stats")["count"] == 0
    wire.client.post("/call/start", json={"start": start(wire, call_id, inputs={"a": 1})})
    call = one(wire, call_id)
    assert (call["inputs"], call["output"], call["summary"]["weave"]["status"]) == ({"a": 1}, [1], "success")
    assert call["summary"]["weave"]["latency_ms"] == 1500
    rolled = wire.post("/calls/usage", call_ids=[call_id])["call_usage"][call_id]["m"]
    assert (rolled["prompt_tokens"], rolled["total_tokens"]) == (5, 7)


def test_a_batch_takes_halves_in_any_order_and_answers_each(wire: Wire) -> None:
    first, second = new_id(), new_id()
    batch = [
        {"mode": "end", "req": {"end": end(wire, first, output="done")}},
        {"mode": "start", "req": {"start": start(wire, first)}},
        {"mode": "start", "req": {"start": start(wire, second)}},
    ]
    answer = wire.client.post("/call/upsert_batch", json={"batch": batch}).json()
    assert answer == {"res": [{}, {"id": first, "trace_id": first}, {"id": second, "trace_id": second}]}
    assert one(wire, first)["output"] == "done"
    assert one(wire, second)["summary"]["weave"] == {"status": "running", "trace_name": "op"}


def test_a_batch_with_one_bad_item_stores_nothing(wire: Wire) -> None:
    good = {"mode": "start", "req": {"start": start(wire, new_id())}}
    bad = {"mode": "start", "req": {"start": {**start(wire, new_id()), "inputs": 5}}}
    answer = wire.client.post("/call/upsert_batch", json={"batch": [good, bad]})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "batch", 1, "start", "req", "start", "inputs"]
    assert wire.calls() == []
    unknown = wire.client.post("/call/upsert_batch", json={"batch": [good, {**good, "mode": "other"}]})
    assert unknown.status_code == 400 and "other" in unknown.json()["reason"]


def test_the_same_start_again_refreshes_the_call(wire: Wire) -> None:
    call_id = new_id()
    complete(wire, whole(wire, call_id, inputs={"ref": f"weave:///{wire.project}/object/x:v"}, output="kept"))
    wire.client.post("/call/start", json={"start": start(wire, call_id, op_name="newer", inputs={"b": 2})})
    call = one(wire, call_id)
    assert (call["op_name"], call["inputs"], call["output"]) == ("newer", {"b": 2}, "kept")
    assert wire.calls(filter={"input_refs": [f"weave:///{wire.project}/object/x:v"]}) == []


def test_v2_end_of_an_unknown_call_is_404(wire: Wire) -> None:
    entity, project = wire.project.split("/")
    answer = wire.client.post(f"/v2/{entity}/{project}/call/end", json={"end": end(wire, new_id())})
    assert answer.status_code == 404 and "not found" in answer.json()["reason"]


def test_v2_refuses_a_call_of_another_project(wire: Wire) -> None:
    answer = wire.client.post("/v2/other/project/calls/complete", json={"batch": [whole(wire, new_id())]})
    assert answer.status_code == 403 and wire.calls() == []


def test_a_field_of_many_megabytes_comes_back_whole(wire: Wire) -> None:
    call_id, text = new_id(), "0123456789é" * 400_000
    complete(wire, whole(wire, call_id, inputs={"long": text, "n": 7}, output={"list": list(range(300_000))}))
    call = wire.call(call_id)
    assert call["inputs"] == {"long": text, "n": 7}
    assert call["output"] == {"list": list(range(300_000))}
    query = {"$expr": {"$eq": [{"$getField": "inputs.n"}, {"$literal": 7}]}}
    assert [found["id"] for found in wire.calls(query=query, columns=["id"])] == [call_id]
    complete(wire, whole(wire, call_id, inputs={"n": 8}))
    assert wire.call(call_id)["inputs"] == {"n": 8}


def sound() -> bytes:
    """A second of silence."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setparams((1, 2, 8000, 8000, "NONE", ""))
        out.writeframes(bytes(16000))
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["data:audio/wav;base64,{}", "{}"])
def test_long_base64_media_becomes_a_file(wire: Wire, form: str) -> None:
    call_id, content = new_id(), sound()
    text = form.format(base64.b64encode(content).decode())
    complete(wire, whole(wire, call_id, inputs={"clip": text, "words": "A" * 9000}, output=[text]))
    call = one(wire, call_id)
    clip = call["inputs"]["clip"]
    assert clip["weave_type"] == {"type": "weave.type_wrappers.Content.content.Content"}
    assert call["output"] == [clip]
    assert call["inputs"]["words"] == "A" * 9000
    assert wire.file(clip["files"]["content"]) == content
    assert b'"size": 16044' in wire.file(clip["files"]["metadata.json"])


def test_columns_cut_what_is_read_and_keep_the_summary_right(wire: Wire) -> None:
    call_id = new_id()
    complete(wire, whole(wire, call_id, inputs={"a": {"b": 1}, "c": 2}, output=1, display_name="shown", wb_run_step=3))
    call = one(wire, call_id, columns=["inputs.a"])
    assert call["inputs"] == {"a": {"b": 1}, "c": 2}
    assert (call["output"], call["ended_at"], call["display_name"], call["wb_run_step"]) == (None, None, None, None)
    assert call["attributes"] == {}
    assert call["summary"]["weave"]["status"] == "success"
    assert one(wire, call_id, columns=["summary"])["ended_at"] is not None


def test_what_the_client_says_of_weave_in_its_summary_is_rebuilt(wire: Wire) -> None:
    call_id = new_id()
    summary = {"weave": {"status": "lie", "latency_ms": 1, "own": True}, "x": 1, "status_counts": {"error": 2}}
    complete(wire, whole(wire, call_id, summary=summary))
    assert one(wire, call_id)["summary"] == {
        "x": 1,
        "status_counts": {"error": 2},
        "weave": {"own": True, "status": "descendant_error", "trace_name": "op", "latency_ms": 1500},
    }


def test_naming_and_clearing_a_call(wire: Wire) -> None:
    call_id = new_id()
    complete(wire, whole(wire, call_id))
    assert wire.post("/call/update", call_id=call_id, display_name="named") == {}
    assert one(wire, call_id)["summary"]["weave"]["display_name"] == "named"
    assert wire.post("/call/update", call_id=call_id, display_name="") == {}
    assert one(wire, call_id)["display_name"] is None
    assert wire.post("/call/update", call_id=new_id(), display_name="nobody") == {}
    refused = wire.client.post("/call/update", json={"project_id": wire.project, "call_id": call_id})
    assert refused.status_code == 400 and "display_name" in refused.json()["reason"]


def test_deleting_takes_the_descendants_along_and_nothing_else(wire: Wire) -> None:
    root, child, grandchild, other = (new_id() for _ in range(4))
    complete(
        wire,
        whole(wire, root),
        whole(wire, child, trace_id=root, parent_id=root, summary={"usage": {"m": {"prompt_tokens": 9}}}),
        whole(wire, grandchild, trace_id=root, parent_id=child),
        whole(wire, other, trace_id=root, parent_id=root),
    )
    assert wire.post("/calls/delete", call_ids=[child]) == {"num_deleted": 2}
    assert {call["id"] for call in wire.calls()} == {root, other}
    assert wire.post("/call/read", id=grandchild) == {"call": None}
    assert wire.post("/calls/usage", call_ids=[root])["call_usage"] == {root: {}}
    assert wire.post("/calls/delete", call_ids=[new_id()]) == {"num_deleted": 0}
    assert wire.post("/calls/delete", call_ids=[root, new_id()]) == {"num_deleted": 3}
    assert wire.calls() == []
    too_many = wire.client.post("/calls/delete", json={"project_id": wire.project, "call_ids": ["x"] * 1001})
    assert too_many.status_code == 413


def test_order_is_total_and_pages_meet(wire: Wire) -> None:
    ids = sorted(new_id() for _ in range(25))
    complete(wire, *(whole(wire, call_id, inputs={"n": index % 3}) for index, call_id in enumerate(reversed(ids))))
    assert [call["id"] for call in wire.calls()] == ids
    pages = [call["id"] for offset in range(0, 25, 10) for call in wire.calls(limit=10, offset=offset)]
    assert pages == ids
    by_number = wire.calls(sort_by=[{"field": "inputs.n", "direction": "asc"}], columns=["inputs"])
    expected = sorted(by_number, key=lambda call: (call["inputs"]["n"], [-ord(letter) for letter in call["id"]]))
    assert by_number == expected
    assert wire.calls(limit=0) == []


def test_a_stream_longer_than_its_pages_is_complete(wire: Wire) -> None:
    for _ in range(10):
        complete(wire, *(whole(wire, new_id()) for _ in range(130)))
    newest_first = [{"field": "started_at", "direction": "desc"}]
    for sort_by in (None, newest_first, [{"field": "id", "direction": "desc"}], []):
        ids = [call["id"] for call in wire.calls(columns=["id"], sort_by=sort_by)]
        assert len(ids) == len(set(ids)) == 1300
    descending = [call["id"] for call in wire.calls(columns=["id"], sort_by=newest_first)]
    assert descending == sorted(descending, reverse=True)
    assert len(wire.calls(columns=["id"], limit=700, offset=500)) == 700


def test_refs_are_found_wherever_they_stand(wire: Wire) -> None:
    call_id = new_id()
    ref = f"weave:///{wire.project}/object/data:abc/attr/rows/id/xyz"
    complete(wire, whole(wire, call_id, inputs={"deep": [{"ref": ref}]}, output={"other": ref}))
    assert one(wire, call_id)["inputs"] == {"deep": [{"ref": ref}]}
    assert len(wire.calls(filter={"input_refs": [ref]})) == 1
    assert len(wire.calls(filter={"output_refs": [f"weave:///{wire.project}/object/data:*"]})) == 1
    assert wire.calls(filter={"input_refs": [f"weave:///{wire.project}/object/dat:*"]}) == []
    without = {"$eq": [{"$getField": "input_refs"}, {"$literal": None}]}
    alone = {"project_id": wire.project, "id": "without", "trace_id": "t", "op_name": "o", "inputs": {"a": "text"}}
    wire.post("/call/start", start={**alone, "started_at": "2026-01-01T00:00:00Z", "attributes": {}})
    assert [call["id"] for call in wire.calls(query={"$expr": without})] == ["without"]
    assert "without" not in [call["id"] for call in wire.calls(query={"$expr": {"$not": [without]}})]
    foreign = whole(wire, new_id(), inputs={"x": "weave-trace-internal:///nobody/object/a:b"})
    entity, project = wire.project.split("/")
    refused = wire.client.post(f"/v2/{entity}/{project}/calls/complete", json={"batch": [foreign]})
    assert (refused.status_code, refused.json()) == (400, {"reason": "Encountered unexpected internal ref format."})


def test_ops_are_found_by_version_and_by_wildcard(wire: Wire) -> None:
    refs = [f"weave:///{wire.project}/op/{name}" for name in ("predict:v1", "predict:v2", "predict2:v1")]
    complete(wire, *(whole(wire, new_id(), op_name=ref) for ref in refs))
    assert [call["op_name"] for call in wire.calls(filter={"op_names": [refs[0]]})] == refs[:1]
    wildcard = f"weave:///{wire.project}/op/predict:*"
    assert {call["op_name"] for call in wire.calls(filter={"op_names": [wildcard]})} == set(refs[:2])
    assert wire.calls(filter={"op_names": [wildcard]})[0]["summary"]["weave"]["trace_name"] == "predict"


def test_expanded_columns_are_shown_filtered_and_sorted_by(wire: Wire) -> None:
    digests = [
        wire.client.post(
            "/obj/create", json={"obj": {"project_id": wire.project, "object_id": "m", "val": {"t": t}}}
        ).json()["digest"]
        for t in (3, 1, 2)
    ]
    refs = [f"weave:///{wire.project}/object/m:{digest}" for digest in digests]
    complete(wire, *(whole(wire, new_id(), inputs={"model": ref}) for ref in refs))
    inline = new_id()
    complete(wire, whole(wire, inline, op_name="inline", inputs={"model": {"t": 7}}))
    found = wire.calls(expand_columns=["inputs.model"], sort_by=[{"field": "inputs.model.t", "direction": "asc"}])
    assert [call["inputs"]["model"] for call in found] == [
        *({"t": t, "_ref": refs[(3, 1, 2).index(t)]} for t in (1, 2, 3)),
        {"t": 7},
    ]
    query = {"$expr": {"$gt": [{"$getField": "inputs.model.t"}, {"$literal": 1}]}}
    unexpanded = wire.calls(expand_columns=["inputs.model"], return_expanded_column_values=False, query=query)
    assert {call["inputs"]["model"] for call in unexpanded} == {refs[0], refs[2]}
    assert wire.post("/calls/query_stats", expand_columns=["inputs.model"], query=query)["count"] == 2
    assert {call["id"] for call in wire.calls(query=query)} == {inline}  # what is no ref counts only unexpanded


def test_sizes_of_a_call_and_of_its_trace(wire: Wire) -> None:
    root, child = new_id(), new_id()
    complete(wire, whole(wire, root, inputs={"a": 1}), whole(wire, child, trace_id=root, parent_id=root, output="xyz"))
    found = {call["id"]: call for call in wire.calls(include_storage_size=True, include_total_storage_size=True)}
    sizes = {call_id: call["storage_size_bytes"] for call_id, call in found.items()}
    assert sizes[root] == len('{"a":1}') + len("{}") + len("{}")
    assert found[root]["total_storage_size_bytes"] == sum(sizes.values())
    assert found[child]["total_storage_size_bytes"] is None


def test_usage_rolls_up_the_trace(wire: Wire) -> None:
    root, child, running = new_id(), new_id(), new_id()
    usage = {"gpt-4o": {"requests": 1, "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}
    complete(
        wire,
        whole(wire, root),
        whole(
            wire, child, trace_id=root, parent_id=root, summary={"usage": {**usage, "nobody": {"input_tokens": "3"}}}
        ),
    )
    wire.client.post("/call/start", json={"start": start(wire, running, trace_id=root, parent_id=child)})
    answer = wire.post("/calls/usage", call_ids=[root, "unknown"], include_costs=True)
    assert answer["unfinished_call_ids"] == [running]
    assert answer["call_usage"]["unknown"] == {}
    rolled = answer["call_usage"][root]
    assert (rolled["gpt-4o"]["total_tokens"], rolled["nobody"]["prompt_tokens"]) == (15, 3)
    assert rolled["gpt-4o"]["prompt_tokens_total_cost"] == pytest.approx(10 * 2.5e-06)
    assert answer["x_unpriced_models"] == ["nobody"]
    selected = wire.post("/trace/usage", filter={"trace_ids": [root]})
    assert set(selected["call_usage"]) == {root, child, running}
    assert selected["call_usage"][root]["gpt-4o"]["prompt_tokens_total_cost"] is None


def test_calls_over_time(wire: Wire) -> None:
    usage = {"usage": {"m": {"prompt_tokens": 10, "completion_tokens": 1}}}
    moments = ["2026-03-01T10:05:00Z", "2026-03-01T10:55:00Z", "2026-03-01T12:10:00Z"]
    complete(
        wire,
        *(
            whole(wire, new_id(), started_at=moment, ended_at="2026-03-01T12:10:01Z", summary=usage)
            for moment in moments
        ),
    )
    body = {"start": "2026-03-01T10:30:00Z", "end": "2026-03-01T13:00:00Z", "granularity": 3600}
    metrics = {
        "usage_metrics": [
            {"metric": "input_tokens"},
            {"metric": "output_tokens", "aggregations": ["avg", "min"], "percentiles": [50]},
        ],
        "call_metrics": [{"metric": "call_count"}, {"metric": "latency_ms", "aggregations": ["max"]}],
    }
    answer = wire.post("/calls/stats", **body, **metrics)
    assert [bucket["timestamp"] for bucket in answer["call_buckets"]] == [
        f"2026-03-01T{hour}:00:00.000000Z" for hour in (10, 11, 12)
    ]
    assert [bucket["sum_call_count"] for bucket in answer["call_buckets"]] == [1, 0, 1]
    assert [bucket["max_latency_ms"] for bucket in answer["call_buckets"]] == [4501000.0, None, 1000.0]
    used = answer["usage_buckets"]
    assert [bucket["sum_input_tokens"] for bucket in used] == [10, 0, 10]
    assert [bucket["p50_output_tokens"] for bucket in used] == [1, None, 1]
    assert [(bucket["model"], bucket["count"]) for bucket in used] == [("m", 1), ("m", 0), ("m", 1)]
    too_long = wire.client.post(
        "/calls/stats",
        json={"project_id": wire.project, "start": "2026-01-01T00:00:00Z", "end": "2026-03-01T00:00:00Z"},
    )
    assert too_long.status_code == 422
    assert wire.post("/calls/stats", start=T0, end=T0)["granularity"] == 0


def test_threads_are_summed_over_their_turns(wire: Wire) -> None:
    turns = [new_id() for _ in range(3)]
    complete(
        wire,
        *(
            whole(
                wire,
                turn,
                thread_id="talk",
                turn_id=turn,
                started_at=f"2026-03-01T10:0{n}:00Z",
                ended_at=f"2026-03-01T10:0{n}:0{n + 1}Z",
            )
            for n, turn in enumerate(turns)
        ),
        whole(wire, new_id(), thread_id="talk", turn_id=turns[0]),
    )
    running = new_id()
    wire.client.post("/call/start", json={"start": start(wire, running, thread_id="silent", turn_id=running)})
    [thread] = wire.lines("/threads/stream_query")
    assert thread == {
        "thread_id": "talk",
        "turn_count": 3,
        "start_time": "2026-03-01T10:00:00.000000Z",
        "last_updated": "2026-03-01T10:02:03.000000Z",
        "first_turn_id": turns[0],
        "last_turn_id": turns[2],
        "p50_turn_duration_ms": 2000.0,
        "p99_turn_duration_ms": pytest.approx(2980.0),
    }
    assert wire.lines("/threads/stream_query", filter={"after_datetime": "2026-03-01T10:02:00Z"}) == []
    refused = wire.client.post(
        "/threads/stream_query", json={"project_id": wire.project, "sort_by": [{"field": "x", "direction": "asc"}]}
    )
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/calls/stream_query", {"limit": -1}, 400),
        ("/calls/stream_query", {"offset": -1}, 400),
        ("/calls/stream_query", {"filter": {"call_ids": ["x"] * 1001}}, 400),
        ("/calls/stream_query", {"sort_by": [{"field": "nope", "direction": "asc"}]}, 422),
        ("/calls/stream_query", {"sort_by": [{"field": "id", "direction": "up"}]}, 422),
        ("/calls/stream_query", {"query": {"$expr": {"$eq": [{"$getField": "nope"}, {"$literal": 1}]}}}, 422),
        ("/calls/stream_query", {"query": {"$expr": {"$and": []}}}, 400),
        ("/calls/query_stats", {"limit": 0}, 400),
        ("/trace/usage", {"limit": -5}, 400),
    ],
)
def test_bad_reads_are_refused_before_the_first_line(wire: Wire, path: str, body: dict[str, Any], status: int) -> None:
    answer = wire.client.post(path, json={"project_id": wire.project, **body})
    assert answer.status_code == status
    assert MISSING & answer.json().keys()


def test_usage_of_a_trace_is_never_a_part_of_it(wire: Wire) -> None:
    roots = [new_id() for _ in range(3)]
    usage = {"usage": {"m": {"prompt_tokens": 2}}}
    for root in roots:
        below = (whole(wire, new_id(), trace_id=root, parent_id=root, summary=usage) for _ in range(4))
        complete(wire, whole(wire, root), *below)
    rolled = wire.post("/calls/usage", call_ids=roots, limit=5)["call_usage"]
    assert {root: rolled[root]["m"]["prompt_tokens"] for root in roots} == dict.fromkeys(roots, 8)
    refused = wire.client.post("/calls/usage", json={"project_id": wire.project, "call_ids": roots[:1], "limit": 4})
    assert refused.status_code == 413
    assert f"trace '{roots[0]}' has more calls than limit = 4" in refused.json()["reason"]

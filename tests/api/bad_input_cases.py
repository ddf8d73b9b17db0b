"""Rules of `trace-core.md` that refuse a request, one case each, with the status that the contract gives."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.api.bad_input_table import CALL, DAY, DIGEST, END, FEEDBACK, PROJECT, START, TABLE, TARGET


@dataclass(frozen=True)
class Case:
    """A request, the statuses that may answer it, and a regular expression for words that its body holds."""

    name: str
    method: str
    path: str
    request: dict[str, Any]
    statuses: tuple[int, ...]
    says: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def post(name: str, path: str, body: Any, *statuses: int, says: str = "", **headers: str) -> Case:
    """A case with a JSON body."""
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return Case(name, "POST", path, {"content": json.dumps(body)}, statuses, says, names)


def query(name: str, expression: Any, *statuses: int, says: str = "") -> list[Case]:
    """A query that every route which takes one over calls refuses alike."""
    body = {"project_id": PROJECT, "query": {"$expr": expression}}
    paths = ("/calls/stream_query", "/calls/query_stats", "/trace/usage")
    return [post(f"{name} in {path}", path, body, *statuses, says=says) for path in paths]


def over(name: str, path: str, body: dict[str, Any], *statuses: int, says: str = "") -> Case:
    """A case whose body carries the project id."""
    return post(name, path, {"project_id": PROJECT, **body}, *statuses, says=says)


_LONG, _LONG_REF = "é" * 257, f"weave:///{PROJECT}/object/o:{DIGEST}/attr/{'x' * 2000}"
"""What is a byte or two too long for an id, and a ref that is."""
PRICED = {"prompt_token_cost": 1, "completion_token_cost": 1}
FIELD, ONE = {"$getField": "inputs.x"}, {"$literal": 1}
MANY = [f"0190aaaa-0000-7000-8000-{number:012x}" for number in range(1001)]
NO_RETRY = {"x_should_retry": "false"}

QUERIES = [
    *query("unknown field", {"$eq": [{"$getField": "nonsense"}, ONE]}, 422, says="inputs"),
    *query("SQL as a field", {"$eq": [{"$getField": "id; DROP TABLE calls"}, ONE]}, 422),
    *query("unknown weave summary", {"$eq": [{"$getField": "summary.weave.costs"}, ONE]}, 422),
    *query("storage size", {"$gt": [{"$getField": "storage_size_bytes"}, ONE]}, 422),
    *query("feedback tail", {"$eq": [{"$getField": "feedback.[*].nonsense"}, ONE]}, 422),
    *query("empty and", {"$and": []}, 400, says="(?i)empty and"),
    *query("empty or", {"$or": []}, 400, says="(?i)empty or"),
    *query("one operand", {"$eq": [FIELD]}, 422),
    *query("three operands", {"$gt": [FIELD, ONE, ONE]}, 422),
    *query("not of two", {"$not": [{"$eq": [ONE, ONE]}, {"$eq": [ONE, ONE]}]}, 422),
    *query("field on top", FIELD, 422),
    *query("convert on top", {"$convert": {"input": FIELD, "to": "int"}}, 422),
    *query("unknown operator", {"$regex": [FIELD, ONE]}, 422),
    *query("two operators", {"$eq": [ONE, ONE], "$gt": [ONE, ONE]}, 422),
    *query("list as literal", {"$eq": [FIELD, {"$literal": [1]}]}, 400),
    *query("object as literal", {"$eq": [FIELD, {"$literal": {"a": 1}}]}, 400),
    *query("number contained", {"$contains": {"input": FIELD, "substr": {"$literal": 5}}}, 400),
    *query("unknown conversion", {"$gt": [{"$convert": {"input": FIELD, "to": "date"}}, ONE]}, 422),
    over("query without $expr", "/calls/stream_query", {"query": {"$eq": [ONE, ONE]}}, 422),
    over("unknown sort field", "/calls/stream_query", {"sort_by": [{"field": "no", "direction": "asc"}]}, 422),
    over("unknown direction", "/calls/stream_query", {"sort_by": [{"field": "id", "direction": "up"}]}, 422),
    over("SQL as direction", "/calls/stream_query", {"sort_by": [{"field": "id", "direction": "asc; --"}]}, 422),
    over("unknown thread sort", "/threads/stream_query", {"sort_by": [{"field": "no", "direction": "asc"}]}, 400),
    over("unknown feedback field", "/feedback/query", {"fields": ["nonsense"]}, 400, says="(?i)unknown field"),
    over("unknown feedback sort", "/feedback/query", {"sort_by": [{"field": "no", "direction": "asc"}]}, 400),
    over("unknown cost field", "/cost/query", {"fields": ["nonsense"]}, 400, says="(?i)unknown field"),
]
LIMITS = [
    over("negative limit", "/calls/stream_query", {"limit": -1}, 400),
    over("negative offset", "/calls/stream_query", {"offset": -1}, 400),
    over("limit 0 of a count", "/calls/query_stats", {"limit": 0}, 400),
    over("negative limit of objects", "/objs/query", {"limit": -1}, 400),
    over("negative offset of objects", "/objs/query", {"offset": -1}, 400),
    over("negative limit of costs", "/cost/query", {"limit": -1}, 400),
    over("negative offset of feedback", "/feedback/query", {"offset": -1}, 400),
    over("negative limit of threads", "/threads/stream_query", {"limit": -1}, 400),
    over("negative limit of a table", "/table/query", {"digest": TABLE, "limit": -1}, 400),
    *(
        over(f"1001 {name}", "/calls/stream_query", {"filter": {name: MANY}}, 400)
        for name in ("op_names", "input_refs", "output_refs", "parent_ids", "trace_ids", "call_ids", "thread_ids",
                     "turn_ids", "wb_run_ids")
    ),
    over("1001 deletions", "/calls/delete", {"call_ids": MANY}, 413),
    over("101 object deletions", "/obj/delete", {"object_id": "o", "digests": MANY[:101]}, 400),
    post("1001 refs", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/object/o:{DIGEST}"] * 1001}, 400),
]  # fmt: skip
CALLS = [
    *(
        post(f"project {project[:20]!r}", "/call/start", {"start": {**START, "project_id": project}}, 400, 422)
        for project in ("", "bad", "/bad", "bad/", "bad/input/more", "bad/in\0put", "x" * 5000 + "/y")
    ),
    *(
        post(f"started at {then!r}", "/call/start", {"start": {**START, "started_at": then}}, 400, 422)
        for then in ("yesterday", "2026-13-01T00:00:00Z", "", [], {}, "2026-01-01T25:00:00Z")
    ),
    post("long op name", "/call/start", {"start": {**START, "op_name": "o" * 129}}, 400),
    post("long op ref", "/call/start", {"start": {**START, "op_name": _LONG_REF}}, 400, says="op_name is longer than"),
    *(
        post(f"long {name}", "/call/start", {"start": {**START, name: _LONG}}, 400, says=f"{name} is longer than 512")
        for name in ("parent_id", "thread_id", "turn_id", "wb_run_id")
    ),
    post("id of many bytes", "/call/start", {"start": {**START, "id": "字" * 200}}, 400, says="id is longer than 512"),
    post("long model", "/call/end", {"end": {**END, "summary": {"usage": {_LONG: {}}}}}, 400, says="model is longer"),
    over("long model of a price", "/cost/create", {"costs": {_LONG: PRICED}}, 400, says="model is longer than 512"),
    over("long source", "/dataset_sources/link", {
        "dataset_object_id": "d", "dataset_digest": DIGEST, "links": [{"row_digest": DIGEST, "sources": [
            {"source_kind": "conversation", "source_id": _LONG, "source_trace_id": ""},
        ]}],
    }, 400, says="source_id is longer than 512"),
    *(
        post(f"feedback: long {name}", "/feedback/create", {**FEEDBACK, name: _LONG}, 400, says=f"{name} is longer")
        for name in ("id", "feedback_type", "span_agent_name")
    ),
    post("long ref", "/feedback/create", {**FEEDBACK, "weave_ref": _LONG_REF}, 400, says="weave_ref is longer"),
    post("long display name", "/call/start", {"start": {**START, "display_name": "d" * 1025}}, 400),
    over("no display name", "/call/update", {"call_id": CALL, "display_name": None}, 400),
    over("long new display name", "/call/update", {"call_id": CALL, "display_name": "d" * 1025}, 400, 422),
    post("unknown mode", "/call/upsert_batch", {"batch": [{"mode": "middle", "req": {"start": START}}]}, 400, 422),
    post("one bad item", "/call/upsert_batch", {"batch": [
        {"mode": "start", "req": {"start": START}}, {"mode": "start", "req": {"start": {"project_id": PROJECT}}},
    ]}, 422),
    post("end of an unknown call", f"/v2/{PROJECT}/call/end", {"end": {
        "project_id": PROJECT, "id": "0190aaaa-0000-7000-8000-0000000000ff", "ended_at": DAY["end"], "summary": {},
    }}, 404),
    over("range reversed", "/calls/stats", {"start": DAY["end"], "end": DAY["start"]}, 422),
    over("range of 32 days", "/calls/stats", {"start": DAY["start"], "end": "2026-02-02T00:00:00Z"}, 422),
    over("percentile 101", "/calls/stats", {
        **DAY, "call_metrics": [{"metric": "latency_ms", "percentiles": [101]}],
    }, 400),
    over("unknown metric", "/calls/stats", {**DAY, "call_metrics": [{"metric": "nonsense"}]}, 422),
    over("unknown aggregation", "/calls/stats", {
        **DAY, "call_metrics": [{"metric": "latency_ms", "aggregations": ["median"]}],
    }, 422),
    over("unknown timezone", "/calls/stats", {
        **DAY, "timezone": "Mars/Olympus", "call_metrics": [{"metric": "latency_ms"}],
    }, 400, 422),
    over("path as timezone", "/calls/stats", {
        **DAY, "timezone": "../../etc/passwd", "call_metrics": [{"metric": "latency_ms"}],
    }, 400, 422),
]  # fmt: skip
REFS = [
    post("few segments", "/call/start", {"start": {**START, "inputs": {"r": "weave:///bad"}}}, 400),
    post("foreign internal ref", "/call/start", {
        "start": {**START, "inputs": {"deep": [{"r": "weave-trace-internal:///!!!/object/x:y"}]}},
    }, 400, says="(?i)internal ref"),
    post("table ref", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/table/{TABLE}"]}, 400),
    post("call ref", "/refs/read_batch", {"refs": [TARGET]}, 400),
    post("latest", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/object/object:latest"]}, 400),
    post("no ref", "/refs/read_batch", {"refs": ["hello"]}, 400),
    post("unknown kind", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/thing/x:y"]}, 400),
    post("odd path", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/object/o:{DIGEST}/attr"]}, 400),
    post("unknown edge", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/object/o:{DIGEST}/jump/x"]}, 400, 404),
    post("missing object", "/refs/read_batch", {"refs": [f"weave:///{PROJECT}/object/nobody:{DIGEST}"]}, 404,
         says="missing_object_digests"),
]  # fmt: skip
VALUE = {"project_id": PROJECT, "object_id": "case", "val": {"a": 1}}
WRONG_DIGEST = "0" * 43
OBJECTS = [
    post("bad name", "/obj/create", {"obj": {**VALUE, "object_id": "a b/c"}}, 422, says="reason"),
    post("empty name", "/obj/create", {"obj": {**VALUE, "object_id": ""}}, 422, says="reason"),
    post("long name", "/obj/create", {"obj": {**VALUE, "object_id": "n" * 129}}, 400),
    post("unknown class", "/obj/create", {"obj": {**VALUE, "builtin_object_class": "Nonsense"}}, 400),
    post("class of a text", "/obj/create", {"obj": {**VALUE, "val": "x", "builtin_object_class": "Leaderboard"}}, 400),
    post("invalid for its class", "/obj/create", {"obj": {**VALUE, "builtin_object_class": "Leaderboard"}}, 400),
    post("other digest", "/obj/create", {"obj": {**VALUE, "expected_digest": WRONG_DIGEST}}, 409, **NO_RETRY),
    post("other table digest", "/table/create", {
        "table": {"project_id": PROJECT, "rows": [{"a": 1}], "expected_digest": WRONG_DIGEST},
    }, 409, **NO_RETRY),
    post("other digest of digests", "/table/create_from_digests", {
        "project_id": PROJECT, "row_digests": [DIGEST], "expected_digest": WRONG_DIGEST,
    }, 409, **NO_RETRY),
    over("unknown object", "/obj/read", {"object_id": "nobody", "digest": "latest"}, 404),
    over("unknown version", "/obj/read", {"object_id": "nobody", "digest": "v999999999999999999999"}, 404),
    over("delete unknown", "/obj/delete", {"object_id": "nobody"}, 404),
    over("unknown file", "/file/content", {"digest": DIGEST}, 404),
    over("path as a digest", "/file/content", {"digest": "../../../etc/passwd"}, 404),
    over("rows that are no objects", "/table/update", {
        "base_digest": TABLE, "updates": [{"append": {"row": 1}}],
    }, 422),
    over("unknown base table", "/table/update", {"base_digest": "0" * 64, "updates": [{"pop": {"index": 0}}]}, 404),
    *(
        over(f"sort by {field!r}", "/table/query", {
            "digest": TABLE, "sort_by": [{"field": field, "direction": "asc"}],
        }, 400)
        for field in ("", " ", ".a", "a.", "a..b")
    ),
    *(
        Case(f"tag {tag[:10]!r}", "PUT", f"/objs/case/versions/{DIGEST}/tags",
             {"json": {"project_id": PROJECT, "tags": [tag]}}, (422,))
        for tag in ("", " ", "a  b", " a", "a ", "a/b", "a;b", "t" * 257)
    ),
    *(
        Case(f"alias {alias[:10]!r}", "PUT", "/objs/case/aliases",
             {"json": {"project_id": PROJECT, "digest": DIGEST, "aliases": [alias]}}, (422,))
        for alias in ("", " ", "latest", "v1", "a/b", "a:b", "a" * 129)
    ),
    Case("tag of an unknown version", "PUT", f"/objs/nobody/versions/{DIGEST}/tags",
         {"json": {"project_id": PROJECT, "tags": ["t"]}}, (404,)),
    Case("alias of an unknown version", "PUT", "/objs/nobody/aliases",
         {"json": {"project_id": PROJECT, "digest": DIGEST, "aliases": ["a"]}}, (404,)),
]  # fmt: skip
CUSTOM = {"project_id": PROJECT, "weave_ref": TARGET, "feedback_type": "custom", "payload": {"a": 1}}
REACTION, NOTE, ANNOTATION = "wandb.reaction.1", "wandb.note.1", "wandb.annotation.quality"
SPEC_REF = f"weave:///{PROJECT}/object/quality:{DIGEST}"


def wrong_feedback(name: str, *statuses: int, **fields: Any) -> Case:
    """Feedback that breaks a rule of its type."""
    return post(f"feedback: {name}", "/feedback/create", {**CUSTOM, **fields}, *statuses)


FEEDBACKS = [
    wrong_feedback("two emoji", 400, feedback_type=REACTION, payload={"emoji": "👍👍"}),
    wrong_feedback("no emoji", 400, feedback_type=REACTION, payload={"emoji": "x"}),
    wrong_feedback("empty note", 400, feedback_type=NOTE, payload={"note": ""}),
    wrong_feedback("long note", 400, feedback_type=NOTE, payload={"note": "n" * 1025}),
    wrong_feedback("annotation without its ref", 400, feedback_type=ANNOTATION, payload={"value": 1}),
    wrong_feedback("annotation of nothing", 400, 404, feedback_type=ANNOTATION, payload={"value": 1},
                   annotation_ref=SPEC_REF),
    wrong_feedback("annotation under another name", 400, feedback_type="wandb.annotation.other", payload={"value": 1},
                   annotation_ref=SPEC_REF),
    wrong_feedback("annotation without a dot", 400, feedback_type="wandb.annotation"),
    wrong_feedback("runnable without a dot", 400, feedback_type="wandb.runnable"),
    wrong_feedback("runnable without its ref", 400, feedback_type="wandb.runnable.s", payload={"output": 1}),
    wrong_feedback("agent feedback without tags", 400, feedback_type="wandb.agent_user_feedback"),
    wrong_feedback("custom with an annotation", 400, annotation_ref=SPEC_REF),
    wrong_feedback("custom with tags", 400, scorer_tags=["a"]),
    wrong_feedback("call ref of an object", 400, **{**FEEDBACK, "call_ref": SPEC_REF}),
    wrong_feedback("payload over 1 MiB", 400, payload={"a": "x" * 1_100_000}),
    wrong_feedback("payload is a list", 422, payload=[1]),
    wrong_feedback("ref of few segments", 400, weave_ref="weave:///bad"),
    wrong_feedback("unknown queue", 400, 404, queue_id="0190aaaa-0000-7000-8000-00000000beef"),
    post("one bad of a batch", "/feedback/batch/create", {"batch": [CUSTOM, {**CUSTOM, "scorer_tags": ["a"]}]}, 400),
    over("purge by type", "/feedback/purge", {
        "query": {"$expr": {"$eq": [{"$getField": "feedback_type"}, {"$literal": "custom"}]}},
    }, 400),
    over("purge by $in", "/feedback/purge", {
        "query": {"$expr": {"$in": [{"$getField": "id"}, [{"$literal": "x"}]]}},
    }, 400),
    over("purge costs by name", "/cost/purge", {
        "query": {"$expr": {"$eq": [{"$getField": "llm_id"}, {"$literal": "x"}]}},
    }, 400),
    over("purge without a query", "/cost/purge", {}, 422),
    over("odd json path", "/feedback/stats", {**DAY, "metrics": [{"json_path": "a'; --"}]}, 400),
    over("feedback range reversed", "/feedback/stats", {"start": DAY["end"], "end": DAY["start"]}, 422),
    over("sample of 0", "/feedback/payload_schema", {**DAY, "sample_limit": 0}, 422),
    over("sample of 5001", "/feedback/payload_schema", {**DAY, "sample_limit": 5001}, 422),
    over("purge of a planet", "/project/purge", {"subject": "planet", "id": "x"}, 422),
    over("purge of nobody", "/project/purge", {"subject": "user"}, 400),
    over("redaction of nothing known", "/project/redaction/update", {"kinds": ["name"]}, 422),
    over("redaction of no path", "/project/redaction/update", {"paths": ["name"]}, 400),
    over("retention of 0 days", "/project/ttl_settings/update", {"retention_days": 0}, 400, 422),
    over("retention of -1 days", "/project/ttl_settings/update", {"retention_days": -1}, 400, 422),
]  # fmt: skip
CASES = [*QUERIES, *LIMITS, *CALLS, *REFS, *OBJECTS, *FEEDBACKS]

"""A valid body for every route with a JSON body, and the values that are put into each of its places."""

import copy
import json
from collections.abc import Iterator
from typing import Any

PROJECT = "bad/input"
CALL = "0190aaaa-0000-7000-8000-000000000001"
TRACE = "0190aaaa-0000-7000-8000-000000000002"
TARGET = f"weave:///{PROJECT}/call/{CALL}"
DIGEST = "XdhgKMbg1k4iUYb5astpM4ssWXZN95FiEH9cS7NNExA"
TABLE = "d4ee9285e4132429e174c2b3c429620ee1a1faa58461107b0afe21ba850fbe24"
DAY = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
QUERY = {"$expr": {"$and": [
    {"$eq": [{"$getField": "inputs.x"}, {"$literal": 1}]},
    {"$not": [{"$contains": {"input": {"$getField": "op_name"}, "substr": {"$literal": "q"}}}]},
    {"$in": [{"$getField": "id"}, [{"$literal": CALL}]]},
    {"$gt": [{"$convert": {"input": {"$getField": "output.y"}, "to": "double"}}, {"$literal": 0.5}]},
]}}  # fmt: skip
BY_ID = {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": "nobody"}]}}
ROW_QUERY = {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": "x"}]}}
SORT = [{"field": "started_at", "direction": "desc"}]
FILTER = {
    "op_names": ["op"], "input_refs": [TARGET], "output_refs": [TARGET], "parent_ids": [CALL], "trace_ids": [TRACE],
    "call_ids": [CALL], "thread_ids": ["t"], "turn_ids": [CALL], "trace_roots_only": True, "wb_user_ids": ["u"],
    "wb_run_ids": ["bad/input/run"],
}  # fmt: skip
START = {
    "project_id": PROJECT, "id": CALL, "trace_id": TRACE, "parent_id": None, "op_name": "op", "display_name": "shown",
    "started_at": "2026-01-01T00:00:00Z", "attributes": {"k": 1}, "inputs": {"x": 1, "ref": TARGET},
    "thread_id": "thread", "turn_id": CALL, "wb_run_id": "bad/input/run", "wb_run_step": 3, "wb_user_id": "u",
}  # fmt: skip
END = {
    "project_id": PROJECT, "id": CALL, "ended_at": "2026-01-01T00:00:01Z", "output": {"y": [1]}, "exception": None,
    "summary": {"usage": {"gpt-4o": {"prompt_tokens": 10, "completion_tokens": 5}}, "status_counts": {"success": 1}},
    "wb_run_step_end": 4,
}  # fmt: skip
FEEDBACK = {
    "project_id": PROJECT, "weave_ref": TARGET, "feedback_type": "wandb.runnable.scorer", "payload": {"output": 1},
    "runnable_ref": f"weave:///{PROJECT}/object/scorer:{DIGEST}", "call_ref": TARGET, "creator": "me",
    "scorer_tags": ["good"], "scorer_tag_reasons": {"good": "because"}, "scorer_tag_confidences": {"good": 0.5},
    "scorer_ratings": {"r": 0.5}, "scorer_rating_reasons": {"r": "so"}, "scorer_rating_confidences": {"r": 0.25},
    "span_agent_name": "a", "span_status_code": "OK", "span_trace_id": "", "scorer_trace_id": "",
}  # fmt: skip
PRICE = {
    "prompt_token_cost": 0.1, "completion_token_cost": 0.2, "cache_read_input_token_cost": 0.01,
    "prompt_token_cost_unit": "USD", "effective_date": "2026-01-01T00:00:00Z", "provider_id": "default",
}  # fmt: skip
PAGE = {"limit": 5, "offset": 0}

ROUTES: dict[str, dict[str, Any]] = {
    "POST /call/start": {"start": START},
    "POST /call/end": {"end": END},
    "POST /call/upsert_batch": {"batch": [
        {"mode": "start", "req": {"start": START}}, {"mode": "end", "req": {"end": END}},
    ]},
    f"POST /v2/{PROJECT}/calls/complete": {"batch": [{**START, **END}]},
    f"POST /v2/{PROJECT}/call/start": {"start": START},
    f"POST /v2/{PROJECT}/call/end": {"end": {**END, "trace_id": TRACE, "started_at": "2026-01-01T00:00:00Z"}},
    "POST /call/read": {"project_id": PROJECT, "id": CALL, "include_costs": True, "include_total_storage_size": True},
    "POST /call/update": {"project_id": PROJECT, "call_id": CALL, "display_name": "name"},
    "POST /calls/delete": {"project_id": PROJECT, "call_ids": ["0190aaaa-0000-7000-8000-00000000dead"]},
    "POST /calls/stream_query": {
        "project_id": PROJECT, "filter": FILTER, "query": QUERY, "sort_by": SORT, **PAGE, "columns": ["id", "inputs.x"],
        "expand_columns": ["inputs.ref"], "return_expanded_column_values": True, "include_costs": True,
        "include_feedback": True, "include_storage_size": True, "include_usernames": True, "latest_only": False,
    },
    "POST /calls/query_stats": {
        "project_id": PROJECT, "filter": FILTER, "query": QUERY, "limit": 5, "expand_columns": ["inputs.ref"],
        "include_total_storage_size": True,
    },
    "POST /metrics/query": {"project_id": PROJECT, "name": "tokens"},
    "POST /metrics/stats": {
        "project_id": PROJECT, "name": "tokens", "kind": "sum", "unit": "1", "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-02T00:00:00Z", "granularity": 3600, "timezone": "UTC", "attributes": {"model": ["m", 1, True]},
        "group_by": ["model"], "aggregations": ["sum"], "percentiles": [50],
    },
    "POST /calls/stats": {
        "project_id": PROJECT, **DAY, "granularity": 3600, "timezone": "Europe/Berlin", "filter": FILTER,
        "usage_metrics": [{"metric": "input_tokens", "aggregations": ["sum", "avg"], "percentiles": [50, 99.5]}],
        "call_metrics": [{"metric": "latency_ms", "aggregations": ["max"], "percentiles": [95]}],
    },
    "POST /calls/usage": {"project_id": PROJECT, "call_ids": [CALL], "include_costs": True, "limit": 10},
    "POST /trace/usage": {
        "project_id": PROJECT, "filter": FILTER, "query": QUERY, "include_costs": True, "limit": 10,
    },
    "POST /cost/create": {"project_id": PROJECT, "costs": {"gpt-4o": PRICE}, "wb_user_id": None},
    "POST /cost/query": {
        "project_id": PROJECT, "fields": ["id", "llm_id"], "query": ROW_QUERY, **PAGE,
        "sort_by": [{"field": "llm_id", "direction": "asc"}],
    },
    "POST /cost/purge": {"project_id": PROJECT, "query": BY_ID},
    "POST /feedback/create": FEEDBACK,
    "POST /feedback/batch/create": {"batch": [FEEDBACK, FEEDBACK]},
    "POST /feedback/replace": {**FEEDBACK, "feedback_id": "0190aaaa-0000-7000-8000-00000000f00d"},
    "POST /feedback/query": {
        "project_id": PROJECT, "fields": ["id", "payload.score"], "query": ROW_QUERY, **PAGE,
        "sort_by": [{"field": "created_at", "direction": "asc"}],
    },
    "POST /feedback/purge": {"project_id": PROJECT, "query": BY_ID},
    "POST /feedback/stats": {
        "project_id": PROJECT, **DAY, "feedback_type": "custom", "trigger_ref": TARGET, "granularity": 3600,
        "timezone": "UTC", "metrics": [
            {"json_path": "a.b", "value_type": "numeric", "aggregations": ["avg"], "percentiles": [50]},
        ],
    },
    "POST /feedback/payload_schema": {
        "project_id": PROJECT, **DAY, "feedback_type": "custom", "trigger_ref": TARGET, "sample_limit": 10,
    },
    "POST /feedback/aggregate": {
        "project_id": PROJECT, "after_ms": 0, "before_ms": 4_000_000_000_000, "time_bucket_seconds": 86_400_000,
        "feedback_types": ["custom"], "tags": ["good"], "rating_min": 0.0, "rating_max": 1.0, "monitor_ids": ["m"],
        "scorer_ids": ["s"], "span_agent_names": ["a"], "span_types": ["agent_turn"], "group_by": ["scorer_id"],
    },
    "POST /file/content": {"project_id": PROJECT, "digest": DIGEST},
    "POST /files/query_stats": {"project_id": PROJECT},
    "POST /obj/create": {"obj": {
        "project_id": PROJECT, "object_id": "object", "val": {"a": 1, "ref": TARGET}, "builtin_object_class": None,
        "expected_digest": None, "wb_user_id": None,
    }},
    "POST /obj/read": {
        "project_id": PROJECT, "object_id": "object", "digest": "latest", "metadata_only": False,
        "include_tags_and_aliases": True,
    },
    "POST /obj/delete": {"project_id": PROJECT, "object_id": "nobody", "digests": [DIGEST]},
    "POST /objs/query": {
        "project_id": PROJECT, **PAGE, "metadata_only": False, "include_storage_size": True,
        "include_tags_and_aliases": True, "sort_by": [{"field": "created_at", "direction": "asc"}], "filter": {
            "object_ids": ["object"], "base_object_classes": ["Dataset"], "exclude_base_object_classes": ["Model"],
            "leaf_object_classes": ["Dataset"], "is_op": False, "latest_only": True, "tags": ["t"], "aliases": ["a"],
        },
    },
    "PUT /objs/nobody/aliases": {"project_id": PROJECT, "digest": DIGEST, "aliases": ["prod"]},
    "POST /objs/nobody/aliases/remove": {"project_id": PROJECT, "aliases": ["prod"]},
    f"PUT /objs/nobody/versions/{DIGEST}/tags": {"project_id": PROJECT, "tags": ["tag"]},
    f"POST /objs/nobody/versions/{DIGEST}/tags/remove": {"project_id": PROJECT, "tags": ["tag"]},
    "POST /refs/read_batch": {"refs": [f"weave:///{PROJECT}/object/object:{DIGEST}/attr/a"]},
    "POST /service/projects_info": {"project_ids": [PROJECT]},
    "POST /table/create": {"table": {"project_id": PROJECT, "rows": [{"a": 1}, {"a": 2}], "expected_digest": None}},
    "POST /table/create_from_digests": {"project_id": PROJECT, "row_digests": [DIGEST], "expected_digest": None},
    "POST /table/update": {"project_id": PROJECT, "base_digest": TABLE, "updates": [
        {"append": {"row": {"a": 3}}}, {"pop": {"index": 0}}, {"insert": {"index": 0, "row": {"a": 0}}},
    ]},
    "POST /table/query": {
        "project_id": PROJECT, "digest": TABLE, "filter": {"row_digests": [DIGEST]}, **PAGE,
        "sort_by": [{"field": "a.b", "direction": "asc"}],
    },
    "POST /table/query_stats": {"project_id": PROJECT, "digest": TABLE},
    "POST /table/query_stats_batch": {"project_id": PROJECT, "digests": [TABLE], "include_storage_size": True},
    "POST /threads/stream_query": {
        "project_id": PROJECT, **PAGE, "sort_by": [{"field": "last_updated", "direction": "desc"}], "filter": {
            "after_datetime": DAY["start"], "before_datetime": DAY["end"], "thread_ids": ["thread"],
        },
    },
    "POST /project/purge": {"project_id": "bad/purged", "subject": "call", "id": "x"},
    "POST /project/redaction/read": {"project_id": PROJECT},
    "POST /project/redaction/update": {"project_id": "bad/redacted", "kinds": ["email"], "paths": ["inputs.a.*"]},
    "POST /project/stats": {"project_id": PROJECT, "include_trace_storage_size": True},
    "POST /project/ttl_settings/read": {"project_id": PROJECT},
    "POST /project/ttl_settings/update": {"project_id": "bad/retention", "retention_days": 36500},
    "POST /graphql": {
        "query": "query Project($name: String!, $entityName: String!) {project(name: $name, entityName: $entityName)"
                 "{name}}",
        "variables": {"name": "input", "entityName": "bad"},
    },
}  # fmt: skip


def nested(levels: int, kind: str) -> str:
    """JSON text of that many arrays or objects in each other."""
    return "[" * levels + "]" * levels if kind == "list" else '{"a":' * levels + "1" + "}" * levels


RAW_VALUES = [
    "null", "true", "0", "-1", "1.5", "1e400", "-1e400", "NaN", "Infinity", str(2**63), str(-(2**63) - 1), str(10**300),
    '""', '"x"', '"a/b/c"', '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udc00\\ud800"', '"\U0001f600"',
    '"\'; DROP TABLE calls; --"', '"\\" OR 1=1 --"', '"x\') UNION SELECT * FROM api_keys --"', '"a\\\\"', '"%_%"',
    '"inputs.a\\"]; --"', '"inputs.$[#-1].\\\\"', '"inputs...a"', '"weave:///"', '"weave:///a"', '"weave:///a/b"',
    '"weave:///a/b/unknown/x"', '"weave:///a/b/object/"', '"weave:///a/b/object/x:y/attr"', '"weave:///a/b/call/"',
    '"weave-trace-internal:///!!!/object/x:y"', '"weave-trace-internal:///"', '"weave:///a\\u0000/b/call/c"',
    '"0000-00-00T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"', '"2026-02-30"', '"-1"', '"1e999"', f'"{"9" * 400}"',
    "[]", "{}", "[null]", "[1]", '[""]', '["\\ud800"]', '[[]]', '[{}]', '{"a":null}', '{"":1}', '{"\\ud800":1}',
    '{"$expr":{}}', '{"$expr":{"$and":[]}}', '{"$getField":1}', '{"a":{"b":[1,{"c":NaN}]}}',
    nested(40, "list"), nested(40, "object"), nested(5000, "list"), nested(5000, "object"),
]  # fmt: skip
HUGE = f'"{"x" * 5_000_000}"'
MARK = "\u0001mark\u0001"
RAW_BODIES = [
    b"", b" ", b"not json", b"null", b"1", b'"x"', b"[]", b"[{}]", b"{", b'{"a":1', b"{}}", b'{"a":1}{"a":1}',
    b"{'a':1}",
    b"\xff\xfe\x00", b'{"project_id":"\xff"}', b'{"\xed\xa0\x80":1}', b"\xef\xbb\xbf{}", b"\x00", b"NaN", b'{"a":NaN}',
    b'{"project_id":1e400}', nested(5000, "list").encode(), nested(100_000, "list").encode(), b'{"a":' * 100_000,
]  # fmt: skip


def places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place within a body, containers included."""
    if place:
        yield place
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in children:
        yield from places(item, (*place, name))


def _parent(body: Any, place: tuple[str | int, ...]) -> Any:
    for name in place[:-1]:
        body = body[name]
    return body


def with_value(body: Any, place: tuple[str | int, ...], raw: str) -> bytes:
    """The body as JSON text with raw JSON text at one place."""
    changed = copy.deepcopy(body)
    _parent(changed, place)[place[-1]] = MARK
    return json.dumps(changed).replace(json.dumps(MARK), raw, 1).encode()


def without(body: Any, place: tuple[str | int, ...]) -> bytes:
    """The body as JSON text without one place."""
    changed = copy.deepcopy(body)
    del _parent(changed, place)[place[-1]]
    return json.dumps(changed).encode()


def with_key(body: Any, place: tuple[str | int, ...], raw_key: str) -> bytes:
    """The body as JSON text with the name of one place replaced by raw JSON text."""
    changed = copy.deepcopy(body)
    parent = _parent(changed, place)
    parent[MARK] = parent.pop(place[-1])
    return json.dumps(changed).replace(json.dumps(MARK), raw_key, 1).encode()

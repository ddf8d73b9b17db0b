"""The same for the routes of `trace-evals.json`: a valid body for each, and paths and queries that lead nowhere."""

from typing import Any

from tests.api.bad_input_table import CALL, DAY, DIGEST, FILTER, PAGE, PROJECT, QUERY, ROUTES, TRACE

V2 = f"/v2/{PROJECT}"
NOBODY = "0190aaaa-0000-7000-8000-00000000dead"
OBJECT = f"weave:///{PROJECT}/object/thing:{DIGEST}"
SPAN_QUERY = {"$expr": {"$and": [
    {"$eq": [{"$getField": "agent_name"}, {"$literal": "a"}]},
    {"$gt": [{"$getField": "input_tokens"}, {"$literal": 1}]},
]}}  # fmt: skip
MEASURE = {
    "alias": "tokens", "aggregation": "sum", "value": {"source": "field", "key": "input_tokens"},
    "value_type": "number", "filter": SPAN_QUERY,
}  # fmt: skip
GROUP = [{"source": "field", "key": "agent_name", "alias": "agent"}]
SIGNALS = {"tags": ["good"], "ratings": [{"scorer_key": "s", "op": "gte", "value": 0.5}]}
SORT = [{"field": "started_at", "direction": "desc"}]
RANGE = {"started_after": DAY["start"], "started_before": DAY["end"]}
SOURCE = {"source_kind": "call", "source_id": CALL, "source_trace_id": TRACE}
FROM_FILTER = {
    "project_id": PROJECT, "call_ids": [CALL], "display_fields": ["inputs.x"], "filter": FILTER, "query": QUERY,
    "limit": 5,
}  # fmt: skip

EVALS_ROUTES: dict[str, dict[str, Any]] = {
    "POST /agents/spans/query": {
        "project_id": PROJECT, "query": SPAN_QUERY, "group_by": GROUP, "measures": [MEASURE], **PAGE, **RANGE,
        "group_filters": [{"group_by": GROUP, "measure": MEASURE, "min": 1, "max": 5}],
        "group_distributions": [{"alias": "d", "value": {"key": "duration_ms"}, "bins": 4, "top_n": 2}],
        "custom_attr_columns": [{"source": "custom_attrs_string", "key": "team"}], "include_details": True,
        "include_costs": True, "sort_by": SORT, "signal_filters": SIGNALS,
    },
    "POST /agents/spans/stats": {
        "project_id": PROJECT, "query": SPAN_QUERY, **DAY, "granularity": 3600, "timezone": "UTC", "group_by": GROUP,
        "metrics": [{
            "alias": "tokens", "value_type": "number", "aggregations": ["sum"], "percentiles": [50],
            "value": {"source": "field", "key": "input_tokens"},
        }],
        "group_limit": 5, "bucket_by": {"type": "time"}, "group_filters": [{"group_by": GROUP, "measure": MEASURE}],
        "signal_filters": SIGNALS,
    },
    "POST /agents/spans/custom-attrs/schema": {"project_id": PROJECT, "query": SPAN_QUERY, **RANGE, **PAGE},
    "POST /agents/query": {
        "project_id": PROJECT, "filters": {"agent_name": "a"}, **PAGE, "include_costs": True,
        "sort_by": [{"field": "last_seen", "direction": "desc"}],
    },
    "POST /agents/agent-versions/query": {
        "project_id": PROJECT, "agent_name": "a", **PAGE, "include_costs": True,
        "sort_by": [{"field": "last_seen", "direction": "desc"}],
    },
    "POST /agents/search": {
        "project_id": PROJECT, "query": "train", "trace_id": TRACE, "roles": ["user"], "conversation_id": "c",
        "agent_name": "a", "provider_name": "p", "request_model": "m", "truncate_content": True, **RANGE, **PAGE,
    },
    "POST /agents/traces/chat": {
        "project_id": PROJECT, "trace_id": TRACE, "include_feedback": True, "include_model_tool_calls": True,
    },
    "POST /agents/conversations/chat": {
        "project_id": PROJECT, "conversation_id": "c", **PAGE, "include_feedback": True,
        "include_model_tool_calls": True,
    },
    "POST /agents/conversations/spans": {"project_id": PROJECT, "conversation_ids": ["c"], **RANGE},
    "POST /annotation_queues": {
        "project_id": PROJECT, "name": "q", "description": "d", "scorer_refs": [OBJECT], "wb_user_id": "u",
    },
    "POST /annotation_queues/query": {
        "project_id": PROJECT, "name": "q", "sort_by": [{"field": "name", "direction": "asc"}], **PAGE,
    },
    "POST /annotation_queues/stats": {"project_id": PROJECT, "queue_ids": [NOBODY]},
    f"PUT /annotation_queues/{NOBODY}": {
        "project_id": PROJECT, "name": "q", "description": "d", "scorer_refs": [OBJECT],
    },
    f"POST /annotation_queues/{NOBODY}/items": FROM_FILTER,
    f"POST /annotation_queues/{NOBODY}/items/query": {
        "project_id": PROJECT, **PAGE, "include_position": True, "filter": {
            "id": NOBODY, "call_id": CALL, "call_op_name": "op", "call_trace_id": TRACE, "added_by": "u",
            "annotation_states": ["unstarted"],
        }, "sort_by": [{"field": "created_at", "direction": "asc"}],
    },
    f"POST /annotation_queues/{NOBODY}/items/{NOBODY}/progress": {
        "project_id": PROJECT, "annotation_state": "completed",
    },
    "POST /evaluations/evaluate_model": {"project_id": PROJECT, "evaluation_ref": OBJECT, "model_ref": OBJECT},
    "POST /evaluations/status": {"project_id": PROJECT, "call_id": NOBODY},
    "POST /evaluations/rescore": {
        "project_id": PROJECT, "source_evaluation_run_id": NOBODY, "scorer_refs": [OBJECT],
    },
    "POST /calls/score": {"project_id": PROJECT, "call_ids": [NOBODY], "scorer_refs": [OBJECT]},
    "POST /image/create": {
        "project_id": PROJECT, "inputs": {"model": "nobody", "prompt": "a cat", "n": 1}, "track_llm_call": False,
    },
    "POST /link_to_registry": {"ref": OBJECT, "aliases": ["prod"], "target": {
        "portfolio_name": "p", "entity_name": "bad", "project_name": "wandb-registry-models",
    }},
    f"POST {V2}/ops": {"name": "op", "source_code": "x = 1\n"},
    f"POST {V2}/datasets": {"name": "rows", "description": "d", "rows": [{"a": 1}]},
    f"POST {V2}/scorers": {"name": "s", "description": "d", "op_source_code": "x = 1\n"},
    f"POST {V2}/evaluations": {
        "name": "e", "description": "d", "dataset": OBJECT, "scorers": [OBJECT], "trials": 1, "evaluation_name": "n",
        "eval_attributes": {"k": 1},
    },
    f"POST {V2}/models": {"name": "m", "description": "d", "source_code": "x = 1\n", "attributes": {"t": 0.5}},
    f"POST {V2}/evaluation_runs": {"evaluation": OBJECT, "model": OBJECT, "source_evaluation_run_id": NOBODY},
    f"POST {V2}/evaluation_runs/{NOBODY}/finish": {"summary": {"a": "text"}},
    f"POST {V2}/predictions": {
        "model": OBJECT, "inputs": {"q": "a"}, "output": "b", "evaluation_run_id": NOBODY,
        "genai_span_ref": [{"trace_id": TRACE, "span_id": "0" * 16}],
    },
    f"POST {V2}/scores": {
        "prediction_id": NOBODY, "scorer": OBJECT, "value": 0.5, "evaluation_run_id": NOBODY,
    },
    f"POST {V2}/eval_results/query": {
        "evaluation_call_ids": [NOBODY], "evaluation_run_ids": [NOBODY], "require_intersection": True,
        "include_raw_data_rows": True, "resolve_row_refs": True, "include_rows": True, "include_summary": True,
        "summary_require_intersection": True, "include_predict_and_score_children": True, "include_costs": True,
        "sort_by": [{"field": "scores.s", "direction": "asc", "evaluation_call_id": NOBODY, "mode": "difference"}],
        "filters": [{"evaluation_call_id": NOBODY, "query": {"$expr": {
            "$gt": [{"$getField": "scores.s"}, {"$literal": 0.5}],
        }}}], "filter_logic_operator": "and", **PAGE,
    },
    f"PUT {V2}/runtimes/box": {
        "base_url": "http://127.0.0.1:9/v1", "api_key_secret": "KEY", "headers": {"x-a": "b"},
        "runtime_ids": [{"id": "m", "max_tokens": 10}],
    },
    "POST /dataset_sources/link": {
        "project_id": PROJECT, "dataset_object_id": "d", "dataset_digest": DIGEST, "include_created_status": True,
        "links": [{"row_digest": DIGEST, "sources": [SOURCE], "link_metadata": {"a": 1}}],
    },
    "POST /dataset_sources/link_delete": {"project_id": PROJECT, "link_ids": [NOBODY]},
    "POST /dataset_sources/query": {
        "project_id": PROJECT, "dataset_object_id": "d", "row_digests": [DIGEST], "source_kinds": ["call"],
        "include_deleted": True, **PAGE,
    },
    "POST /dataset_sources/source_datasets_query": {
        "project_id": PROJECT, "sources": [SOURCE], "include_deleted": True,
    },
    "POST /completions/create": {"project_id": PROJECT, "track_llm_call": False, "inputs": {
        "model": "custom::nobody::m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
    }},
    "POST /completions/create_stream": {"project_id": PROJECT, "track_llm_call": False, "inputs": {
        "model": "custom::nobody::m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
    }},
    "POST /project/ingest_sampling_settings/read": {"project_id": PROJECT},
    "POST /files/resolve_url": {"project_id": PROJECT, "uris": [DIGEST]},
}  # fmt: skip
ALL_ROUTES = ROUTES | EVALS_ROUTES

OBJECT_KINDS = ("ops", "datasets", "scorers", "evaluations", "models")
CALL_KINDS = {"evaluation_runs": "evaluation_run_ids", "predictions": "prediction_ids", "scores": "score_ids"}
EVALS_PATHS = [
    f"GET /annotation_queues/{NOBODY}", f"GET /annotation_queues/{NOBODY}?project_id={PROJECT}",
    f"GET /annotation_queues/%00?project_id={PROJECT}", f"GET /annotation_queues/{NOBODY}?project_id=no-slash",
    f"DELETE /annotation_queues/{NOBODY}", f"DELETE /annotation_queues/{NOBODY}?project_id={PROJECT}",
    *(f"GET {V2}/{name}?limit=-1" for name in ("ops", "datasets", "models", *CALL_KINDS)),
    *(f"GET {V2}/{name}?limit=x" for name in ("ops", "datasets", "models", *CALL_KINDS)),
    *(f"GET {V2}/{name}?offset=-1" for name in ("ops", "datasets", "models", *CALL_KINDS)),
    *(f"GET /v2/b%00d/input/{name}" for name in (*OBJECT_KINDS, *CALL_KINDS)),
    *(f"GET {V2}/{name}/nobody/versions/{DIGEST}" for name in OBJECT_KINDS),
    *(f"GET {V2}/{name}/no%2Fbody/versions/%00" for name in OBJECT_KINDS),
    *(f"DELETE {V2}/{name}/nobody" for name in OBJECT_KINDS),
    *(f"DELETE {V2}/{name}/nobody?digests={DIGEST}" for name in OBJECT_KINDS),
    *(f"GET {V2}/{name}/{NOBODY}" for name in CALL_KINDS), *(f"DELETE {V2}/{name}" for name in CALL_KINDS),
    f"POST /v2/b%00d/input/predictions/{NOBODY}/finish", "PUT /v2/a/b/runtimes/a%3A%3Ab", "PUT /v2/a/b/runtimes/%00",
    "GET /inference/nvidia/v2/hardware", "GET /inference/nvidia/v2/hardware?model=m",
    "GET /project/sensitive_data_settings", "GET /project/sensitive_data_settings?project_id=no-slash",
    "GET /registry/portfolios", "GET /registry/portfolios?project_id=no-slash",
    f"GET /registry/versions?project_id={PROJECT}", f"GET /registry/versions?project_id={PROJECT}&portfolio_name=x",
    "GET /files/download", "GET /files/download?project=x&digest=x&expires=x&signature=x",
    "GET /files/download?project=x&digest=x&expires=1&signature=x",
    f"GET /files/download?project=x&digest=x&expires={10**30}&signature=%ff",
]  # fmt: skip
TAKE_NOTHING = {
    "GET /health", "GET /version", "GET /server_info", "GET /inference/catalog/models",
    "GET /inference/analysis/artificialanalysis/models", "GET /inference/router/openrouter/models",
    "GET /inference/modelsdev/models",
}  # fmt: skip
"""Routes without anything in a request that could be wrong."""

"""One valid request for each route, about what a tenant has; a route that this cannot ask is a failure of its test."""

from collections.abc import Callable
from typing import Any

from heddle.inference.served_model import TINY
from heddle.wire.otlp import write
from tests.support.archives import archive_of
from tests.support.tenants import START, Asked, Asking, Json, Tenant, log_of, points_of, spans_of, trajectory

Body = Callable[[Tenant], Any]
_KINDS = {
    "datasets": "words",
    "evaluations": "exam",
    "models": "answerer",
    "ops": "shout",
    "scorers": "judge",
    "objs": "words",
}
_CHAT = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 1, "model": TINY}
_TEXT = {"prompt": "Say hi", "max_tokens": 1}
_END = "2026-01-20T00:00:00Z"
_LATE = 4_000_000_000_000


def _rule(t: Tenant) -> Json:
    rule = {"metric": "count", "operator": ">", "threshold": 1e9, "name": "rule", "project_id": t.project_id}
    return rule | {"webhook_url": "http://127.0.0.1:9/hook"}


def _start(t: Tenant) -> Json:
    named = {"project_id": t.project_id, "id": f"{t.entity}-made", "trace_id": t.trace, "op_name": "ask"}
    return {**named, "started_at": START, "attributes": {}, "inputs": {"see": t.object("words")}}


def _end(t: Tenant) -> Json:
    return {"project_id": t.project_id, "id": t.call, "ended_at": START, "summary": {}, "output": t.object("words")}


def _completion(t: Tenant) -> Json:
    return {"project_id": t.project_id, "inputs": {**_CHAT, "prompt": t.object("prompt")}, "track_llm_call": True}


def _feedback(t: Tenant) -> Json:
    named = {"project_id": t.project_id, "weave_ref": t.ref("call", t.call)}
    annotation = {"annotation_ref": t.object("spec"), "feedback_type": "wandb.annotation.spec"}
    return {**named, **annotation, "payload": {"value": "fine"}}


def _score(t: Tenant) -> Json:
    return {"name": "fine", "value": 1, "traceId": t.trace, "observationId": t.call, "comment": t.object("words")}


def _sources(t: Tenant) -> list[Json]:
    return [{"source_kind": "call", "source_id": t.call, "source_trace_id": t.trace}]


def _price(_: Tenant) -> Json:
    return {"some-model": {"prompt_token_cost": 0.1, "completion_token_cost": 0.2}}


def _by_id(place: str) -> Json:
    return {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": place}]}}


def _graphql(t: Tenant) -> Json:
    variables = {"entity": t.entity, "name": t.project}
    return {
        "query": "query p($name: String!, $entity: String!) "
        "{ project(name: $name, entityName: $entity) { id name description } }",
        "variables": variables,
    }


def _groups(_: Tenant) -> Any:
    return [{"trajectories": [trajectory("hi"), trajectory("hello")]}]


def _with(**fields: Any) -> Body:
    """The project and fields that are texts of a tenant (functions) or values."""
    return lambda t: (
        {"project_id": t.project_id} | {name: value(t) if callable(value) else value for name, value in fields.items()}
    )


_SPAN = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "helper", "gen_ai.conversation.id": "other"}
_TOKENS = {"alias": "n", "value_type": "number", "aggregations": ["sum"]} | {
    "value": {"source": "field", "key": "input_tokens"}
}


def _of_run(seq: int, **fields: Any) -> Body:
    """A request of a run; its turn never comes."""
    return lambda t: {"model_id": t.tinker_run, "seq_id": seq, **fields}


def _data(t: Tenant) -> bytes:
    """A `ForwardBackwardRequest`."""
    ids, weights = b"".join(n.to_bytes(4, "little") for n in (1, 2)), bytes(8)
    targets = write(1, b"".join(n.to_bytes(8, "little") for n in (2, 3))) + write(3, 2)
    inputs = {"target_tokens": targets, "weights": write(1, weights) + write(3, 1)}
    datum = write(1, write(1, write(1, ids)))
    datum += b"".join(write(2, write(1, name) + write(2, tensor)) for name, tensor in inputs.items())
    return write(1, t.tinker_run) + write(2, 90) + write(3, datum) + write(4, "cross_entropy")


BODIES: dict[str, Body] = {
    "POST /api/v1/client/config": lambda _: {"sdk_version": "0.38.0"},
    "POST /api/v1/client/dynamic_config": lambda _: {"sdk_version": "0.38.0"},
    "POST /api/v1/telemetry": lambda _: {"events": []},
    "POST /api/v1/create_session": lambda t: {"sdk_version": "0.38.0", "project_id": t.project_id},
    "POST /api/v1/session_heartbeat": lambda t: {"session_id": t.tinker_session},
    "POST /api/v1/sessions/{session_id}/finish": lambda _: {"reason": {"type": "success"}},
    "POST /api/v1/create_model": lambda t: {"session_id": t.tinker_session, "model_seq_id": 7, "base_model": TINY},
    "POST /api/v1/get_info": lambda t: {"model_id": t.tinker_run},
    "POST /api/v1/unload_model": lambda t: {"model_id": t.tinker_run},
    "POST /api/v1/forward_backward": _data,
    "POST /api/v1/optim_step": _of_run(91, adam_params={}),
    "POST /api/v1/save_weights": _of_run(92, path="more"),
    "POST /api/v1/save_weights_for_sampler": _of_run(93, path="more"),
    "POST /api/v1/save_weights_external": _of_run(95, path="more"),
    "POST /api/v1/copy_weights": lambda t: {
        "session_id": t.tinker_session,
        "model_seq_id": 5,
        "source_path": t.saved,
    },
    "POST /api/v1/sessions/search": lambda t: {"project_ids": [t.project_id]},
    "PUT /api/v1/sessions/{session_id}/project": lambda t: {"project_id": t.project_id},
    "POST /api/v1/load_weights": lambda t: _of_run(94, path=t.saved, optimizer=True)(t),
    "POST /api/v1/create_sampling_session": lambda t: {
        "session_id": t.tinker_session,
        "sampling_session_seq_id": 7,
        "base_model": TINY,
    },
    "POST /api/v1/join_sampling_session": lambda t: {"sampling_session_id": t.sampler},
    "POST /api/v1/asample": lambda t: {
        "sampling_session_id": t.sampler,
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 1},
    },
    "POST /api/v1/retrieve_future": lambda t: {"request_id": f"{t.tinker_run}:0"},
    "POST /api/v1/weights_info": lambda t: {"tinker_path": t.saved},
    "PUT /api/v1/training_runs/{run_id}/checkpoints/{segment}/{name}/ttl": lambda _: {"ttl_seconds": 3600},
    "POST /_ui/api/calls/change": _with(
        action={"type": "feedback", "feedback_type": "note", "payload": {"note": "n"}}, filter={"call_ids": ["none"]}
    ),
    "POST /_ui/api/keys": lambda t: {"user": "eve", "scopes": ["admin"], "project": t.project_id},
    "POST /_ui/api/projects/example": _with(),
    "POST /_ui/api/projects/example/delete": _with(),
    "POST /_ui/api/projects": lambda t: {"id": t.project_id},
    "POST /_ui/api/values": _with(refs=lambda t: [t.object("words")], values=[{"role": "user", "content": "Hi"}]),
    "POST /_ui/session": lambda _: {"key": "heddle-wrong"},
    "POST /_ui/sign_in": lambda _: {"next": "/"},
    "POST /_ui/api/keys/{key_id}/rotate": lambda _: {"overlap": "1h"},
    "POST /_ui/api/keys/{key_id}/restore": lambda _: {},
    "POST /agents/agent-versions/query": _with(agent_name=lambda t: f"{t.entity}-agent"),
    "POST /agents/conversations/chat": _with(conversation_id=lambda t: f"{t.entity}-talk"),
    "POST /agents/conversations/spans": _with(conversation_ids=lambda t: [f"{t.entity}-talk"]),
    "POST /agents/otel/v1/traces": lambda _: spans_of(_SPAN),
    "POST /api/otel/v1/traces": lambda _: spans_of(_SPAN),
    "POST /opentelemetry/v1/traces": lambda _: spans_of(_SPAN),
    "POST /tracer/v1/traces": lambda _: spans_of(_SPAN),
    "POST /v2/traces": lambda _: spans_of(_SPAN),
    "POST /otel/v1/logs": lambda _: log_of("s"),
    "POST /v1/logs": lambda _: log_of("s"),
    "POST /otel/v1/metrics": lambda _: points_of("tokens", 3),
    "POST /v1/metrics": lambda _: points_of("tokens", 3),
    "POST /otel/v1/traces": lambda _: spans_of(_SPAN),
    "POST /v1/traces": lambda _: spans_of(_SPAN),
    "POST /api/public/otel/v1/traces": lambda _: spans_of(_SPAN),
    "POST /api/public/dataset-items": lambda t: {"datasetName": "words", "input": t.object("words")},
    "POST /api/public/dataset-run-items": lambda t: {"runName": "run", "datasetItemId": t.row, "traceId": t.trace},
    "POST /api/public/v2/datasets": lambda _: {"name": "made_words"},
    "DELETE /api/public/traces": lambda t: {"traceIds": [t.trace]},
    "POST /api/public/ingestion": lambda t: {"batch": [{"id": "e", "type": "score-create", "body": _score(t)}]},
    "POST /api/public/scores": _score,
    "POST /api/public/v2/prompts": lambda _: {"name": "greeting", "prompt": "Hi {{name}}"},
    "PATCH /api/public/v2/prompts/{name}/versions/{version}": lambda _: {"newLabels": ["mine"]},
    "POST /agents/search": _with(query="canary"),
    "POST /agents/spans/stats": _with(start=START, end=_END, metrics=[_TOKENS]),
    "POST /agents/traces/chat": _with(trace_id="0" * 28 + "cafe"),
    "POST /alerts/create": _rule,
    "POST /alerts/update": lambda t: {**_rule(t), "id": t.alert},
    "POST /alerts/delete": _with(id=lambda t: t.alert),
    "POST /alerts/test": _with(id=lambda t: t.alert),
    "POST /annotation_queues": _with(name="queue", scorer_refs=lambda t: [t.object("spec")]),
    "POST /annotation_queues/stats": _with(queue_ids=lambda t: [t.queue]),
    "PUT /annotation_queues/{queue_id}": _with(description="other"),
    "POST /annotation_queues/{queue_id}/items": _with(call_ids=lambda t: [t.call], display_fields=[]),
    "POST /annotation_queues/{queue_id}/items/{item_id}/progress": _with(annotation_state="in_progress"),
    "POST /call/end": lambda t: {"end": _end(t)},
    "POST /call/start": lambda t: {"start": _start(t)},
    "POST /call/read": _with(id=lambda t: t.call),
    "POST /call/update": _with(call_id=lambda t: t.call, display_name="other"),
    "POST /call/upsert_batch": lambda t: {"batch": [{"mode": "start", "req": {"start": _start(t)}}]},
    "POST /calls/aggregate": _with(group_by="inputs.question"),
    "POST /calls/delete": _with(call_ids=lambda t: [t.call]),
    "POST /calls/score": _with(call_ids=lambda t: [t.call], scorer_refs=lambda t: [t.object("matches")]),
    "POST /calls/score/preview": _with(call_ids=lambda t: [t.call], scorer={"_class_name": "ValidJSONScorer"}),
    "POST /calls/stats": _with(start=START, end=_END, usage_metrics=[]),
    "POST /calls/stream_query": _with(include_feedback=True, include_costs=True, expand_columns=["inputs.see"]),
    "POST /calls/usage": _with(call_ids=lambda t: [t.call]),
    "POST /completions/create": _completion,
    "POST /completions/create_stream": _completion,
    "POST /cost/create": _with(costs=_price),
    "POST /cost/purge": _with(query=lambda t: _by_id(t.cost)),
    "POST /dataset_sources/link": _with(
        dataset_object_id="words",
        dataset_digest=lambda t: t.words,
        links=lambda t: [{"row_digest": t.row, "sources": _sources(t)}],
    ),
    "POST /dataset_sources/link_delete": _with(
        dataset_object_id="words", dataset_digest=lambda t: t.words, link_ids=lambda t: [t.link]
    ),
    "POST /dataset_sources/query": _with(dataset_object_id="words", dataset_digest=lambda t: t.words),
    "POST /dataset_sources/source_datasets_query": _with(sources=_sources),
    "POST /evaluations/cancel": _with(call_id=lambda t: t.replay),
    "POST /evaluations/evaluate_model": _with(
        evaluation_ref=lambda t: t.object("exam"), model_ref=lambda t: t.object("answerer")
    ),
    "POST /evaluations/rescore": _with(
        source_evaluation_run_id=lambda t: t.run, scorer_refs=lambda t: [t.object("matches")]
    ),
    "POST /evaluations/status": _with(call_id=lambda t: t.run),
    "POST /feedback/aggregate": _with(after_ms=0, before_ms=_LATE),
    "POST /feedback/batch/create": lambda t: {"batch": [_feedback(t)]},
    "POST /feedback/create": _feedback,
    "POST /feedback/replace": lambda t: {**_feedback(t), "feedback_id": t.feedback},
    "POST /feedback/payload_schema": _with(start=START, end=_END),
    "POST /feedback/stats": _with(start=START, end=_END, metrics=[]),
    "POST /feedback/purge": _with(query=lambda t: _by_id(t.feedback)),
    "POST /file/content": _with(digest=lambda t: t.file),
    "POST /files/content": _with(digest=lambda t: t.file),
    "POST /files/resolve_url": _with(uris=lambda t: [t.file]),
    "POST /graphql": _graphql,
    "POST /image/create": _with(inputs={"prompt": "a cat", "model": "none/cat"}),
    "POST /link_to_registry": lambda t: {
        "ref": t.object("words"),
        "target": {"portfolio_name": "shelf", "entity_name": t.entity, "project_name": t.project},
    },
    "POST /metrics/stats": _with(name="tokens", start=START, end=_END),
    "POST /obj/create": lambda t: {
        "obj": {"project_id": t.project_id, "object_id": "made", "val": {"see": t.object("words")}}
    },
    "POST /obj/delete": _with(object_id="spec"),
    "POST /obj/read": _with(object_id="words", digest=lambda t: t.words),
    "PUT /objs/{object_id}/aliases": _with(digest=lambda t: t.words, aliases=["mine"]),
    "POST /objs/{object_id}/aliases/remove": _with(aliases=["mine"]),
    "PUT /objs/{object_id}/versions/{digest}/tags": _with(tags=["mine"]),
    "POST /objs/{object_id}/versions/{digest}/tags/remove": _with(tags=["mine"]),
    "POST /project/purge": _with(subject="call", id=lambda t: f"{t.entity}-unknown"),
    "POST /project/redaction/update": _with(kinds=[], paths=[]),
    "POST /project/ttl_settings/update": _with(retention_days=3650),
    "POST /refs/read_batch": lambda t: {"refs": [t.object("words"), t.object("prompt")]},
    "POST /replays/cancel": _with(id=lambda t: t.replay),
    "POST /replays/create": _with(filter=lambda t: {"call_ids": [t.call]}, model=TINY),
    "POST /replays/dataset": _with(id=lambda t: t.replay, name="answers"),
    "POST /replays/read": _with(id=lambda t: t.replay),
    "POST /replays/results": _with(id=lambda t: t.replay),
    "POST /improvements/cancel": _with(id=lambda t: t.improvement),
    "POST /improvements/create": _with(
        model="learner", weak={"filter": {"op_names": ["none"]}}, scorers=lambda t: [t.object("matches")]
    ),
    "POST /improvements/read": _with(id=lambda t: t.improvement),
    "POST /service/projects_info": lambda t: {"project_ids": [t.project_id]},
    "POST /table/create": lambda t: {"table": {"project_id": t.project_id, "rows": [{"see": t.object("words")}]}},
    "POST /table/create_from_digests": _with(row_digests=lambda t: [t.row]),
    "POST /table/query": _with(digest=lambda t: t.table),
    "POST /table/query_stats": _with(digest=lambda t: t.table),
    "POST /table/query_stats_batch": _with(digests=lambda t: [t.table]),
    "POST /table/update": _with(base_digest=lambda t: t.table, updates=[{"pop": {"index": 0}}]),
    "POST /trace/usage": _with(filter=lambda t: {"trace_ids": [t.trace]}),
    "POST /v1/chat/completions": lambda t: {**_CHAT, "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /v1/chat/completions/": lambda t: {**_CHAT, "model": f"wandb-artifact:///{t.project_id}/learner"},
    "POST /v1/responses": lambda t: {"model": TINY, "previous_response_id": t.response, "max_output_tokens": 1},
    "POST /v1/responses/input_tokens": lambda t: {"model": TINY, "conversation": t.conversation},
    "POST /v1/conversations": lambda t: {"metadata": {"k": t.entity}, "items": [{"role": "user", "content": "Hi"}]},
    "POST /v1/conversations/{conversation_id}": lambda _: {"metadata": {"k": "own"}},
    "POST /v1/conversations/{conversation_id}/items": lambda _: {"items": [{"role": "user", "content": "Hi"}]},
    "POST /v1/messages": lambda t: {**_CHAT, "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /v1/messages/count_tokens": lambda t: {**_CHAT, "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "PUT /v1/limits": lambda t: {"kind": "project", "name": t.project_id, "concurrency": 1},
    "POST /v1/completions": lambda t: {**_TEXT, "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /v1/completions/": lambda t: {**_TEXT, "model": f"wandb-artifact:///{t.project_id}/learner"},
    "POST /v1/embeddings": lambda t: {"input": "hi", "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /v1/embeddings/": lambda t: {"input": "hi", "model": f"wandb-artifact:///{t.project_id}/learner"},
    "POST /tokenize": lambda t: {"prompt": "hi", "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /detokenize": lambda t: {"tokens": [5], "model": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /v1/load_lora_adapter": lambda t: {
        "lora_name": f"wandb-artifact:///{t.project_id}/second",
        "lora_path": t.checkpoint,
    },
    "POST /v1/unload_lora_adapter": lambda t: {"lora_name": f"wandb-artifact:///{t.project_id}/tuned"},
    "POST /v1/preview/models": lambda t: {
        "entity": t.entity,
        "project": t.project,
        "name": "learner",
        "base_model": TINY,
        "return_existing": True,
    },
    "DELETE /v1/preview/models/{model_id}/checkpoints": lambda _: {"steps": [7]},
    "POST /v1/preview/models/{model_id}/log": lambda t: {"split": "val", "trajectory_groups": _groups(t)},
    "POST /v1/preview/models/{model_id}/rollback": lambda _: {"step": 0},
    "POST /v1/preview/dpo-training-jobs": lambda t: {"model_id": t.model, "training_data_url": t.object("words")},
    "POST /v1/preview/sft-training-jobs": lambda t: {"model_id": t.model, "training_data_url": t.object("words")},
    "POST /v1/preview/training-jobs": lambda t: {"model_id": t.model, "trajectory_groups": _groups(t)},
    "POST /v2/{entity}/{project}/call/end": lambda t: {"end": _end(t)},
    "POST /v2/{entity}/{project}/call/start": lambda t: {"start": _start(t)},
    "POST /v2/{entity}/{project}/calls/complete": lambda t: {
        "batch": [{**_start(t), **_end(t), "id": f"{t.entity}-2"}]
    },
    "POST /v2/{entity}/{project}/datasets": lambda t: {"name": "made_set", "rows": [{"see": t.object("words")}]},
    "POST /v2/{entity}/{project}/evaluation_runs": lambda t: {
        "evaluation": t.object("exam"),
        "model": t.object("answerer"),
    },
    "POST /v2/{entity}/{project}/evaluations": lambda t: {"name": "made_exam", "dataset": t.object("words")},
    "POST /v2/{entity}/{project}/models": lambda _: {"name": "made_model", "source_code": "pass"},
    "POST /v2/{entity}/{project}/predictions": lambda t: {
        "model": t.object("answerer"),
        "inputs": {"see": t.object("words")},
        "output": 1,
        "evaluation_run_id": t.run,
    },
    "PUT /inference/providers/{name}": lambda _: {"base_url": "http://127.0.0.1:9/v1", "api_key": "key"},
    "PUT /v2/{entity}/{project}/runtimes/{runtime_name}": lambda _: {
        "base_url": "http://127.0.0.1:9",
        "runtime_ids": [{"id": "m"}],
    },
    "POST /v2/{entity}/{project}/scorers": lambda _: {"name": "made_scorer", "op_source_code": "pass"},
    "POST /v2/{entity}/{project}/scores": lambda t: {
        "prediction_id": t.prediction,
        "scorer": t.object("judge"),
        "value": 1.0,
        "evaluation_run_id": t.run,
    },
    "POST /v2/{entity}/{project}/eval_results/query": lambda t: {"evaluation_run_ids": [t.run]},
}
"""What a body must have beside the project where its description does not say all."""

_BY_NAME: dict[str, Callable[[Tenant], Any]] = {
    "project_id": lambda t: t.project_id,
    "entity": lambda t: t.entity,
    "trace_id": lambda t: t.trace,
    "queue_id": lambda t: t.queue,
    "item_id": lambda t: t.item,
    "model_id": lambda t: t.model,
    "job_id": lambda t: t.job,
    "job": lambda t: t.job,
    "run": lambda t: t.job,
    "log_id": lambda t: t.log,
    "call": lambda t: t.call,
    "rest": lambda _: "calls",
    "key_id": lambda t: t.key,
    "build": lambda _: "none",
    "path": lambda _: "app.js",
    "runtime_name": lambda _: "box",
    "evaluation_run_id": lambda t: t.run,
    "prediction_id": lambda t: t.prediction,
    "score_id": lambda t: t.score,
    "response_id": lambda t: t.response,
    "conversation_id": lambda t: t.conversation,
    "conversation_item_id": lambda t: t.conversation_item,
    "portfolio_name": lambda _: "shelf",
    "evaluation_run_ids": lambda t: [t.run],
    "prediction_ids": lambda t: [t.prediction],
    "score_ids": lambda t: [t.score],
    "runs": lambda t: t.run,
    "body": lambda t: f"log:{t.log}",
    "index": lambda _: 0,
    "place": lambda _: 0,
    "session_id": lambda t: f"{t.entity}-talk",
    "run_name": lambda _: "run",
    "datasetName": lambda _: "words",
    "observation_id": lambda t: t.call,
    "name": lambda _: "prompt",
    "version": lambda _: 1,
    "expires": lambda _: _LATE,
    "signature": lambda _: "0" * 64,
}


_OF_TINKER: dict[str, Callable[[Tenant], Any]] = {
    "session_id": lambda t: t.tinker_session,
    "run_id": lambda t: t.tinker_run,
    "sampler_id": lambda t: t.sampler,
    "segment": lambda _: "weights",
    "path": lambda t: t.saved,
    "file": lambda _: "adapter_config.json",
    "name": lambda _: "kept",
    "project_id": lambda t: t.project_id,
}


def request_for(asked: Asked, t: Tenant) -> Asking:
    """A request to a route about what a tenant has; raises KeyError for a parameter that nobody knows."""
    path, params, headers = asked.template, {}, {}
    if path.startswith(("/v1/responses", "/v1/conversations")):
        headers["openai-project"] = t.project_id
    for told in asked.described.get("parameters", ()):
        name, where = told["name"], told["in"]
        if where == "path":
            path = path.replace("{" + name + "}", str(_value(asked, name, t)))
        elif where == "query" and (told.get("required") or name in ("project", "project_id")):
            params[name] = t.project_id if name == "project" else _value(asked, name, t)
        elif where == "header" and name == "project_id":
            headers[name] = t.project_id
    if str(asked) == "GET /_ui/api/calls/export":
        params = {"format": "jsonl", "chosen": f'{{"project_id": "{t.project_id}"}}'}
    if str(asked).endswith(("/file/create", "/files/create")):
        return Asking(asked.method, path, params, headers, {"project_id": t.project_id}, {"file": ("a", b"own")})
    if str(asked) == "POST /archives/import":
        return Asking(asked.method, path, params, headers, {}, {"file": ("a", archive_of(t.project_id))})
    return Asking(asked.method, path, params, headers, _body(asked, t))


def _value(asked: Asked, name: str, t: Tenant) -> Any:
    words = asked.template.split("/")
    kind = next((_KINDS[word] for word in words if word in _KINDS), "words")
    if name == "project":
        return t.project
    if asked.template.startswith("/api/v1/") and name in _OF_TINKER:
        is_end = asked.template.endswith("/finish")
        return t.tinker_ending if is_end else _OF_TINKER[name](t)
    if name == "item_id" and "public" in words:
        return t.row
    if name == "name" and "providers" in words:
        return "entered"
    if name == "name" and "datasets" in words:
        return "shelf" if "runs" in words else "words"  # a row is an item of the first dataset that holds it
    if name == "score_id" and "scores" in words and "public" in words:
        return t.langfuse
    if name == "object_id":
        return kind
    if name == "digest":
        return t.file if "files" in words else t.ids[kind]
    if name == "model":
        return t.model if asked.template.startswith("/_ui") else f"wandb-artifact:///{t.project_id}/learner"
    return _BY_NAME[name](t)


def _body(asked: Asked, t: Tenant) -> Any:
    if str(asked) in BODIES:
        return BODIES[str(asked)](t)
    content = asked.described.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    schema = content["schema"]
    if "$ref" in schema:
        schema = asked.schemas[schema["$ref"].rpartition("/")[2]]
    return {name: _BY_NAME[name](t) for name in schema.get("required", ())}

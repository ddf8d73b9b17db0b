"""Random spans become the calls that the reference makes of them, before the conventions fill anything in."""

import base64
import json
import os
import random
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from heddle.auth import LOCAL
from heddle.trace.otel import reading
from heddle.trace.otel.export import Export, ProjectResolver
from heddle.trace.otel.span import OWN_VALUE
from heddle.wire import times
from heddle.wire.refs import MAX_ID_BYTES

PYTHON = Path(__file__).parents[2] / ".clients" / "weave-0.53.0" / "bin" / "python"
ORACLE = Path(__file__).parent / "otel_oracle.py"
SOAK = os.environ.get("HEDDLE_SOAK") == "1"
COUNT = 3000 if SOAK else 400

pytestmark = [
    pytest.mark.differential,
    pytest.mark.skipif(not PYTHON.exists(), reason="weave 0.53.0 is not installed in .clients/weave-0.53.0"),
]

KEYS = [*reading.INPUTS, *reading.OUTPUT, *(key for keys in reading.ATTRIBUTES.values() for key in keys)]
COUNTS = [key for keys in reading.USAGE.values() for key in keys]
TEXTS = ["gen_ai.conversation.id", "gcp.vertex.agent.session_id", "wandb.thread_id", "wandb.display_name"]
TEXTS += ["wandb.wb_run_id", "gen_ai.request.model", "gen_ai.response.model", "llm.model_name", "ai.model.id"]
DEEP = ["gen_ai.prompt.0.role", "gen_ai.prompt.0.content", "gen_ai.prompt.1.role", "gen_ai.completion.0.content"]
DEEP += ["gen_ai.prompt.0.tool_calls.0.name", "ai.prompt.messages", "ai.response.text", "gen_ai.request.temperature"]
DEEP += ["input.mime_type", "output.mime_type", "inputs.a", "inputs.b.c", "outputs.x", "llm.output_messages.0.content"]
DEEP += ["wandb.attributes.team", "wandb.attributes.n.0", "http.method", "a.b.c", "a.b", "x"]
JSON_TEXTS = ['{"a":1,"b":[1,2]}', '[{"role":"user","content":"hi"}]', '{"0":"x","1":"y"}', "[1, 2", "{broken", "[]"]
JSON_TEXTS += ['{"model":"m-json","temperature":0.5}', '{"k":{"0":{"z":1}}}', '["one"]']
JSON_KEYS = ("mlflow.spanInputs", "mlflow.spanOutputs", "traceloop.entity.input", "traceloop.entity.output")
NAMES = ["chat gpt/4", "GET /users", "Über Größe", "n" * 300, "a b/c." * 40, "x" * 125 + " y z", "tool:run!", "plain"]


def value(pick: random.Random, key: str) -> AnyValue:
    """A value that the reference can take under this key."""
    if key in TEXTS:
        # The reference takes ids of any length, heddle rejects those beyond MAX_ID_BYTES.
        long = "x" * (1100 if key == "wandb.display_name" else MAX_ID_BYTES - 60) + " y " * 20
        return AnyValue(string_value=pick.choice(["m1", "gpt-4o", "conv 1", "a/b", "r:1", "", long]))
    if key in COUNTS:
        return pick.choice(
            [AnyValue(int_value=pick.randrange(0, 5000)), AnyValue(string_value=str(pick.randrange(1, 99)))]
        )
    kind = pick.randrange(7)
    if kind <= 2:
        return AnyValue(string_value=pick.choice([*JSON_TEXTS, "text", "", "0"]))
    if kind == 3:
        return AnyValue(int_value=pick.choice([0, 1, -5, 2**40]))
    if kind == 4:
        return AnyValue(double_value=pick.choice([0.0, 0.25, 1e300]))
    if kind == 5:
        return AnyValue(bool_value=pick.random() < 0.5)
    return AnyValue(array_value={"values": [AnyValue(string_value="s"), AnyValue(int_value=3)]})


def request(seed: int) -> ExportTraceServiceRequest:
    """A request with one random span."""
    pick = random.Random(seed)
    pools = [
        KEYS,
        COUNTS,
        TEXTS,
        DEEP,
        ["langfuse.startTime", "langfuse.endTime", "wandb.is_turn", "wandb.wb_run_step"],
    ]
    keys = {pick.choice(pick.choice(pools)) for _ in range(pick.choice([0, 1, 3, 8, 20]))}
    attributes = []
    for key in sorted(keys, key=lambda _: pick.random()):
        if key.startswith("langfuse"):
            moment = pick.choice([AnyValue(string_value="2026-01-02T03:04:05.5+00:00"), AnyValue(string_value="soon")])
            held = pick.choice([moment, AnyValue(int_value=1795204029885327000), AnyValue(double_value=1795204029.5)])
        elif key == "wandb.is_turn":
            held = AnyValue(bool_value=pick.random() < 0.7)
        elif key == "wandb.wb_run_step":
            held = AnyValue(int_value=pick.randrange(0, 9))
        else:
            held = value(pick, key)
        attributes.append(KeyValue(key=key, value=held))
    span = {
        "trace_id": pick.randbytes(16),
        "span_id": pick.randbytes(8),
        "parent_span_id": pick.choice([b"", bytes(8), pick.randbytes(8)]),
        "name": pick.choice(NAMES),
        "kind": pick.randrange(6),
        "start_time_unix_nano": 1795204029885327104,
        "end_time_unix_nano": 1795204029885327104 + pick.randrange(10**10),
        "attributes": attributes,
        "status": {"code": pick.randrange(3), "message": pick.choice(["", "boom"])},
        "events": [{"name": "ev", "time_unix_nano": 5, "attributes": attributes[:1]}],
        "links": [{"trace_id": b"t" * 16, "span_id": b"s" * 8, "attributes": attributes[:1]}],
    }
    resource = {"attributes": [KeyValue(key="service.name", value=AnyValue(string_value="svc"))]}
    return ExportTraceServiceRequest(resource_spans=[{"resource": resource, "scope_spans": [{"spans": [span]}]}])


@cache
def theirs() -> list[dict[str, Any]]:
    """What the reference makes of the requests."""
    lines = "\n".join(base64.b64encode(request(seed).SerializeToString()).decode() for seed in range(COUNT))
    done = subprocess.run(
        [str(PYTHON), "-I", str(ORACLE)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=200,
        env={"TZ": "UTC", "HOME": "/nonexistent"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(seed: int) -> dict[str, Any]:
    """What we make of it, in the same words."""
    settings: Any = SimpleNamespace(large_field_bytes=2**30)
    export = Export(settings, cast(Any, None), cast(Any, None), ProjectResolver(LOCAL, "team/project"))
    packed, _ = export.pack(request(seed).SerializeToString(), False)
    (start,), (end,) = packed.starts, packed.ends
    return {
        "start": {
            "id": start.id,
            "op_name": start.op_name,
            "trace_id": start.trace_id,
            "parent_id": start.parent_id,
            "started_at": start.started_at,
            "inputs": json.loads(start.inputs),
            "attributes": json.loads(start.attributes),
            "thread_id": start.thread_id,
            "turn_id": start.turn_id,
            "display_name": start.display_name,
            "wb_run_id": start.run_id.replace(start.project, "project") if start.run_id else None,
            "wb_run_step": start.run_step,
            "otel_dump": json.loads(start.otel_dump or ""),
        },
        "end": {
            "ended_at": end.ended_at,
            "exception": end.exception,
            "output": json.loads(end.output or ""),
            "usage": json.loads(end.summary)["usage"],
        },
    }


def instant(text: str) -> int:
    """Microseconds of the reference's times, which are naive."""
    moment = datetime.fromisoformat(text)
    return times.to_micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def alike(value: Any) -> Any:
    """A value with the reference's slips undone: an empty object that it makes an empty list, lists in dumps."""
    if isinstance(value, dict):
        held = {key: alike(item) for key, item in value.items()}
        if held and set(held) == {str(index) for index in range(len(held))}:
            return [held[str(index)] for index in range(len(held))]
        return held or []
    return [alike(item) for item in value] if isinstance(value, list) else value


def without_quotes(value: Any) -> Any:
    """Numbers and words out of the JSON text that some libraries write of every value."""
    if not isinstance(value, dict):
        return value
    texts = {key for key, text in value.items() if key in JSON_KEYS and text in ("0", "1")}
    return {key: json.loads(item) if key in texts else item for key, item in value.items()}


def check(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """The same call."""
    start, end = theirs["start"], theirs["end"]
    for name in ("id", "op_name", "trace_id", "parent_id", "thread_id", "turn_id", "wb_run_id", "wb_run_step"):
        assert ours["start"][name] == start[name], name
    assert ours["start"]["display_name"] == (start["display_name"] or None)
    assert abs(ours["start"]["started_at"] - instant(start["started_at"])) <= 1
    assert abs(ours["end"]["ended_at"] - instant(end["ended_at"])) <= 1
    assert alike(ours["start"]["inputs"]) == alike(without_quotes(start["inputs"]))
    assert alike(ours["end"]["output"]) == alike(without_quotes(end["output"]))
    custom = start["attributes"].get("wandb", {}).get("attributes", {})
    assert alike(ours["start"]["attributes"]) == alike({**start["attributes"], **custom})
    assert ours["end"]["exception"] == end["exception"]
    assert ours["end"]["usage"] == expected_usage(end["summary"]["usage"])
    check_dump(start["otel_dump"], ours["start"]["otel_dump"])


def expected_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The reference's usage, but one count that is reported in both spellings counts once."""
    ((model, entry),) = usage.items()
    for first, second in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        if entry[first] is not None and entry[first] == entry[second]:
            entry[second] = None
    if entry["total_tokens"] is None:
        mixed = [
            next((entry[name] for name in pair if entry[name] is not None), None)
            for pair in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
        ]
        entry["total_tokens"] = sum(mixed) if None not in mixed else None
    return {model: entry}


def check_dump(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """The same whole span, beside what we add: the scope, and which attributes were JSON texts."""
    assert set(ours) - set(theirs) == {"scope", "json_attributes"} and not set(theirs) - set(ours)
    for name in ("name", "context", "kind", "parent_id", "status", "resource"):
        assert ours[name] == theirs[name], name
    for name in ("attributes", "events", "links"):
        assert alike(ours[name]) == alike(theirs[name]), name
    for name in ("start_time", "end_time"):
        assert abs(instant(ours[name]) - instant(theirs[name])) <= 1


def test_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CONVENTIONS", ())
    monkeypatch.setattr(reading, "_plans", {})
    collided = compared = 0
    for seed, their in enumerate(theirs()):
        if "failed" in their:
            continue
        our = ours(seed)
        if "rejected" in their:
            # The reference drops a span with a value and a subtree under one key.
            collided += 1
            continue
        if f'"{OWN_VALUE}"' in json.dumps(our):
            # Where such a value lies within JSON text, it drops the value alone.
            continue
        try:
            check(their, our)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        compared += 1
    assert compared > COUNT // 2 and collided > COUNT // 40, (compared, collided)

"""What the trace API of W&B Weave answers, as records of an archive.

Refs become internal ones; ids, digests, users and times stay what they are.
"""

from collections.abc import Iterator
from typing import Any

from heddle.store.control.feedback import SPANS, STRUCTURES
from heddle.store.control.object_rows import LATEST
from heddle.trace.calls.pack import client_summary, run_id
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import COLUMNS, STATUS_WORDS
from heddle.wire.jsontypes import Json

_REFS = ("annotation_ref", "runnable_ref", "call_ref", "trigger_ref", "queue_id")
_COSTS = (
    *("prompt_token_cost", "completion_token_cost", "cache_read_input_token_cost"),
    "cache_creation_input_token_cost",
)
_UNITS = ("prompt_token_cost_unit", "completion_token_cost_unit")
PRICE_FIELDS = ("id", "llm_id", "provider_id", "effective_date", *_COSTS, *_UNITS, "created_by", "created_at")
"""What is asked of /cost/query."""


def internal(value: Any) -> Any:
    """A parsed value with internal refs, changed in place."""
    return refs.convert_in(value, lambda _project: True)


def call(project: str, line: Json) -> Json:
    """A call of /calls/stream_query."""
    attributes = internal(line.get("attributes") or {})
    dump = attributes.pop("otel_span", None)
    summary = internal(line.get("summary") or {})
    weave = summary.get("weave")
    status = weave.get("status") if isinstance(weave, dict) else None
    if status not in STATUS_WORDS:
        status = "error" if line.get("exception") else "success" if line.get("ended_at") else "running"
    record: Json = dict.fromkeys(item.name for item in COLUMNS)
    record |= {name: line[name] for name in ("id", "trace_id")}
    record |= {name: line.get(name) for name in ("exception", "display_name")}
    record |= {item.name: line.get(item.field) for item in COLUMNS if item.is_plain and not item.of_end}
    record |= {"project": project, "status": status, "op_name": internal(line["op_name"])}
    record |= {"started_at": _instant(line["started_at"]), "ended_at": _instant(line.get("ended_at"))}
    record |= {
        "user": line.get("wb_user_id"),
        "run_id": run_id(line.get("wb_run_id"), project),
    }
    record |= {"inputs": text(line.get("inputs") or {}), "attributes": jsontext.dumps(attributes)}
    record["otel_dump"] = None if dump is None else jsontext.dumps(dump)
    if record["ended_at"] is not None:
        record |= {item.name: line.get(item.field) for item in COLUMNS if item.is_plain and item.of_end}
        record["output"] = None if line.get("output") is None else text(line["output"])
        record["summary"] = jsontext.dumps(client_summary(summary))
    return record


def version(project: str, found: Json) -> Json:
    """A version of /objs/query."""
    val = text(found["val"])
    named = {name: found[name] for name in ("kind", "object_id", "digest", "version_index", "is_latest")}
    named |= {name: found.get(name) for name in ("base_object_class", "leaf_object_class")}
    ref = refs.object_ref(project, found["kind"], found["object_id"], found["digest"])
    times_of = {"created_at": _instant(found["created_at"]), "deleted_at": None}
    user = {"user": found.get("wb_user_id")}
    return {"project": project, "ref": ref, **named, **times_of, **user, "size": len(val.encode()), "val": val}


def labels(project: str, found: Json) -> Iterator[tuple[str, Json]]:
    """The tags and aliases of a version, each with the table it belongs to."""
    base = {"project": project, "object_id": found["object_id"], "digest": found["digest"]}
    base["user"] = found.get("wb_user_id") or ""
    at = _instant(found["created_at"])
    for tag in found.get("tags") or ():
        yield "object_tags", {**base, "tag": tag, "created_at": at}
    aliases = dict.fromkeys(found.get("aliases") or ())
    if found["is_latest"]:
        aliases.setdefault(LATEST)
    for alias in aliases:
        yield "object_aliases", {**base, "alias": alias, "updated_at": at}


def feedback(project: str, row: Json) -> Json:
    """A row of /feedback/query."""
    texts = {"id": row["id"], "project": project, "feedback_type": row["feedback_type"]}
    texts |= {"wb_user_id": row.get("wb_user_id") or "", "creator": row.get("creator")}
    texts |= {"weave_ref": internal(row["weave_ref"]), "payload": text(row.get("payload") or {})}
    texts |= {name: internal(row.get(name)) for name in _REFS}
    empty: Json = {name: [] if name == "scorer_tags" else {} for name in STRUCTURES}
    texts |= {name: text(row.get(name) or value) for name, value in empty.items()}
    texts |= {name: row.get(name) or value for name, value in SPANS.items()}
    return {**texts, "created_at": _instant(row["created_at"])}


def price(project: str, row: Json) -> Json:
    """A price of /cost/query."""
    named = {"project": project, "id": row["id"], "llm_id": row["llm_id"], "provider_id": row.get("provider_id") or ""}
    named |= {name: row.get(name) or 0.0 for name in _COSTS} | {name: row.get(name) or "USD" for name in _UNITS}
    at = _instant(row.get("effective_date")) or 0
    made = {"created_by": row.get("created_by") or "", "created_at": _instant(row.get("created_at")) or at}
    return {**named, **made, "effective_date": at}


def tables_in(value: Any, project: str) -> Iterator[str]:
    """The digests of tables of the project that a value with internal refs names."""
    prefix = f"{refs.INTERNAL}{project}/table/"
    for ref in refs.find(value):
        if ref.startswith(prefix):
            yield ref.removeprefix(prefix).partition("/")[0]


def files_in(value: Any) -> Iterator[tuple[str, str]]:
    """Name and digest of the files that stored values name."""
    if isinstance(value, dict):
        named = value.get("files")
        if value.get("_type") == "CustomWeaveType" and isinstance(named, dict):
            yield from ((name, digest) for name, digest in named.items() if isinstance(digest, str))
        for item in value.values():
            yield from files_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from files_in(item)


def text(value: Any) -> str:
    """JSON text of a parsed value, with internal refs."""
    return jsontext.dumps(internal(value))


def _instant(text: str | None) -> int | None:
    return None if text is None else times.parse(text)

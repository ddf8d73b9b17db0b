"""A call as a row of the list: small, with lines for input and output, and for what a search found in it."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from heddle.store.base import Store
from heddle.trace.calls.packing import usage_entries
from heddle.wire import refs
from heddle.wire.call_summary import NO_MODEL, problem_of
from heddle.wire.calls import PLAIN_KIND, STATUS_WORDS, SUCCESS, CallRow, CallsQuery, CostOf, Filter, SortTerm, Usage
from heddle.wire.conversation.call import of_call, of_value
from heddle.wire.conversation.parts import media
from heddle.wire.inference import sum_of_costs
from heddle.wire.jsontypes import Json, is_index
from heddle.wire.query import Operation, Search, searches
from heddle.wire.search import TextSearch, excerpt, parse_search, score, searched

_VALUE_LENGTH = 200
_SCORE = "wandb.runnable."
_LINE_LENGTH = 100
_MEDIA = frozenset(("uri", "blob", "file"))
_MARKS = re.compile(
    r"^\s*(?:#{1,6}|>|[-*+])\s+(?=\S)|\*\*(?=\S)|(?<=\S)\*\*|```\w*|(?<!\w)`(?=\w)|(?<=\w)`(?!\w)", re.MULTILINE
)
"""The signs of Markdown, which nobody reads on one line."""
_MOST_ITEMS = 8
_MOST_DOTTED = 8
_MOST_MEDIA = 3
_MOST_LEVELS = 4
_LARGEST_INLINE = 16_384


def row(
    call: CallRow,
    cost: CostOf,
    columns: Sequence[Sequence[str]],
    feedback: Sequence[Mapping[str, Any]],
    filled: tuple[Any, Any] | None = None,
) -> dict[str, Any]:
    """What the page shows of a call; `columns` are the paths of dynamic columns, taken apart.

    `filled` are inputs and output with what their refs point to.

    What goes without saying is left out: a root, success, kind fn. `at` and `took` are microseconds.
    """
    attributes, summary = _load(call.attributes), _load(call.summary)
    inputs, output = filled or (_load(call.inputs), _load(call.output))
    usage, named = _usage(summary), _named_model(inputs)
    model, tokens, dollars = _sum_usage(usage, call.started_at, cost)
    said = of_call(inputs, output, attributes, is_model=call.kind == "llm", is_tool=call.kind == "tool")
    asked = next((one for one in reversed(said.messages) if one["role"] == "user"), None)
    asked = (asked or (said.messages[-1] if said.messages else {})).get("parts", [])
    told = said.choices[0].messages[-1]["parts"] if said.choices else []
    shown: dict[str, Any] = {
        "id": call.id,
        "trace": call.trace_id,
        "child": call.parent_id is not None or None,
        "op": refs.operation_name(call.op_name),
        "name": call.display_name or None,
        "kind": None if call.kind == PLAIN_KIND else call.kind,
        "status": None if call.status == SUCCESS else STATUS_WORDS[call.status],
        "at": call.started_at,
        "took": None if call.ended_at is None else max(0, call.ended_at - call.started_at),
        "user": call.user,
        "thread": call.thread_id or None,
        "model": model or named,
        "tokens": tokens,
        "cost": None if dollars is None else round(dollars, 8),
        "input": _line_of(asked) or None,
        "output": _line_of(told) or None,
        "input_media": _media_of(asked) or None,
        "output_media": _media_of(told) or None,
        "error": _line(problem_of(call.exception)) if call.exception else None,
        "feedback": len(feedback) or None,
    }
    if columns:
        roots = {"inputs": inputs, "attributes": attributes, "output": output, "summary": summary}
        if call.otel_dump is not None and isinstance(attributes, dict):
            roots["attributes"] = {**attributes, "otel_span": _load(call.otel_dump)}
        roots["scores"] = scores_of(feedback)
        shown["values"] = [_value(_at(roots, path)) for path in columns]
    return {name: value for name, value in shown.items() if value is not None}


def by_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rows as a list per field: half as many bytes."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def models_of(call: CallRow) -> list[str]:
    """The models that a call used."""
    return [used.model for used in _usage(_load(call.summary)) if used.model != NO_MODEL]


def _named_model(inputs: Any) -> str | None:
    model = inputs.get("model") if isinstance(inputs, dict) else None
    return refs.label(model) if isinstance(model, str) else None


def _load(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _usage(summary: Any) -> list[Usage]:
    return usage_entries(summary) if isinstance(summary, dict) else []


def _sum_usage(usage: Sequence[Usage], at: int, cost: CostOf) -> tuple[str | None, int | None, float | None]:
    """The model used most, all tokens, and dollars (None where no model has a price)."""
    tokens = {used.model: used.prompt + used.completion or used.total or 0 for used in usage}
    most = max(tokens, key=lambda model: tokens[model], default=NO_MODEL)
    dollars = sum_of_costs(cost(used, at) for used in usage)
    return None if most == NO_MODEL else most, sum(tokens.values()) or None, dollars


def scores_of(feedback: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest result of every scorer."""
    found: dict[str, Any] = {}
    for entry in feedback:
        name = entry["feedback_type"]
        if name.startswith(_SCORE):
            payload = orjson.loads(orjson.dumps(entry["payload"]))
            found[name.removeprefix(_SCORE)] = payload.get("output") if isinstance(payload, dict) else payload
    return found


def _at(value: Any, path: Sequence[str]) -> Any:
    """What lies at a path; as in filters, one key with dots may stand for the parts that are left."""
    dotted: Any = None
    for place, part in enumerate(path):
        if isinstance(value, dict):
            if 0 < len(path) - place - 1 < _MOST_DOTTED:
                dotted = value.get(".".join(path[place:]), dotted)
            value = value.get(part)
        elif isinstance(value, list) and is_index(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return dotted
    return dotted if value is None else value


def _value(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else _line(value, _VALUE_LENGTH)


def _line_of(parts: Sequence[Json]) -> str:
    """The first part of a message that says something, a call of a tool by name."""
    return next((line for part in parts if (line := _part_line(part))), "")


def _part_line(part: Json) -> str:
    kind = part["type"]
    if kind in ("text", "refusal", "data"):
        content = part["content"]
        is_alone = isinstance(content, dict) and len(content) == 1
        content = next(iter(content.values())) if is_alone else content
        said = of_value(content) if isinstance(content, (dict, list)) else None
        told = [*said.messages, *(one for choice in said.choices[:1] for one in choice.messages)] if said else []
        return _line_of(told[-1]["parts"]) if told else _line(content)
    if kind == "tool_call":
        return _cut(f"{part.get('name') or 'tool'}({_line(part.get('arguments'), 80)})")
    return _line_of(part.get("response") or []) if kind == "tool_call_response" else ""


def _media_of(parts: Sequence[Json]) -> list[Json]:
    """The first pictures, sounds and files of a message; what is large and not stored only by its kind."""
    found = (one for part in parts for one in ([part] if part["type"] in _MEDIA else _media_in(part.get("content"))))
    return [
        one if _is_light(one) else {"type": "file", "modality": one["modality"]} for one in islice(found, _MOST_MEDIA)
    ]


def _is_light(part: Json) -> bool:
    return len(part.get("content") or part.get("uri") or "") <= _LARGEST_INLINE


def _media_in(value: Any, levels: int = _MOST_LEVELS) -> Iterator[Json]:
    if isinstance(value, dict) and (found := media(value)) is not None:
        yield from () if found.get("name") == "Op" else (found,)
    elif levels and isinstance(value, (dict, list)):
        for item in islice(value.values() if isinstance(value, dict) else value, _MOST_ITEMS):
            yield from _media_in(item, levels - 1)


def _line(value: Any, length: int = _LINE_LENGTH) -> str:
    """Any JSON value on one line, cut."""
    if value is None or length <= 0:
        return ""
    if isinstance(value, str):
        said = refs.label(value) if value.startswith(refs.INTERNAL) else value
        said = problem_of(said) if said.startswith("Traceback") else said[: 5 * length]
        return _cut(_MARKS.sub("", said), length)
    if isinstance(value, Mapping):
        is_custom = value.get("_type") == "CustomWeaveType"
        return _cut(_custom(value, length) if is_custom else _pairs(_first_row(value), length), length)
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return _cut(f"{len(value)} {'row' if len(value) == 1 else 'rows'}: {_pairs(value[0], length)}", length)
    return _cut(orjson.dumps(_bound(value, length)).decode(), length)


def _first_row(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first row of a data frame, whose columns are objects by index; any other object as it is."""
    is_frame = bool(value) and all(isinstance(column, dict) and "0" in column for column in value.values())
    return {name: column["0"] for name, column in value.items()} if is_frame else value


def _custom(value: Mapping[str, Any], length: int) -> str:
    """What an object of an SDK says in words; of a picture or a file nothing."""
    told = value.get("val")
    return _line(told.get("markup", told) if isinstance(told, dict) else told, length - 1)


def _pairs(values: Mapping[str, Any], length: int) -> str:
    """Names with their values; each level has less room than the one around it, so that no depth is too much."""
    shown = islice(((name, value) for name, value in values.items() if not name.startswith("_")), _MOST_ITEMS)
    lines = ((name, _line(value, min(60, length - 2)), value) for name, value in shown)
    return ", ".join(f"{name}: {line}" for name, line, value in lines if line or not isinstance(value, dict))


def _bound(value: Any, length: int) -> Any:
    """The beginning of a large value: what cannot be seen, behind it or below it, is not written."""
    if length <= 0:
        return None
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, list):
        return [_bound(item, length - 1) for item in value[:_MOST_ITEMS]]
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = list(value.items())[:_MOST_ITEMS]
        return {name: _bound(item, length - 1) for name, item in items}
    return value


def _cut(text: str, length: int = _LINE_LENGTH) -> str:
    short = " ".join(text[: length * 3].split())
    return short if len(short) <= length else f"{short[: length - 1]}…"


MOST_SCORED = 500
"""Relevance orders the newest so many hits."""
_MOST_OF_TRACES = 2000
_MOST_LEAVES = 2000
_BODIES = frozenset({"inputs", "attributes", "output", "exception"})
_WEIGHTS = {"name": 3.0, "exception": 2.0, "output": 1.0, "inputs": 1.0, "attributes": 0.5, "feedback": 1.0}
NEWEST_FIRST = (SortTerm("started_at", True), SortTerm("id", True))

Feedback = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a call holds what was asked: the path of a field, and plain text and hits of it in turn."""

    call: str
    field: str
    parts: tuple[str, ...]
    score: float

    def shown(self, call: CallRow) -> dict[str, Any]:
        """As the page gets it; another call of the trace is named."""
        return {"field": self.field, "parts": self.parts, "call": None if self.call == call.id else self.call}


def search_in(query: Operation | None) -> Search | None:
    """The first text search of a query."""
    return None if query is None else next(searches(query), None)


async def find_hits(
    store: Store, project: str, node: Search, calls: Sequence[tuple[CallRow, Feedback]]
) -> dict[str, Hit]:
    """The best hit of each call, or of any call of its trace where that is what was asked, by the id of the call."""
    asked = parse_search(node.text)
    if not node.any_of_trace:
        found = await asyncio.to_thread(lambda: [_hit(asked, call, feedback) for call, feedback in calls])
        return {hit.call: hit for hit in found}
    traces = tuple({call.trace_id for call, _ in calls})
    if not traces:
        return {}
    query = CallsQuery(
        project,
        Filter(trace_ids=traces),
        Search(node.text),
        NEWEST_FIRST,
        _MOST_OF_TRACES,
        columns=_BODIES,
        shortened=True,
    )
    best: dict[str, Hit] = {}
    async for slice_ in store.calls.stream(query):
        for call in slice_:
            hit = await asyncio.to_thread(_hit, asked, call, ())
            if call.trace_id not in best or hit.score > best[call.trace_id].score:
                best[call.trace_id] = hit
    return {call.id: best[call.trace_id] for call, _ in calls if call.trace_id in best}


def _hit(asked: TextSearch, call: CallRow, feedback: Feedback) -> Hit:
    texts = {
        "name": searched((refs.operation_name(call.op_name), call.display_name), ()),
        "exception": searched((call.exception,), ()),
        **{name: searched((), (getattr(call, name),)) for name in ("output", "inputs", "attributes")},
        "feedback": searched((), [orjson.dumps(row["payload"]).decode() for row in feedback]),
    }
    total = score(asked, [(texts[name], weight) for name, weight in _WEIGHTS.items()])
    best: tuple[str, tuple[str, ...]] = ("", ())
    most = 0
    for path, text in _leaves(call, feedback):
        held = sum(1 for term in asked.terms if next(term.spans(text.lower()), None) is not None)
        if held > most or (not most and not best[1] and excerpt(asked, text) is not None):
            found = excerpt(asked, text)
            best, most = (path, found.parts if found else ()), held
        if most == len(asked.terms):
            break
    return Hit(call.id, *best, total)


def _leaves(call: CallRow, feedback: Feedback) -> Iterator[tuple[str, str]]:
    """The texts of a call with their paths, those first that tell most."""
    yield "exception", call.exception or ""
    for name in ("output", "inputs"):
        yield from _texts_in(getattr(call, name), name)
    yield "name", call.display_name or ""
    yield "op", refs.operation_name(call.op_name)
    yield from _texts_in(call.attributes, "attributes")
    for row in feedback:
        yield from _texts_in(orjson.dumps(row["payload"]).decode(), "feedback")


def _texts_in(document: str | None, name: str) -> Iterator[tuple[str, str]]:
    """The texts, numbers and keys of a JSON document, as far as they are few."""
    pending: list[tuple[str, Any]] = [(name, None if document is None else orjson.loads(document))]
    for _ in range(_MOST_LEAVES):
        if not pending:
            return
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += reversed([(f"{path}.{key}", item) for key, item in value.items()])
            if value:
                yield path, " ".join(value)
        elif isinstance(value, list):
            pending += reversed([(f"{path}.{index}", item) for index, item in enumerate(value)])
        elif value is not None:
            yield path, value if isinstance(value, str) else orjson.dumps(value).decode()

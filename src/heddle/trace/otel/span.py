"""A span as it was exported, its attributes as a tree, and the whole of it as the call's `otel_dump`, and back."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heddle.errors import HeddleError
from heddle.text_cache import cache_texts
from heddle.trace.otel.messages import FLAGS, HEX, TEXT, TIME, UINT32, Message, enum, pairs, repeated, singular
from heddle.wire import jsontext, times
from heddle.wire.jsontypes import Json

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_CODES = ("UNSET", "OK", "ERROR")
FAILED = 2
"""The status of a span that failed."""


_TRACE_ID_LENGTH, _SPAN_ID_LENGTH = 32, 16
_HEX = frozenset("0123456789abcdef")


def id_problem(trace_id: str, span_id: str) -> str | None:
    """Why nothing can be stored under these ids; None where they are fine."""
    for name, text, length in (("trace_id", trace_id, _TRACE_ID_LENGTH), ("span_id", span_id, _SPAN_ID_LENGTH)):
        if len(text) != length or not _HEX.issuperset(text):
            return f"{name} must be {length} hex digits ({length // 2} bytes)"
        if not text.strip("0"):
            return f"{name} must not be all zeros"
    return None


_SPAN_TYPE, _PENDING = "logfire.span_type", "pending_span"


def is_placeholder(span: "OtelSpan") -> bool:
    """True for what Logfire sends when a span begins: a child of the span, which comes itself when it ends."""
    return span.attributes.get(_SPAN_TYPE) == _PENDING


@dataclass(slots=True)
class OtelEvent:
    """An event of a span; `time` in nanoseconds."""

    name: str = singular(2, "name", TEXT)
    time: int = singular(1, "timeUnixNano", TIME)
    attributes: Json = pairs(3)
    dropped_attributes: int = singular(4, "droppedAttributesCount", UINT32)


@dataclass(slots=True)
class OtelLink:
    """A link to another span."""

    trace_id: str = singular(1, "traceId", HEX)
    span_id: str = singular(2, "spanId", HEX)
    trace_state: str = singular(3, "traceState", TEXT)
    attributes: Json = pairs(4)
    dropped_attributes: int = singular(5, "droppedAttributesCount", UINT32)
    flags: int = singular(6, "flags", FLAGS)


_STATUS = 15, "status"


@dataclass(slots=True)
class OtelSpan:
    """One span. Ids are lower-case hex (empty: none), times nanoseconds, attributes flat with dotted keys.

    Attribute values are text, numbers, booleans, None, lists and dicts of them; bytes are base64 text, numbers that
    JSON has no word for are `nan`, `inf` and `-inf`.
    """

    name: str = singular(5, "name", TEXT)
    trace_id: str = singular(1, "traceId", HEX)
    span_id: str = singular(2, "spanId", HEX)
    parent_id: str = singular(4, "parentSpanId", HEX)
    start: int = singular(7, "startTimeUnixNano", TIME)
    end: int = singular(8, "endTimeUnixNano", TIME)
    kind: int = singular(6, "kind", enum("SPAN_KIND_", *KINDS))
    attributes: Json = pairs(9)
    status_code: int = singular(3, "code", enum("STATUS_CODE_", *STATUS_CODES), within=_STATUS)
    status_message: str = singular(2, "message", TEXT, within=_STATUS)
    trace_state: str = singular(3, "traceState", TEXT)
    events: list[OtelEvent] = repeated(11, "events", Message.of(OtelEvent))
    links: list[OtelLink] = repeated(13, "links", Message.of(OtelLink))
    scope: str = ""
    """The instrumentation library's name."""
    scope_version: str = ""
    resource: Json = field(default_factory=dict)
    """Attributes of the resource, flat, shared by all its spans."""
    resource_dropped: int = 0
    is_of_logs: bool = False
    """Nobody exported it: it stands for what log records tell of it."""


MAX_KEY_PARTS = 64
"""A key of more parts is kept whole."""
MAX_JSON_DEPTH = 100
T = TypeVar("T")
_Route = tuple[tuple[str, ...], tuple[str, ...], str]
_Beside = list[tuple[tuple[str, ...], Any]]
"""Values that have a subtree at their place, with their paths."""
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
OWN_VALUE = "_value"
"""Under this name a key's own value lies in its subtree."""


def split_key(key: str) -> tuple[str, ...]:
    """The parts of a dotted key."""
    found = tuple(key.split("."))
    return found if len(found) <= MAX_KEY_PARTS else (key,)


@cache_texts(longest=200)
def _route(key: str) -> _Route:
    """The parts of a key, those on the way and the last one."""
    path = split_key(key)
    return path, path[:-1], path[-1]


def expand(flat: Json) -> tuple[Json, list[str]]:
    """The tree, and the keys whose value came as JSON text.

    The value of a key that has a subtree, too (`error` beside `error.type`), lies in the subtree as `_value`.
    """
    tree: Json = {}
    parsed_keys: list[str] = []
    beside: _Beside = []
    for key, value in flat.items():
        if type(value) is str and value[:1] in ("[", "{"):
            parsed = _parse_json(value)
            if parsed is not value:
                parsed_keys.append(key)
                value = parsed
        path, way, last = _route(key)
        node = tree
        for part in way:
            below = node.get(part)
            if type(below) is not dict:
                below = node[part] = {} if below is None else _open(below, tree, path, beside)
            node = below
        if last in node:
            _join(node, last, value, path, beside)
        else:
            node[last] = value
    for path, value in beside:
        _put_beside(tree, path, value)
    return tree, parsed_keys


def _parse_json(text: str) -> Any:
    """What JSON text means; the text itself when it is none."""
    try:
        return jsontext.loads(text.encode("utf-8", "replace"), max_depth=MAX_JSON_DEPTH)
    except HeddleError:
        return text


def _open(held: Any, tree: Json, path: tuple[str, ...], beside: _Beside) -> Json:
    """What lies on the way down as a dict: a list by its indices; anything else goes beside what comes below it."""
    node: Any = tree
    for place, part in enumerate(path):
        node = node[part]
        if node is held:
            if isinstance(held, list):
                return _indexed(held)
            beside.append((path[: place + 1], held))
            return {}
    raise AssertionError("the value lies on its own path")


def _put_beside(tree: Json, path: tuple[str, ...], value: Any) -> None:
    """Put a value into the subtree of its own key."""
    node: Any = tree
    for part in path[:-1]:
        node = node[part]
    below = node[path[-1]]
    if isinstance(below, list):
        below = node[path[-1]] = _indexed(below)
    name = OWN_VALUE
    while name in below:
        name = f"_{name}"
    below[name] = value


def _indexed(items: list[Any]) -> Json:
    return {str(index): item for index, item in enumerate(items)}


def _join(node: Json, last: str, value: Any, path: tuple[str, ...], beside: _Beside) -> None:
    """Put a value where there is one: two structures are merged, a scalar goes beside a structure."""
    held = node[last]
    is_held, is_given = isinstance(held, (dict, list)), isinstance(value, (dict, list))
    if is_held and is_given:
        node[last] = _merged(held, value, path, beside)
    elif is_held:
        if value is not None:
            beside.append((path, value))
    else:
        if is_given and held is not None:
            beside.append((path, held))
        node[last] = value


def _merged(held: Any, value: Any, path: tuple[str, ...], beside: _Beside) -> Json:
    base: Json = _indexed(held) if isinstance(held, list) else held
    for key, item in (_indexed(value) if isinstance(value, list) else value).items():
        if key in base:
            _join(base, key, item, (*path, key), beside)
        else:
            base[key] = item
    return base


def pick_path(tree: Any, path: Iterable[str]) -> Any:
    """What lies under a path; None when there is nothing."""
    for part in path:
        if type(tree) is dict:
            tree = tree.get(part)
        elif type(tree) is list and _INDEX.fullmatch(part):
            index = int(part)
            tree = tree[index] if index < len(tree) else None
        else:
            return None
    return tree


def restore_lists(value: Any) -> Any:
    """The value with dicts whose keys are exactly "0" to "n-1" as lists, at any depth of dicts."""
    if type(value) is not dict:
        return value
    changed = {
        key: new for key, item in value.items() if type(item) is dict and (new := restore_lists(item)) is not item
    }
    found = {**value, **changed} if changed else value
    if "0" in found and all(str(index) in found for index in range(len(found))):
        return [found[str(index)] for index in range(len(found))]
    return found


def flatten(tree: Json, texts: Iterable[str] = ()) -> Json:
    """The flat attributes of a tree; the keys of `texts` hold JSON text again, those with a subtree their own value."""
    flat: Json = {}
    _flatten(tree, "", frozenset(texts), flat)
    return flat


def _flatten(node: Json, prefix: str, texts: frozenset[str], into: Json) -> None:
    own = _own_name(node) if prefix and len(node) > 1 else ""
    for part, value in node.items():
        key = f"{prefix}{part}"
        if key in texts:
            into[key] = jsontext.dumps(value)
        elif part == own:
            into[prefix[:-1]] = value
        elif isinstance(value, dict) and value:
            _flatten(value, f"{key}.", texts, into)
        else:
            into[key] = value


def _own_name(node: Json) -> str:
    """The name of the value that a subtree's key has itself; empty where it has none."""
    name = found = OWN_VALUE
    while name in node:
        name, found = f"_{name}", name
    return found if found in node else ""


def to_dump(span: OtelSpan, attributes: Json, texts: list[str], resource: Any) -> Json:
    """The form in which a span is stored and read as `attributes.otel_span`.

    `attributes` is the tree of the span's attributes and `texts` the keys that came as JSON text; `resource` is the
    result of `resource_dump`, or JSON text of it. Beyond the fields of the contract it holds the scope and `texts`.
    """
    dump: Json = {
        "name": span.name,
        "context": {"trace_id": span.trace_id, "span_id": span.span_id, "trace_state": span.trace_state},
        "kind": kind_name(span.kind),
        "parent_id": parent_of(span),
        "start_time": times.to_iso(span.start // 1000),
        "end_time": times.to_iso(span.end // 1000),
        "status": {"code": status_name(span.status_code), "message": span.status_message},
        "attributes": attributes,
        "events": [_dumped(event, _EVENT) for event in span.events],
        "links": [_dumped(link, _LINK) for link in span.links],
        "resource": resource,
        "scope": {"name": span.scope, "version": span.scope_version},
        "json_attributes": texts,
    }
    if span.is_of_logs:
        dump["of_logs"] = True
    return dump


def resource_dump(attributes: Json, dropped: int) -> Json:
    """The resource of a span, as its dump holds it."""
    return {"attributes": expand(attributes)[0], "dropped_attributes_count": dropped}


def parent_of(span: OtelSpan) -> str | None:
    """The id of the parent; all zeros are none."""
    return span.parent_id if span.parent_id.strip("0") else None


def kind_name(kind: int) -> str:
    """The kind of a span in words."""
    return KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]


def status_name(code: int) -> str:
    """The status of a span in words."""
    return STATUS_CODES[code] if 0 <= code < len(STATUS_CODES) else STATUS_CODES[0]


_EVENT = {"name": "name", "timestamp": "time", "dropped_attributes_count": "dropped_attributes"}
_LINK = {name: name for name in ("trace_id", "span_id", "trace_state", "flags")}
_LINK["dropped_attributes_count"] = "dropped_attributes"
"""Names in a dump, and attributes of what it tells of."""


def _dumped(item: OtelEvent | OtelLink, names: Mapping[str, str]) -> Json:
    return {
        **{shown: getattr(item, name) for shown, name in names.items()},
        "attributes": expand(item.attributes)[0],
    }


def _restored(kind: Callable[..., T], names: Mapping[str, str], dumps: Any) -> list[T]:
    """The items of a list in a dump; what has another form is left out."""
    listed = [item for item in dumps if isinstance(item, dict)] if isinstance(dumps, list) else []
    made = []
    for item in listed:
        found = kind(attributes=flatten(_at(item, "attributes", _NOTHING)))
        for shown, name in names.items():
            if type(item.get(shown)) is type(getattr(found, name)):
                setattr(found, name, item[shown])
        made.append(found)
    return made


def to_span(dump: Json) -> OtelSpan:
    """The span of a dump; what the dump lacks, or holds in another form, is empty."""
    context, status = _at(dump, "context", _NOTHING), _at(dump, "status", _NOTHING)
    resource, scope = _at(dump, "resource", _NOTHING), _at(dump, "scope", _NOTHING)
    texts = dump.get("json_attributes")
    return OtelSpan(
        name=_at(dump, "name", ""),
        trace_id=_at(context, "trace_id", ""),
        span_id=_at(context, "span_id", ""),
        parent_id=_at(dump, "parent_id", ""),
        start=_parse_time(dump.get("start_time")),
        end=_parse_time(dump.get("end_time")),
        kind=_index_of(KINDS, dump.get("kind")),
        attributes=flatten(_at(dump, "attributes", _NOTHING), texts if isinstance(texts, list) else ()),
        status_code=_index_of(STATUS_CODES, status.get("code")),
        status_message=_at(status, "message", ""),
        trace_state=_at(context, "trace_state", ""),
        events=_restored(OtelEvent, _EVENT, dump.get("events")),
        links=_restored(OtelLink, _LINK, dump.get("links")),
        scope=_at(scope, "name", ""),
        scope_version=_at(scope, "version", ""),
        resource=flatten(_at(resource, "attributes", _NOTHING)),
        resource_dropped=_at(resource, "dropped_attributes_count", 0),
        is_of_logs=dump.get("of_logs") is True,
    )


_NOTHING: Json = {}


def _at(holder: Json, name: str, otherwise: T) -> T:
    """What a dump holds under a name, where that is of the type of the other."""
    found = holder.get(name)
    return found if isinstance(found, type(otherwise)) else otherwise


def _index_of(words: tuple[str, ...], word: Any) -> int:
    return words.index(word) if word in words else 0


def _parse_time(text: Any) -> int:
    micros = times.parse(text) if isinstance(text, str) else None
    return (micros or 0) * 1000

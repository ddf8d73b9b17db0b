"""Refs: `weave:///entity/project/...` outside, `weave-trace-internal:///id/...` inside.

The internal project id is base64 of `entity/project`, so both directions are pure functions and no table is looked up.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from heddle.errors import InvalidRequest

EXTERNAL = "weave:///"
INTERNAL = "weave-trace-internal:///"
PRIVATE = "weave-private://///"
ROWS = "/attr/rows/id/"

_INTERNAL_IN_JSON = b'"weave-trace-internal:///'
_PROJECT_IN_JSON = re.compile(rb'[^/"\\]*(?=[/"])')
_UNSAFE_PROJECT = re.compile(r"[\x00-\x1f\x7f:]")
MAX_PROJECT_LENGTH = 512

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Ref:
    """An internal ref taken apart; `kind` is object, op, call, table, agent_turn, agent_conversation or agent_span."""

    project: str
    kind: str
    name: str
    version: str = ""
    edges: tuple[Edge, ...] = ()


@lru_cache(maxsize=4096)
def internal_project(project_id: str) -> str:
    """The internal id of `entity/project`; raises InvalidRequest when the text is not of that form."""
    entity, slash, project = project_id.partition("/")
    if not (slash and entity and project) or "/" in project or _UNSAFE_PROJECT.search(project_id):
        raise InvalidRequest(f"Invalid project_id: expected 'entity/project', got {project_id[:200]!r}")
    if len(project_id) > MAX_PROJECT_LENGTH:
        raise InvalidRequest(f"Invalid project_id: longer than {MAX_PROJECT_LENGTH} characters")
    return base64.urlsafe_b64encode(project_id.encode("utf-8", "replace")).decode().rstrip("=")


def external_project(internal: str) -> str | None:
    """The `entity/project` of an internal id, or None when it is none of ours."""
    try:
        text = base64.urlsafe_b64decode(internal + "=" * (-len(internal) % 4)).decode()
        return text if internal_project(text) == internal else None
    except (binascii.Error, ValueError, UnicodeError, InvalidRequest):
        return None


def to_internal(ref: str) -> str:
    """One external ref in internal form; raises InvalidRequest when it has fewer than three segments."""
    parts = ref[len(EXTERNAL) :].split("/", 2)
    if len(parts) != 3:
        raise InvalidRequest(f"Invalid URI: {ref[:500]}")
    return f"{INTERNAL}{internal_project(f'{parts[0]}/{parts[1]}')}/{parts[2]}"


def to_external(ref: str) -> str:
    """One internal ref in external form; a project that is none of ours becomes a private ref."""
    project, _, tail = ref[len(INTERNAL) :].partition("/")
    external = external_project(project)
    return f"{EXTERNAL}{external}/{tail}" if external else f"{PRIVATE}{tail}"


def convert_in(value: Any, may_read: Callable[[str], bool]) -> Any:
    """Rewrite every external ref among the string values of a parsed body, in place; returns the value.

    `may_read(entity/project)` decides whether a ref that is internal already is accepted. Keys are not touched.
    Raises InvalidRequest for a malformed ref.
    """
    if type(value) is str:
        return _convert_text(value, may_read)
    if type(value) is dict:
        for key, item in value.items():
            kind = type(item)
            if kind is str:
                if item.startswith("weave"):
                    value[key] = _convert_text(item, may_read)
            elif kind is dict or kind is list:
                convert_in(item, may_read)
    elif type(value) is list:
        for index, item in enumerate(value):
            kind = type(item)
            if kind is str:
                if item.startswith("weave"):
                    value[index] = _convert_text(item, may_read)
            elif kind is dict or kind is list:
                convert_in(item, may_read)
    return value


def _convert_text(text: str, may_read: Callable[[str], bool]) -> str:
    if text.startswith(EXTERNAL):
        return to_internal(text)
    if text.startswith(INTERNAL):
        project = external_project(text[len(INTERNAL) :].partition("/")[0])
        if project is None or not may_read(project):
            raise InvalidRequest("Encountered unexpected internal ref format.")
    return text


def convert_out(text: bytes) -> bytes:
    """Rewrite every internal ref among the string values of JSON text."""
    first, *rest = text.split(_INTERNAL_IN_JSON)
    parts = [first]
    for tail in rest:
        # Behind a backslash the quote belongs to the text of a string.
        found = None if parts[-1].endswith(b"\\") else _PROJECT_IN_JSON.match(tail)
        if found is None:
            parts.append(_INTERNAL_IN_JSON + tail)
        else:
            parts += (_external_prefix(found[0]), tail[found.end() :])
    return b"".join(parts) if rest else text


@lru_cache(maxsize=4096)
def _external_prefix(internal: bytes) -> bytes:
    external = external_project(internal.decode("utf-8", "replace"))
    if external is None:
        return b'"weave-private:////'
    return b'"weave:///' + external.replace("\\", "\\\\").replace('"', '\\"').encode()


def parse(ref: str) -> Ref:
    """Take an internal ref apart; raises InvalidRequest when it is not one."""
    if not ref.startswith(INTERNAL):
        raise InvalidRequest(f"Invalid ref: {ref[:500]}")
    parts = ref[len(INTERNAL) :].split("/")
    project, kind, rest = parts[0], "".join(parts[1:2]), parts[2:]
    if kind in ("object", "op"):
        name, colon, version = rest[0].partition(":") if rest else ("", "", "")
        edges = [unquote(part) for part in rest[1:]]
        if name and colon and version and len(edges) % 2 == 0:
            return Ref(project, kind, unquote(name), unquote(version), tuple(zip(edges[::2], edges[1::2], strict=True)))
    elif kind in ("call", "table", "agent_turn", "agent_conversation", "agent_span") and len(rest) == 1 and rest[0]:
        return Ref(project, kind, unquote(rest[0]))
    raise InvalidRequest(f"Invalid ref: {to_external(ref)[:500]}")


def quote_part(text: str) -> str:
    """One part of a ref, percent-encoded."""
    return quote(text, safe="")


def object_ref(project: str, kind: str, name: str, digest: str) -> str:
    """The internal ref of an object or op version; clients do not encode the name."""
    return f"{INTERNAL}{project}/{kind}/{name}:{digest}"


def call_ref(project: str, call_id: str) -> str:
    """The internal ref of a call."""
    return f"{INTERNAL}{project}/call/{quote_part(call_id)}"


def find(value: Any) -> Iterator[str]:
    """Every internal ref among the string values, at any depth."""
    if isinstance(value, str):
        if value.startswith(INTERNAL):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from find(item)
    elif isinstance(value, list):
        for item in value:
            yield from find(item)


def operation_name(op_name: str) -> str:
    """The name that people read: the object name of an op ref, else the text itself."""
    if not op_name.startswith((INTERNAL, EXTERNAL)):
        return op_name
    for kind in ("/op/", "/object/"):
        _, found, tail = op_name.partition(kind)
        if found:
            return unquote(tail.split("/")[0].partition(":")[0])
    return op_name

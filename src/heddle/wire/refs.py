"""Refs: `weave:///entity/project/...` outside, `weave-trace-internal:///id/...` inside.

The internal project id is base64 of `entity/project`, so both directions are pure functions and no table is looked up.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import orjson

from heddle.errors import InvalidRequest
from heddle.text_cache import cache_texts
from heddle.wire import jsontext
from heddle.wire.jsontypes import is_index

EXTERNAL = "weave:///"
INTERNAL = "weave-trace-internal:///"
PRIVATE = "weave-private://///"
ARTIFACT = "wandb-artifact:///"
"""Before the names of adapters and of trainable models: entity/project/name."""
ROWS = "/attr/rows/id/"

INTERNAL_IN_JSON = b'"weave-trace-internal:///'
_PROJECT_IN_JSON = re.compile(rb'[^/"\\]*(?=[/"])')
_BEGINNING = b'"weave'
_REF_IN_JSON = re.compile(rb'(?:-trace-internal)?:(?:\\?/){3}[^"\\]*+(?:\\.[^"\\]*+)*+"(?!\s*:)', re.DOTALL)
"""The rest of a string value that is a ref."""
_ESCAPE = re.compile(rb"\\(?:u00([2-7][0-9a-fA-F])|.)", re.DOTALL)
_UNSAFE_PROJECT = re.compile(r"[\x00-\x1f\x7f:]")
DOTS = (".", "..")
"""Names that no address can hold: clients resolve them, also percent-encoded, before they send a request."""
MAX_PROJECT_LENGTH = 512
MAX_ID_BYTES, MAX_REF_BYTES = 512, 2000
"""Ids and names that clients choose, and refs in internal form: keys of indexes, whose rows PostgreSQL limits to 2704
bytes: a project (683 of ASCII at most) and a ref, or a project and three names."""

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Ref:
    """An internal ref taken apart; `kind` is object, op, call, table, agent_turn, agent_conversation or agent_span."""

    project: str
    kind: str
    name: str
    version: str = ""
    edges: tuple[Edge, ...] = ()


def is_longer(text: str, most: int) -> bool:
    """True for a text of more bytes (UTF-8)."""
    # A character takes 1 to 4 bytes, so that hardly any text has to be encoded.
    return 4 * len(text) > most and (len(text) > most or len(text.encode("utf-8", "surrogatepass")) > most)


def check_id(name: str, text: str | None, most: int = MAX_ID_BYTES) -> None:
    """Raise InvalidRequest for an id or a name that is too long to be looked up by; `name` is that of its field."""
    if text is not None and is_longer(text, most):
        raise InvalidRequest(f"{name} is longer than {most} bytes: {text[:100]!r}...", param=name)


@cache_texts()
def internal_project(project_id: str) -> str:
    """The internal id of `entity/project`; raises InvalidRequest when the text is not of that form."""
    entity, slash, project = project_id.partition("/")
    if not (slash and entity and project) or "/" in project or _UNSAFE_PROJECT.search(project_id):
        raise InvalidRequest(f"Invalid project_id: expected 'entity/project', got {project_id[:200]!r}")
    if entity in DOTS or project in DOTS:
        raise InvalidRequest(f"Invalid project_id: neither part can be '.' or '..', got {project_id[:200]!r}")
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


def project_in(headers: Mapping[str, str], name: str) -> str:
    """The `entity/project` in a header, which clients send in UTF-8 or in Latin-1; empty without one."""
    text = headers.get(name, "").strip()
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


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


def convert_in(text: bytes, may_read: Callable[[str], bool]) -> bytes:
    """Rewrite every external ref among the string values of JSON text; keys are not touched.

    `may_read(entity/project)` decides whether a ref that is internal already is accepted. Raises InvalidRequest for a
    malformed ref.
    """
    if b"\\" in text and b"\\u00" in text:
        text = _ESCAPE.sub(_unescape, text)
    first, *rest = text.split(_BEGINNING)
    parts = [first]
    for tail in rest:
        # Behind a backslash the quote belongs to the text of a string.
        found = None if parts[-1].endswith(b"\\") else _REF_IN_JSON.match(tail)
        if found is None:
            parts += (_BEGINNING, tail)
        else:
            parts += (_convert_string(_BEGINNING + found[0], may_read), tail[found.end() :])
    return b"".join(parts) if rest else text


def _unescape(escape: re.Match[bytes]) -> bytes:
    """A letter that needs no escape without one."""
    plain = bytes.fromhex(escape[1].decode()) if escape[1] else b"\\"
    return escape[0] if plain in b'"\\' else plain


def _convert_string(string: bytes, may_read: Callable[[str], bool]) -> bytes:
    """A JSON string that holds a ref, in internal form."""
    if string.startswith(b'"weave:'):
        return _internal_string(string)
    return jsontext.dumps_bytes(convert_ref(jsontext.loads(string), may_read))


@cache_texts()
def _internal_string(string: bytes) -> bytes:
    return jsontext.dumps_bytes(to_internal(jsontext.loads(string)))


def convert_ref(text: str, may_read: Callable[[str], bool]) -> str:
    """A text in internal form where it is a ref; raises InvalidRequest as `convert_in` does."""
    if text.startswith(EXTERNAL):
        return to_internal(text)
    if text.startswith(INTERNAL):
        project = external_project(text[len(INTERNAL) :].partition("/")[0])
        if project is None or not may_read(project):
            raise InvalidRequest("Encountered unexpected internal ref format.")
    return text


def convert_out(text: bytes) -> bytes:
    """Rewrite every internal ref among the string values of JSON text."""
    first, *rest = text.split(INTERNAL_IN_JSON)
    parts = [first]
    for tail in rest:
        # Behind a backslash the quote belongs to the text of a string.
        found = None if parts[-1].endswith(b"\\") else _PROJECT_IN_JSON.match(tail)
        if found is None:
            parts.append(INTERNAL_IN_JSON + tail)
        else:
            parts += (_external_prefix(found[0]), tail[found.end() :])
    return b"".join(parts) if rest else text


@cache_texts()
def _external_prefix(internal: bytes) -> bytes:
    external = external_project(internal.decode("utf-8", "replace"))
    if external is None:
        return b'"weave-private:////'
    return b'"weave:///' + external.replace("\\", "\\\\").replace('"', '\\"').encode()


def try_parse(ref: str) -> Ref | None:
    """An internal ref taken apart; None when it is not one."""
    try:
        return parse(ref)
    except InvalidRequest:
        return None


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


def follow_in_text(text: str, edges: Sequence[Edge]) -> str | None:
    """The JSON of what lies at a path inside JSON; None for nothing."""
    value = orjson.loads(text)
    for edge, part in edges:
        value = follow_edge(value, edge, part)
    return None if value is None else orjson.dumps(value).decode()


def find(value: Any) -> Iterator[str]:
    """Every internal ref among the string values, at any depth; a text of more than `MAX_REF_BYTES` is none."""
    if isinstance(value, str):
        if value.startswith(INTERNAL) and not is_longer(value, MAX_REF_BYTES):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from find(item)
    elif isinstance(value, list):
        for item in value:
            yield from find(item)


def replace(value: Any, found: Mapping[str, Any]) -> Any:
    """A copy of the value in which the refs that were found are what they point to; null counts as not found."""
    if isinstance(value, str):
        return value if (there := found.get(value)) is None else there
    if isinstance(value, dict):
        return {name: replace(item, found) for name, item in value.items()}
    return [replace(item, found) for item in value] if isinstance(value, list) else value


def operation_name(op_name: str) -> str:
    """The name that people read: the object name of an op ref, else the text itself."""
    if not op_name.startswith((INTERNAL, EXTERNAL)):
        return op_name
    for kind in ("/op/", "/object/"):
        _, found, tail = op_name.partition(kind)
        if found:
            return unquote(tail.split("/")[0].partition(":")[0])
    return op_name


def label(ref: str) -> str:
    """What people call the target of a ref: the name of the object, with the last part of the path inside it."""
    try:
        target = parse(ref)
    except InvalidRequest:
        return ref
    name = target.name if target.kind in ("object", "op") else f"{target.kind} {target.name[:8]}"
    return f"{name}…{target.edges[-1][1][:40]}" if target.edges else name


def follow_edge(value: Any, edge: str, part: str) -> Any:
    """What lies behind one edge (attr, key or index); None where the path leads nowhere."""
    if edge == "index":
        is_inside = isinstance(value, list) and is_index(part)
        return value[int(part)] if is_inside and int(part) < len(value) else None
    return value.get(part) if edge in ("attr", "key") and isinstance(value, dict) else None


_canonical = json.JSONEncoder()
_LOOKS_LIKE_DIGEST = re.compile(r"[0-9A-Za-z]{43}|[0-9a-f]{64}", re.ASCII)
_VERSION = re.compile(r"v(\d{1,18})", re.ASCII)


def bytes_digest(data: bytes) -> str:
    """The 43-character digest of raw bytes."""
    return encode_sha256(hashlib.sha256(data).digest())


def encode_sha256(raw: bytes) -> str:
    """URL-safe base64 of a SHA-256 with `-` and `_` replaced by letters and the padding dropped."""
    return base64.urlsafe_b64encode(raw).decode().replace("-", "X").replace("_", "Y").rstrip("=")


def canonical_json(value: Any) -> str:
    """The text that digests are computed over: sorted keys, default separators, ASCII escapes."""
    return json.dumps(value, sort_keys=True)


def large_canonical_json(value: Any) -> str:
    """The same, made in pieces where it is large: for a thread that others shall not have to wait for."""
    if jsontext.is_small(value):
        return canonical_json(value)
    return jsontext.dumps_in_pieces(_sorted(value), _canonical.encode)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def value_digest(value: Any, is_large: bool = False) -> str:
    """The digest of an object value or of a table row, refs in internal form."""
    return bytes_digest((large_canonical_json if is_large else canonical_json)(value).encode())


def table_digest(row_digests: Iterable[str]) -> str:
    """The hexadecimal digest of a table: SHA-256 over its row digests in order."""
    state = hashlib.sha256()
    for digest in row_digests:
        state.update(digest.encode())
    return state.hexdigest()


def looks_like_digest(text: str) -> bool:
    """True when a version text can only be a digest, so that no alias is looked up."""
    return _LOOKS_LIKE_DIGEST.fullmatch(text) is not None


def version_number(text: str) -> int | None:
    """N of the version text `vN`, else None."""
    match = _VERSION.fullmatch(text)
    return int(match[1]) if match else None

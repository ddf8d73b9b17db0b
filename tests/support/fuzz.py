"""Requests made from one seed: valid ones for every route, and what chance makes of them, down to the bytes sent.

Request number N of a seed is always the same, whatever came before: `Fuzz(seed).request(N)`.
"""

import copy
import gzip
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import zstandard

from heddle.trace.otel import conventions
from tests.support import otlp
from tests.support.tenant_requests import request_for
from tests.support.tenants import Asked, Tenant, asked_routes

# Changes of one body may put 300 levels into 300 others.
sys.setrecursionlimit(10_000)

CRLF = b"\r\n"
STREAMS = ("/live", "/stream")
LEFT_OUT = ("/project/purge", "/compact", "/purge")
"""What would remove what the others are to find, or takes long."""
FIELDS = (
    *("id", "inputs.x", "attributes.k", "output.said", "summary.usage.*.prompt_tokens", "started_at", "op_name"),
    *(
        "feedback.[*].payload.note",
        "inputs.messages.0.content",
        "summary.weave.status",
        "x" * 300,
        "inputs." + "a." * 90,
    ),
)
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\ud800",
        "é\u202e",
        "weave:///a/b/call/c",
        "weave-private:///x/object/y:z",
        "'; DROP TABLE calls; --",
    ),
    *(
        "../../etc/passwd",
        "%00",
        "a/b",
        "*",
        "$ref",
        "NaN",
        "2026-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "-1",
    ),
    *("x" * 5_000, "{{7*7}}", "http://127.0.0.1:1/", "\N{MOUSE}" * 40),
)
ATTRIBUTES = sorted(
    {
        name
        for module in Path(conventions.__file__).parent.glob("*.py")
        for name in re.findall(r'"([a-z_]+(?:\.[a-z_]+)+)"', module.read_text())
    }
)
"""Every attribute that a convention reads."""
LISTS = (
    "llm.input_messages.{}.message.",
    "llm.output_messages.{}.message.",
    "gen_ai.prompt.{}.",
    "gen_ai.completion.{}.",
)
MESSAGES = (
    "role",
    "content",
    "tool_calls.0.function.name",
    "tool_calls.0.tool_call.function.arguments",
    "contents.0.type",
)
KINDS = (
    "chat",
    "execute_tool",
    "invoke_agent",
    "embeddings",
    "LLM",
    "TOOL",
    "AGENT",
    "RETRIEVER",
    "CHAIN",
    "generation",
)
NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 0.1, -0.0, 1e308, float("nan"), float("inf"))


@dataclass(frozen=True)
class Sent:
    """One request as bytes, and what it is."""

    what: str
    content: bytes
    is_whole: bool = True
    """Whether it has an end that the server can see."""


class Fuzz:
    """Makes the requests of one seed about a tenant; ids that it does not have are made up."""

    def __init__(self, seed: int, tenant: Tenant) -> None:
        self._seed = seed
        ids: defaultdict[str, str] = defaultdict(lambda: "unknown")
        self._tenant = Tenant(tenant.project_id, tenant.secret, ids | tenant.ids)
        self._tenant.ids = defaultdict(lambda: "unknown", tenant.ids)

    @cached_property
    def _routes(self) -> list[Asked]:
        return [each for each in asked_routes() if not each.template.endswith((*STREAMS, *LEFT_OUT))]

    def request(self, number: int) -> Sent:
        """The request of a number."""
        chance = random.Random(f"{self._seed} {number}")
        makers: list[Callable[[random.Random], Sent]] = [self._route] * 7 + [self._query] * 3 + [self._spans] * 2
        return chance.choice([*makers, self._noise])(chance)

    def _route(self, chance: random.Random) -> Sent:
        """Any route, with a body that is valid or changed in some places."""
        asked = chance.choice(self._routes)
        asking = request_for(asked, self._tenant)
        params, headers = dict(asking.params), dict(asking.headers)
        if chance.random() < 0.2:
            params[chance.choice([*params, "limit", "after", "project_id", "x"])] = str(_scalar(chance))
        if asking.files is not None:
            body, kind = _multipart(chance, asking.body, asking.files)
        elif isinstance(asking.body, bytes):
            body, kind = asking.body, "application/octet-stream"
        elif asking.body is None:
            body, kind = b"", "application/json"
        else:
            body, kind = _json(_changed(chance, asking.body, chance.choice((0, 1, 1, 2, 5)))), "application/json"
        path = asking.path
        if chance.random() < 0.1:
            parts = path.split("/")
            parts[chance.randrange(len(parts))] = quote(str(_scalar(chance)).encode("utf-8", "replace"), safe="")
            path = "/".join(parts)
        return _sent(chance, asked.method, path, params, headers | {"content-type": kind}, body)

    def _query(self, chance: random.Random) -> Sent:
        """A search for calls in the query language."""
        body: dict[str, Any] = {"project_id": self._tenant.project_id, "limit": chance.choice((1, 10, 100))}
        body["query"] = {"$expr": _operation(chance, chance.randrange(1, 6))}
        if chance.random() < 0.3:
            body["sort_by"] = [{"field": chance.choice(FIELDS), "direction": chance.choice(("asc", "desc"))}]
        if chance.random() < 0.3:
            body["columns"] = chance.sample(FIELDS, 2)
        path = chance.choice(("/calls/stream_query", "/calls/query_stats", "/trace/usage", "/calls/query"))
        headers = {"content-type": "application/json"}
        return _sent(chance, "POST", path, {}, headers, _json(_changed(chance, body, chance.choice((0, 0, 1)))))

    def _spans(self, chance: random.Random) -> Sent:
        """Spans of OpenTelemetry in either encoding, whole or with changed bytes."""
        spans = [
            otlp.span(chance.getrandbits(40), chance.getrandbits(40), attributes=_attributes(chance), **_events(chance))
            for _ in range(chance.randrange(1, 4))
        ]
        message = otlp.request(*spans, resource=_attributes(chance), scope=str(chance.choice(ATTRIBUTES)))
        is_json = chance.random() < 0.5
        content = otlp.as_json(message) if is_json else message.SerializeToString()
        if chance.random() < 0.6:
            content = _damaged(chance, content)
        headers = {"content-type": "application/json" if is_json else "application/x-protobuf"}
        path = chance.choice(("/otel/v1/traces", "/agents/otel/v1/traces", "/v1/logs", "/v1/metrics"))
        return _sent(chance, "POST", path, {}, headers | {"project_id": self._tenant.project_id}, content)

    def _noise(self, chance: random.Random) -> Sent:
        """A request whose bytes themselves are wrong."""
        whole = self._route(chance).content
        cut = {
            "noise": chance.randbytes(chance.randrange(1, 400)),
            "a changed request": _damaged(chance, whole),
            "a wrong length": whole.replace(b"content-length: ", b"content-length: 9", 1),
            "two lengths": whole.replace(CRLF, CRLF + b"content-length: 3" + CRLF, 1),
            "chunks that are none": whole.replace(
                b"content-length: ", b"transfer-encoding: chunked" + CRLF + b"x: ", 1
            ),
            "a long line": b"GET /" + b"a" * 70_000 + b" HTTP/1.1" + CRLF * 2,
            "half": whole[: chance.randrange(1, len(whole))],
        }
        what = chance.choice(list(cut))
        return Sent(what, cut[what], is_whole=False)


def _attributes(chance: random.Random) -> dict[str, Any]:
    """Attributes that conventions read, with values of the right and of any other kind, and some that none reads."""
    found: dict[str, Any] = {_text(chance)[:60]: "v"}
    for _ in range(chance.choice((0, 2, 5, 30))):
        name = chance.choice(ATTRIBUTES)
        if chance.random() < 0.2:
            name = chance.choice(LISTS).format(chance.choice((0, 1, 7, 10**9, "x"))) + chance.choice(MESSAGES)
        found[name] = _attribute(chance)
    return found


def _attribute(chance: random.Random) -> Any:
    kind = chance.randrange(8)
    if kind == 0:
        return chance.choice(KINDS)
    if kind == 1:
        return _text(chance)
    if kind == 2:
        return chance.choice([each for each in NUMBERS if isinstance(each, float) or -(2**63) <= each < 2**63])
    if kind == 3:
        return [_text(chance), chance.choice((True, None, 3, 0.5, b"\xff"))]
    if kind == 4:
        return {"role": _text(chance), "content": [{"type": chance.choice(KINDS), "text": _text(chance)}]}
    if kind == 5:
        return json.dumps(_value(chance))[:20_000]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "parts": [{"type": "text", "content": "yo"}]}]
    return json.dumps(_changed(chance, messages, chance.choice((0, 1, 3))))[:20_000]


def _events(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.7:
        return {}
    names = ("exception", "gen_ai.choice", "gen_ai.user.message", "gen_ai.client.inference.operation.details")
    return {
        "events": [
            {"name": chance.choice(names), "attributes": otlp.key_values(_attributes(chance))}
            for _ in range(chance.randrange(1, 3))
        ]
    }


def _text(chance: random.Random) -> str:
    return str(_scalar(chance)).encode("utf-8", "replace").decode()


def _scalar(chance: random.Random) -> Any:
    return chance.choice((chance.choice(TEXTS), chance.choice(NUMBERS), None, True, False))


def _value(chance: random.Random) -> Any:
    """A JSON value of any kind, sometimes deep or long."""
    kind = chance.randrange(10)
    if kind < 6:
        return _scalar(chance)
    if kind == 6:
        return [_scalar(chance) for _ in range(chance.choice((0, 1, 3, 500)))]
    if kind == 7:
        return {str(_scalar(chance))[:80]: _scalar(chance) for _ in range(chance.randrange(4))}
    value: Any = _scalar(chance)
    for _ in range(chance.choice((3, 30, 300))):
        value = [value] if kind == 8 else {"a": value}
    return value


def _changed(chance: random.Random, body: Any, times: int) -> Any:
    """A copy with so many changes: a value replaced, a key removed, renamed or added."""
    body = copy.deepcopy(body)
    for _ in range(times):
        places = _places(body)
        if not places:
            return _value(chance)
        holder, key = chance.choice(places)
        how = chance.randrange(6)
        if how == 0 and isinstance(holder, dict):
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[str(_scalar(chance))[:80]] = holder.pop(key)
        elif how == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = _value(chance)
    return body


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 500:
        holder = waiting.pop()
        if not isinstance(holder, dict | list):
            continue
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]
    return found


def _operation(chance: random.Random, depth: int) -> Any:
    """An expression of the query language."""
    if depth <= 0 or chance.random() < 0.3:
        operand = {"$literal": _scalar(chance)}
        field: Any = {"$getField": chance.choice(FIELDS)}
        if chance.random() < 0.2:
            field = {"$convert": {"input": field, "to": chance.choice(("int", "double", "string", "bool", "exists"))}}
        name = chance.choice(("$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$contains"))
        if name == "$in":
            return {"$in": [field, [{"$literal": _scalar(chance)} for _ in range(chance.randrange(4))]]}
        if name == "$contains":
            return {"$contains": {"input": field, "substr": operand, "case_insensitive": chance.random() < 0.5}}
        return {name: [field, operand]}
    inner = [_operation(chance, depth - 1) for _ in range(chance.randrange(1, 4))]
    name = chance.choice(("$and", "$or", "$not"))
    return {name: inner[:1] if name == "$not" else inner}


def _json(value: Any) -> bytes:
    """JSON as lax clients write it: NaN and lone surrogates pass."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _multipart(chance: random.Random, fields: dict[str, str], files: dict[str, tuple[str, bytes]]) -> tuple[bytes, str]:
    part = "--b\r\ncontent-disposition: form-data; name="
    lines = [f'{part}"{key}"\r\n\r\n{text}\r\n'.encode() for key, text in fields.items()]
    for key, (name, content) in files.items():
        lines.append(f'{part}"{key}"; filename="{name}"\r\n\r\n'.encode() + content + CRLF)
    chance.shuffle(lines)
    body = b"".join(lines) + b"--b--\r\n"
    return (_damaged(chance, body) if chance.random() < 0.5 else body), "multipart/form-data; boundary=b"


def _damaged(chance: random.Random, content: bytes) -> bytes:
    """Some bytes changed, removed or repeated."""
    found = bytearray(content)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(found) + 1)
        how = chance.randrange(4)
        if how == 0:
            found[at : at + 1] = chance.randbytes(1)
        elif how == 1:
            del found[at : at + chance.randrange(1, 20)]
        elif how == 2:
            found[at:at] = found[at : at + 20]
        else:
            found[at:at] = chance.randbytes(chance.randrange(1, 9))
    return bytes(found)


def _sent(
    chance: random.Random, method: str, path: str, params: dict[str, Any], headers: dict[str, str], body: bytes
) -> Sent:
    """The bytes of a request, its body compressed now and then, sometimes badly."""
    if chance.random() < 0.15 and body:
        name = chance.choice(("gzip", "zstd"))
        body = gzip.compress(body, 1, mtime=0) if name == "gzip" else zstandard.ZstdCompressor(1).compress(body)
        body = _damaged(chance, body) if chance.random() < 0.4 else body
        headers = headers | {"content-encoding": chance.choice((name, name, name, "deflate", "br"))}
    headers = {"authorization": "Bearer k"} | headers
    query = "?" + urlencode(params, encoding="utf-8", errors="replace") if params else ""
    lines = [f"{method} {path}{query} HTTP/1.1", "host: localhost", "connection: close", f"content-length: {len(body)}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")
    return Sent(f"{method} {path}", head + body)

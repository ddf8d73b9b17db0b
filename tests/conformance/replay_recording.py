"""The recorded traffic of `../shared/corpus/recorded-requests.jsonl`: loading, repairing, dating, digests.

The file is a part of what was recorded: answers show calls, objects and feedback whose creation is missing. `missing`
restores them from those answers, so that the rest can be replayed against an empty server.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "recorded-requests.jsonl"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
DIGEST = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Za-z]{43}|[0-9a-f]{64})(?![0-9A-Za-z])")
SERVER_MADE = {"created_at", "deleted_at", "expire_at", "storage_size_bytes", "total_storage_size_bytes", "wb_user_id"}
ROWS_OF_THE_BIG_TABLE = [{"i": index, "t": "x" * 50} for index in range(2500)]


@dataclass
class Exchange:
    """One recorded request and the reference's answer; `lines` is set for line streams, `cut` when they were cut."""

    index: int
    sdk: str
    scenario: str
    method: str
    path: str
    headers: dict[str, str]
    query: list[tuple[str, str]]
    body: Any
    parts: list[dict[str, Any]] | None
    status: int
    media_type: str | None
    answer: Any = None
    lines: list[Any] | None = None
    cut: bool = False
    seen_at: datetime | None = None
    spans: dict[str, Any] | None = None
    """An ExportTraceServiceRequest in protobuf's own JSON, which was sent as protobuf."""

    @property
    def key(self) -> str:
        """Method and path with the variable segments taken out, as the tables of `replay_tables` name them."""
        path = re.sub(r"^/v2/[^/]+/[^/]+/", "/v2/*/", self.path)
        path = re.sub(r"^/objs/[^/]+/", "/objs/*/", path)
        return f"{self.method} {re.sub(r'/versions/[^/]+', '/versions/*', path)}"

    @property
    def has_source_alone(self) -> bool:
        """True for an op that is made with its source: its digest is the same on every server."""
        return self.path.endswith("/ops") and bool(self.body and self.body.get("source_code"))


@dataclass
class Missing:
    """Something that an answer shows and no recorded request made: `request` restores it before `before`."""

    before: int
    method: str
    path: str
    body: Any
    digest: str | None = None
    known_at: datetime | None = field(default=None)


def load(sdk: str) -> list[Exchange]:
    """The exchanges of one SDK in file order, repaired and dated."""
    exchanges = []
    with RECORDING.open(encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            record = json.loads(line)
            if record["sdk"] == sdk:
                exchanges.append(_exchange(index, record))
    _date(exchanges)
    return exchanges


def _exchange(index: int, record: dict[str, Any]) -> Exchange:
    exchange = Exchange(
        index=index,
        sdk=record["sdk"],
        scenario=record["scenario"],
        method=record["method"],
        path=record["path"],
        headers=record["headers"],
        query=[(name, value) for name, value in record.get("query") or []],
        body=record.get("json"),
        parts=record.get("multipart"),
        status=record["reference_status"],
        media_type=record.get("reference_media_type"),
        answer=record.get("reference_response", record.get("reference_response_text")),
        spans=record.get("otlp_protobuf_as_json"),
    )
    if exchange.media_type in ("application/jsonl", "application/x-ndjson") and exchange.answer is not None:
        exchange.lines, exchange.cut = _lines(exchange.answer)
    if record.get("truncated"):
        _repair(exchange)
    return exchange


def _lines(answer: Any) -> tuple[list[Any], bool]:
    """The whole lines of a recorded stream, and whether its text was cut within a line."""
    if not isinstance(answer, str):
        return [answer], False
    parsed: list[Any] = []
    for line in answer.splitlines():
        try:
            parsed.append(json.loads(line))
        except ValueError:
            return parsed, True
    return parsed, False


def _repair(exchange: Exchange) -> None:
    """The recording kept 5 of 2,500 rows; they continue as the five show, which the recorded table digest proves."""
    if exchange.path == "/table/create":
        assert exchange.body["table"]["rows"] == ROWS_OF_THE_BIG_TABLE[:5]
        exchange.body["table"]["rows"] = ROWS_OF_THE_BIG_TABLE
        exchange.answer = None
    else:
        digests = [row_digest(row) for row in ROWS_OF_THE_BIG_TABLE]
        assert exchange.body["row_digests"] == digests[:5]
        exchange.body["row_digests"] = digests
        assert table_digest(digests) == exchange.answer["digest"]


def _date(exchanges: list[Exchange]) -> None:
    """Give every exchange the latest time seen so far in the retry ids (UUIDv7) of the recorded headers."""
    now: datetime | None = None
    for exchange in exchanges:
        retry = exchange.headers.get("x-weave-retry-id")
        if retry:
            then = datetime.fromtimestamp(int(retry[:8] + retry[9:13], 16) / 1000, UTC)
            now = max(now, then) if now else then
        exchange.seen_at = now


# --- digests, as contract/trace-core.md section 4 states them ---------------------------------------------------------


def recorded_internal(project: str) -> str:
    """The internal id that the reference gave `entity/project`."""
    return base64.b64encode(project.encode()).decode()


def internal_form(value: Any, internal: Callable[[str], str]) -> Any:
    """The value with its external refs rewritten."""
    if isinstance(value, dict):
        return {key: internal_form(item, internal) for key, item in value.items()}
    if isinstance(value, list):
        return [internal_form(item, internal) for item in value]
    if isinstance(value, str) and value.startswith("weave:///"):
        entity, project, tail = value[len("weave:///") :].split("/", 2)
        return f"weave-trace-internal:///{internal(f'{entity}/{project}')}/{tail}"
    return value


def row_digest(row: Any) -> str:
    """Digest of an object value or table row that is already in internal form."""
    raw = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(raw).decode().replace("-", "X").replace("_", "Y").rstrip("=")


def table_digest(row_digests: list[str]) -> str:
    """Digest of a table with these rows."""
    return hashlib.sha256("".join(row_digests).encode()).hexdigest()


def digests_of(body: Any, path: str, internal: Callable[[str], str]) -> list[str]:
    """The digests that a create request must be answered with: of the object, or of the table and its rows."""
    if path == "/obj/create":
        return [row_digest(internal_form(body["obj"]["val"], internal))]
    if path == "/table/create":
        rows = [row_digest(internal_form(row, internal)) for row in body["table"]["rows"]]
        return [table_digest(rows), *rows]
    return [table_digest(body["row_digests"])]


def recorded_digests(exchange: Exchange) -> list[str]:
    """The digests of a create answer, in the order of `digests_of`."""
    return [exchange.answer["digest"], *exchange.answer.get("row_digests", [])]


def makes_digests(exchange: Exchange) -> bool:
    """True for the creates whose digest depends on refs in the value."""
    return (
        exchange.path in ("/obj/create", "/table/create", "/table/create_from_digests") and exchange.answer is not None
    )


# --- what the recording lacks -----------------------------------------------------------------------------------------


def missing(exchanges: list[Exchange], is_pending: Callable[[Exchange], bool]) -> list[Missing]:
    """Requests that restore what answers show and no replayed request makes, each with its place in the order."""
    replayed = [exchange for exchange in exchanges if not is_pending(exchange)]
    sent = {identity for exchange in replayed for identity in _made_ids(exchange)}
    made = {(e.body["obj"]["object_id"], e.answer["digest"]) for e in replayed if e.path == "/obj/create"}
    found: list[Missing] = []
    for exchange in replayed:
        for item in _shown(exchange):
            identity = item.digest or item.body.get("id") or item.body["batch"][0]["id"]
            known = (item.body["obj"]["object_id"], identity) in made if item.digest else identity in sent
            if known:
                continue
            if item.digest:
                made.add((item.body["obj"]["object_id"], identity))
            sent.add(identity)
            item.before = _place(item, exchange, exchanges)
            found.append(item)
    return found


def _made_ids(exchange: Exchange) -> Iterator[str]:
    """The ids of the calls and feedback that a request makes."""
    body = exchange.body
    if exchange.path.endswith(("/calls/complete", "/feedback/batch/create")):
        yield from (item["id"] for item in body["batch"])
    elif exchange.path.endswith("/call/start"):
        yield body["start"]["id"]
    elif exchange.path == "/call/upsert_batch":
        yield from (item["req"]["start"]["id"] for item in body["batch"] if item["mode"] == "start")


def _place(item: Missing, shown_by: Exchange, exchanges: list[Exchange]) -> int:
    """The index of the first exchange that happened after the item was made, at the latest the one that shows it."""
    for exchange in exchanges:
        if exchange is shown_by:
            break
        if item.known_at and exchange.seen_at and exchange.seen_at > item.known_at:
            return exchange.index
    return shown_by.index


def _shown(exchange: Exchange) -> Iterator[Missing]:
    if exchange.path == "/calls/stream_query":
        for call in exchange.lines or []:
            yield _call(call)
    elif exchange.path == "/feedback/query":
        for row in exchange.answer["result"]:
            yield _feedback(row)
    elif exchange.path == "/obj/read" and exchange.status == 200:
        yield _object(exchange.answer["obj"])
    elif exchange.path == "/objs/query":
        for item in exchange.answer["objs"]:
            yield _object(item)


def _call(call: dict[str, Any]) -> Missing:
    item = {name: value for name, value in call.items() if name not in SERVER_MADE}
    item["summary"] = {key: value for key, value in (call["summary"] or {}).items() if key != "weave"}
    path = f"/v2/{call['project_id']}/calls/complete"
    return Missing(0, "POST", path, {"batch": [item]}, known_at=_time(call["ended_at"]))


def _feedback(row: dict[str, Any]) -> Missing:
    body = {name: value for name, value in row.items() if name not in SERVER_MADE}
    return Missing(0, "POST", "/feedback/create", body, known_at=_time(row["created_at"]))


def _object(item: dict[str, Any]) -> Missing:
    body = {"obj": {"project_id": item["project_id"], "object_id": item["object_id"], "val": item["val"]}}
    return Missing(0, "POST", "/obj/create", body, item["digest"], _time(item["created_at"]))


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

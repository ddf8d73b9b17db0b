"""A W&B Weave project, read page by page over its public API into an archive.

Refs become internal ones; ids, digests, users and times stay what they are.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import heddle
from heddle.errors import HeddleError
from heddle.remote import Refused, Remote
from heddle.store.control.feedback import SPANS, STRUCTURES
from heddle.store.control.object_labels import LATEST
from heddle.store.control.table_rows import CHUNK_ROWS
from heddle.trace.calls.packing import client_summary, run_id
from heddle.transfer import records
from heddle.transfer.archive import (
    CALLS,
    RECORDS,
    TABLE_CHUNKS,
    TABLE_ROWS,
    ArchiveWriter,
    Header,
    RecordWriter,
    Row,
    require_parquet,
)
from heddle.transfer.rows import Misfit, identify, members, take, texts
from heddle.transfer.target import Report, retry
from heddle.transfer.validation import problem_of
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import COLUMNS, STATUS_WORDS
from heddle.wire.jsontypes import Json

_PAGE = 1000
_NOT_READ = "annotation queues, saved alerts and what is kept outside the trace API (runs, artifacts) are not read"
_REFS = ("annotation_ref", "runnable_ref", "call_ref", "trigger_ref", "queue_id")
_COSTS = (
    *("prompt_token_cost", "completion_token_cost", "cache_read_input_token_cost"),
    "cache_creation_input_token_cost",
)
_UNITS = ("prompt_token_cost_unit", "completion_token_cost_unit")
_PRICE_FIELDS = ("id", "llm_id", "provider_id", "effective_date", *_COSTS, *_UNITS, "created_by", "created_at")
"""What is asked of /cost/query."""


def fetch(server: str, key: str | None, project_id: str, target: Path) -> Report:
    """Write everything of a project that the API shows into a new archive; raises HeddleError, and then there is none.

    The report says what was named and could not be read.
    """
    require_parquet()
    project = refs.internal_project(project_id)
    remote = Remote(server, key, from_environment=False, basic_user="api")
    with ArchiveWriter(target, Header(heddle.__version__, times.to_iso(times.now()), [project_id])) as archive:
        source = WeaveSource(remote, project_id, project, archive)
        source.read()
        return source.report


class WeaveSource:
    """One reading of one project."""

    def __init__(self, remote: Remote, project_id: str, project: str, archive: ArchiveWriter) -> None:
        self.report = Report()
        self._remote = remote
        self._named = {"project_id": project_id}
        self._project = project
        self._archive = archive
        self._tables: dict[str, None] = {}
        self._files: dict[str, str] = {}

    def read(self) -> None:
        """Read every group: what names tables and files comes before them."""
        RecordWriter(self._archive, CALLS, records.INTEGERS).write(self._calls())
        self._objects()
        first = [{"field": "created_at", "direction": "asc"}]
        feedback = self._pages("/feedback/query", "result", sort_by=first)
        self._write("feedback", self._read(f"{RECORDS}/feedback", feedback, _feedback))
        prices = self._pages("/cost/query", "results", fields=[*_PRICE_FIELDS])
        self._write("costs", self._read(f"{RECORDS}/costs", prices, _price))
        self._read_tables()
        self._write("files", self._read_files())
        self.report.notes.append(_NOT_READ)

    def _calls(self) -> Iterator[Row]:
        order = [{"field": "started_at", "direction": "asc"}, {"field": "id", "direction": "asc"}]
        found = self._pages("/calls/stream_query", None, sort_by=order)
        return self._read(CALLS, found, _call, "inputs", "output")

    def _objects(self) -> None:
        labels: list[tuple[str, Row]] = []

        def version(row: Any) -> Row:
            record = self._fit(f"{RECORDS}/object_versions", row, _version, "val")
            labels.extend(list(_labels(self._project, row)))
            return record

        order = [{"field": "created_at", "direction": "asc"}]
        found = self._pages("/objs/query", "objs", include_tags_and_aliases=True, sort_by=order)
        self._write("object_versions", self.report.read("object versions", found, version))
        for name in ("object_tags", "object_aliases"):
            self._write(name, (row for table, row in labels if table == name))

    def _read(
        self, group: str, rows: Iterable[tuple[str, Any]], convert: Callable[[str, Any], Row], *naming: str
    ) -> Iterator[Row]:
        """The records of those rows that fit."""
        name = group.rpartition("/")[2].replace("_", " ")
        return self.report.read(name, rows, lambda row: self._fit(group, row, convert, *naming))

    def _fit(self, group: str, row: Any, convert: Callable[[str, Any], Row], *naming: str) -> Row:
        """A row as a record that the archive may hold; its fields `naming` name tables and files. Raises Misfit."""
        try:
            record = convert(self._project, row)
        except Misfit:
            raise
        except HeddleError as error:
            raise Misfit(f"that cannot be stored: {error.reason.partition(':')[0]}") from None
        if (problem := problem_of(group, record)) is not None:
            raise Misfit(f"whose {problem[0]} {problem[1]}")
        for field in naming:
            self._note(row.get(field))
        return record

    def _pages(self, path: str, key: str | None, **body: Any) -> Iterator[tuple[str, Any]]:
        """Everything that a query answers, page by page, with its place: a list under a key, or a stream of lines.

        Raises HeddleError for a page that begins as an earlier one did: the server does not heed `offset`.
        """

        def ask(offset: int) -> list[Any]:
            asked = {**self._named, **body, "limit": _PAGE, "offset": offset}
            if key is None:
                return list(self._remote.lines(path, asked))
            return take(self._remote.post(path, asked), key, list)

        beginnings: set[bytes] = set()
        offset = 0
        while True:
            found = retry(ask, offset)
            if found:
                beginning = hashlib.sha256(jsontext.dumps_bytes(found[0])).digest()
                if beginning in beginnings:
                    raise HeddleError(f"the pages of {path} repeat: the page from {offset} was already returned")
                beginnings.add(beginning)
            yield from ((f"number {number} of {path}", row) for number, row in enumerate(found, offset + 1))
            offset += len(found)
            if len(found) < _PAGE:
                return

    def _write(self, table: str, rows: Iterable[Row]) -> None:
        RecordWriter(self._archive, f"{RECORDS}/{table}").write(rows)

    def _read_tables(self) -> None:
        rows = RecordWriter(self._archive, TABLE_ROWS, ())
        chunks: list[Row] = []
        for digest in self._tables:
            try:
                chunks += self._table(digest, rows)
            except Refused as error:
                if error.answered not in (400, 404):
                    raise
                self.report.leave("tables that are referenced but missing on the server")
            except Misfit as error:
                self.report.refuse("tables with rows", error, digest)
        rows.flush()
        RecordWriter(self._archive, TABLE_CHUNKS).write(chunks)

    def _table(self, digest: str, rows: RecordWriter) -> list[Row]:
        """The chunks of a table, whose rows are written."""
        named = {**self._named, "digest": digest}
        count = take(retry(self._remote.post, "/table/query_stats", named), "count", int)
        table = records.StoredTable(0, digest, count)
        chunks = []
        for number, first in enumerate(range(0, max(count, 1), CHUNK_ROWS)):
            asked = {**named, "limit": CHUNK_ROWS, "offset": first}
            page = take(retry(self._remote.post, "/table/query", asked), "rows", list)
            if len(page) != min(CHUNK_ROWS, count - first):
                raise HeddleError(f"The server returned {len(page)} rows of the table {digest} from row {first}")
            if page and take(page[0], "original_index", int, first) != first:
                raise HeddleError(f"The server returned other rows of the table {digest} than those from row {first}")
            found = [self._fit(TABLE_ROWS, row, _table_row, "val") for row in page]
            for row in found:
                rows.add(row)
            chunks.append(records.chunk_record(self._project, table, number, [row["digest"] for row in found]))
        return chunks

    def _read_files(self) -> Iterator[Row]:
        keys: set[str] = set()
        for digest, name in self._files.items():
            with tempfile.TemporaryFile() as content:
                if not self._file(digest, content):
                    self.report.leave("files that are referenced but missing on the server")
                    continue
                content.seek(0)
                key = hashlib.file_digest(content, "sha256").hexdigest()
                size = content.tell()
                content.seek(0)
                if key not in keys:
                    self._archive.blob(key, content)
                    keys.add(key)
            row = {"project": self._project, "digest": digest, "name": name, "size": size, "blob": key}
            yield {**row, "created_at": times.now()}

    def _file(self, digest: str, target: IO[bytes]) -> bool:
        """Fetch a file; false when there is none."""

        def save() -> None:
            target.seek(0)
            target.truncate()
            self._remote.save("/file/content", {**self._named, "digest": digest}, target)

        try:
            retry(save)
        except Refused as error:
            if error.answered not in (400, 404):
                raise
            return False
        return True

    def _note(self, value: Any) -> None:
        """Remember the tables and files that an answered value names."""
        self._tables |= dict.fromkeys(_tables_in(_internal(value), self._project))
        for name, digest in _files_in(value):
            self._files.setdefault(digest, name)


def _internal(value: Any) -> Any:
    """A parsed value with internal refs."""
    return jsontext.loads(refs.convert_in(jsontext.dumps_bytes(value), lambda _project: True))


def _call(project: str, line: Any) -> Row:
    """A call of /calls/stream_query."""
    attributes = _internal(take(line, "attributes", dict, {}))
    dump = attributes.pop("otel_span", None)
    summary = _internal(take(line, "summary", dict, {}))
    weave = summary.get("weave")
    status = weave.get("status") if isinstance(weave, dict) else None
    if status not in STATUS_WORDS:
        status = "error" if line.get("exception") else "success" if line.get("ended_at") else "running"
    record: Row = dict.fromkeys(item.name for item in COLUMNS)
    record |= {name: identify(line, name) for name in ("id", "trace_id")}
    record |= {name: line.get(name) for name in ("exception", "display_name")}
    record |= {item.name: line.get(item.field) for item in COLUMNS if item.is_plain and not item.of_end}
    record |= {"project": project, "status": status, "op_name": _internal(identify(line, "op_name"))}
    record |= {name: _instant(line, name) for name in ("started_at", "ended_at")}
    record |= {
        "user": line.get("wb_user_id"),
        "run_id": run_id(take(line, "wb_run_id", str, "") or None, project),
    }
    record |= {"inputs": _text(take(line, "inputs", dict, {})), "attributes": jsontext.dumps(attributes)}
    record["otel_dump"] = None if dump is None else jsontext.dumps(dump)
    if record["ended_at"] is not None:
        record |= {item.name: line.get(item.field) for item in COLUMNS if item.is_plain and item.of_end}
        record["output"] = None if line.get("output") is None else _text(line["output"])
        record["summary"] = jsontext.dumps(client_summary(summary))
    return record


def _version(project: str, found: Any) -> Row:
    """A version of /objs/query."""
    val = _text(_present(found, "val"))
    named = {name: identify(found, name) for name in ("kind", "object_id", "digest")}
    ref = refs.object_ref(project, named["kind"], named["object_id"], named["digest"])
    counts = {name: found.get(name) for name in ("version_index", "is_latest")}
    classes = {name: found.get(name) for name in ("base_object_class", "leaf_object_class")}
    times_of = {"created_at": _instant(found, "created_at"), "deleted_at": None}
    held = {"user": found.get("wb_user_id"), "size": len(val.encode()), "val": val}
    return {"project": project, "ref": ref, **named, **counts, **classes, **times_of, **held}


def _labels(project: str, found: Json) -> Iterator[tuple[str, Row]]:
    """The tags and aliases of a version, each with the table it belongs to."""
    base = {"project": project, "object_id": found["object_id"], "digest": found["digest"]}
    base["user"] = take(found, "wb_user_id", str, "")
    at = _instant(found, "created_at")
    for tag in texts(found, "tags"):
        yield "object_tags", {**base, "tag": tag, "created_at": at}
    aliases = dict.fromkeys(texts(found, "aliases"))
    if found["is_latest"]:
        aliases.setdefault(LATEST)
    for alias in aliases:
        yield "object_aliases", {**base, "alias": alias, "updated_at": at}


def _feedback(project: str, row: Any) -> Row:
    """A row of /feedback/query."""
    held = {"id": identify(row, "id"), "project": project, "feedback_type": row.get("feedback_type")}
    held |= {"wb_user_id": row.get("wb_user_id") or "", "creator": row.get("creator")}
    held |= {"weave_ref": _internal(identify(row, "weave_ref")), "payload": _text(take(row, "payload", dict, {}))}
    held |= {name: _internal(row.get(name)) for name in _REFS}
    empty: Json = {name: [] if name == "scorer_tags" else {} for name in STRUCTURES}
    held |= {name: _text(row.get(name) or value) for name, value in empty.items()}
    held |= {name: row.get(name) or value for name, value in SPANS.items()}
    return {**held, "created_at": _instant(row, "created_at")}


def _price(project: str, row: Any) -> Row:
    """A price of /cost/query."""
    named = {"project": project, "id": identify(row, "id"), "llm_id": row.get("llm_id")}
    named |= {"provider_id": row.get("provider_id") or ""}
    named |= {name: row.get(name) or 0.0 for name in _COSTS} | {name: row.get(name) or "USD" for name in _UNITS}
    at = _instant(row, "effective_date") or 0
    made = {"created_by": row.get("created_by") or "", "created_at": _instant(row, "created_at") or at}
    return {**named, **made, "effective_date": at}


def _table_row(project: str, row: Any) -> Row:
    """A row of /table/query."""
    return records.row_record(project, identify(row, "digest"), _text(_present(row, "val")))


def _present(row: Any, name: str) -> Any:
    """Any value of a row, which may be null; raises Misfit where it is missing."""
    if name not in members(row):
        raise Misfit(f"whose {name} is missing")
    return row[name]


def _tables_in(value: Any, project: str) -> Iterator[str]:
    """The digests of tables of the project that a value with internal refs names."""
    prefix = f"{refs.INTERNAL}{project}/table/"
    for ref in refs.find(value):
        if ref.startswith(prefix):
            yield ref.removeprefix(prefix).partition("/")[0]


def _files_in(value: Any) -> Iterator[tuple[str, str]]:
    """Name and digest of the files that stored values name."""
    if isinstance(value, dict):
        named = value.get("files")
        if value.get("_type") == "CustomWeaveType" and isinstance(named, dict):
            yield from ((name, digest) for name, digest in named.items() if isinstance(digest, str))
        for item in value.values():
            yield from _files_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _files_in(item)


def _text(value: Any) -> str:
    """JSON text of a parsed value, with internal refs."""
    return jsontext.dumps(_internal(value))


def _instant(row: Any, name: str) -> int | None:
    """An instant of a row in microseconds, None where it has none; raises Misfit."""
    text = take(row, name, str, "")
    found = times.parse(text) if text else None
    if text and found is None:
        raise Misfit(f"whose {name} is not a valid time")
    return found

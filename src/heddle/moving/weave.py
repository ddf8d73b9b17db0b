"""A W&B Weave project, read page by page over its public API into an archive."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import heddle
from heddle.errors import HeddleError
from heddle.moving import calls, tables
from heddle.moving import weave_records as records
from heddle.moving.archive import ArchiveWriter, Header
from heddle.moving.archive_names import CALLS, RECORDS
from heddle.moving.parts import Parts, insist_on_parquet
from heddle.moving.patience import patiently
from heddle.moving.report import Report
from heddle.remote import Refused, Remote
from heddle.store.control.table_chunks import CHUNK_ROWS
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

_PAGE = 1000
_NOT_READ = "annotation queues, saved alerts and what is kept outside the trace API (runs, artifacts) are not read"


def fetch(server: str, key: str | None, project_id: str, target: Path) -> Report:
    """Write everything of a project that the API shows into a new archive; raises HeddleError, and then there is none.

    The report says what was named and could not be read.
    """
    insist_on_parquet()
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
        self._calls()
        self._objects()
        self._rows("feedback", self._feedback())
        self._rows("costs", self._prices())
        self._read_tables()
        self._read_files()
        self.report.notes.append(_NOT_READ)

    def _calls(self) -> None:
        parts = Parts(self._archive, CALLS, calls.INTEGERS)
        order = [{"field": "started_at", "direction": "asc"}, {"field": "id", "direction": "asc"}]

        def page(offset: int) -> list[Json]:
            body = {**self._named, "sort_by": order, "limit": _PAGE, "offset": offset}
            return list(self._remote.lines("/calls/stream_query", body))

        for line in _paged(page):
            record = records.call(self._project, line)
            for field in ("inputs", "output"):
                self._note(line.get(field))
            parts.add(record)
        parts.flush()

    def _objects(self) -> None:
        versions = Parts(self._archive, f"{RECORDS}/object_versions")
        others: list[tuple[str, Json]] = []

        def page(offset: int) -> list[Json]:
            body = {**self._named, "limit": _PAGE, "offset": offset, "include_tags_and_aliases": True}
            body["sort_by"] = [{"field": "created_at", "direction": "asc"}]
            found: list[Json] = self._remote.post("/objs/query", body)["objs"]
            return found

        for found in _paged(page):
            versions.add(records.version(self._project, found))
            self._note(found["val"])
            others += records.labels(self._project, found)
        versions.flush()
        for name in ("object_tags", "object_aliases"):
            self._rows(name, (row for table, row in others if table == name))

    def _feedback(self) -> Iterator[Json]:
        def page(offset: int) -> list[Json]:
            body = {**self._named, "limit": _PAGE, "offset": offset}
            body["sort_by"] = [{"field": "created_at", "direction": "asc"}]
            found: list[Json] = self._remote.post("/feedback/query", body)["result"]
            return found

        return (records.feedback(self._project, row) for row in _paged(page))

    def _prices(self) -> Iterator[Json]:
        def page(offset: int) -> list[Json]:
            body = {**self._named, "fields": [*records.PRICE_FIELDS], "limit": _PAGE, "offset": offset}
            found: list[Json] = self._remote.post("/cost/query", body)["results"]
            return found

        return (records.price(self._project, row) for row in _paged(page))

    def _rows(self, name: str, rows: Iterator[Json]) -> None:
        parts = Parts(self._archive, f"{RECORDS}/{name}")
        for row in rows:
            parts.add(row)
        parts.flush()

    def _read_tables(self) -> None:
        rows = Parts(self._archive, tables.ROWS, ())
        chunks: list[Json] = []
        for digest in self._tables:
            try:
                chunks += self._table(digest, rows)
            except Refused as error:
                if error.answered not in (400, 404):
                    raise
                self.report.leave("tables that are named and that the server does not have")
        rows.flush()
        self._rows_of_tables(chunks)

    def _table(self, digest: str, rows: Parts) -> list[Json]:
        """The chunks of a table, whose rows are written."""
        named = {**self._named, "digest": digest}
        count = int(patiently(lambda: self._remote.post("/table/query_stats", named))["count"])
        table = tables.StoredTable(0, digest, count)
        chunks = []
        for number, first in enumerate(range(0, max(count, 1), CHUNK_ROWS)):
            page = self._chunk(named, first)
            if len(page) != min(CHUNK_ROWS, count - first):
                raise HeddleError(f"The server answered {len(page)} rows of the table {digest} from {first} on")
            for row in page:
                rows.add(tables.row_record(self._project, row["digest"], records.text(row["val"])))
                self._note(row["val"])
            chunks.append(tables.to_record(self._project, table, number, [row["digest"] for row in page]))
        return chunks

    def _chunk(self, named: Json, first: int) -> list[Json]:
        body = {**named, "limit": CHUNK_ROWS, "offset": first}
        found: list[Json] = patiently(lambda: self._remote.post("/table/query", body))["rows"]
        return found

    def _rows_of_tables(self, chunks: list[Json]) -> None:
        parts = Parts(self._archive, tables.TABLES)
        for chunk in chunks:
            parts.add(chunk)
        parts.flush()

    def _read_files(self) -> None:
        listed: list[Json] = []
        keys: set[str] = set()
        for digest, name in self._files.items():
            with tempfile.TemporaryFile() as content:
                if not self._file(digest, content):
                    self.report.leave("files that are named and that the server does not have")
                    continue
                content.seek(0)
                key = hashlib.file_digest(content, "sha256").hexdigest()
                size = content.tell()
                content.seek(0)
                if key not in keys:
                    self._archive.blob(key, content)
                    keys.add(key)
            row = {"project": self._project, "digest": digest, "name": name, "size": size, "blob": key}
            listed.append({**row, "created_at": times.now()})
        self._rows("files", iter(listed))

    def _file(self, digest: str, target: Any) -> bool:
        """Fetch a file; false when there is none."""

        def save() -> None:
            target.seek(0)
            target.truncate()
            self._remote.save("/file/content", {**self._named, "digest": digest}, target)

        try:
            patiently(save)
        except Refused as error:
            if error.answered not in (400, 404):
                raise
            return False
        return True

    def _note(self, value: Any) -> None:
        """Remember the tables and files that a value with internal refs names."""
        self._tables |= dict.fromkeys(records.tables_in(value, self._project))
        for name, digest in records.files_in(value):
            self._files.setdefault(digest, name)


def _paged(page: Callable[[int], list[Json]]) -> Iterator[Json]:
    """Everything that pages hold, each asked for again where that may help."""
    offset = 0
    while True:
        found = patiently(lambda: page(offset))  # noqa: B023 (it is asked at once)
        yield from found
        offset += len(found)
        if len(found) < _PAGE:
            return

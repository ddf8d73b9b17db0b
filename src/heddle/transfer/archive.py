"""The archive: one tar file, written and read as a stream (docs/transfer.md).

The header comes first, so that an unknown format is refused at once; the manifest comes last, so that an archive that
was cut off is never taken for a whole one. Records are JSON lines, or Parquet for what there is much of. Memory holds
one member at a time.
"""

import contextlib
import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Self, cast

import orjson

from heddle import paths
from heddle.errors import ExtraMissing, HeddleError
from heddle.extras import install_command
from heddle.transfer import schema
from heddle.wire import jsontext

FORMAT = "heddle archive"
VERSION = 1
HEADER, MANIFEST = "heddle-archive.json", "manifest.json"
BLOBS, FOLDERS = "blobs/", "folders/"
CALLS, RECORDS = "calls", "records"
JSON_LINES, PARQUET = ".jsonl", ".parquet"
TABLE_ROWS, TABLE_CHUNKS = "table_rows", "table_chunks"
UNFINISHED = ".import."
"""How the names of files begin that an import has not written whole: they are no part of a checkpoint."""
MOST_BYTES = 512 << 20
"""The most bytes of one member of records, packed and unpacked."""
_MOST_LIST_BYTES = 64 << 20
"""The most bytes of the header and of the manifest, which are read whole."""
_MOST_HEADER_BYTES = 64 << 10
_MOST_NAME = 1024
"""The most bytes of a file's name with its folders, so that it stays one below any data folder."""
_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20
_PART_ROWS, _PART_CHARACTERS = 2000, 16 << 20
_MOST_VALUES = 10_000
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_FOLDER = r"(?:[A-Za-z0-9_][A-Za-z0-9_. -]{0,254}/)+[A-Za-z0-9_.][A-Za-z0-9_. -]{0,254}"
_GROUPS = "|".join([CALLS, TABLE_ROWS, TABLE_CHUNKS, *(f"{RECORDS}/{name}" for name in schema.BY_NAME)])
_PART = re.compile(rf"(?:{_GROUPS})/\d{{1,12}}(?:{re.escape(JSON_LINES)}|{re.escape(PARQUET)})")
_BLOB = re.compile(rf"{BLOBS}[0-9a-f]{{64}}")
_FILE = re.compile(rf"{FOLDERS}(?:{'|'.join(schema.FOLDERS)})/{_FOLDER}")
Row = dict[str, Any]
"""One record: flat, of texts, numbers, and one list of digests at most."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an archive says of itself; `projects` are `entity/project`."""

    heddle: str
    made_at: str
    projects: list[str]
    format: str = FORMAT
    version: int = VERSION


@dataclass(slots=True)
class Manifest:
    """What is in an archive: records per group, and the SHA-256 and size of every member but blobs.

    A blob's name is its own SHA-256; `blobs` and `blob_bytes` say how many there are.
    """

    counts: dict[str, int] = field(default_factory=dict)
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: int = 0
    blob_bytes: int = 0


class ArchiveWriter:
    """Writes an archive beside its place and renames it when it is whole; as a context, an error leaves nothing."""

    def __init__(self, target: Path, header: Header) -> None:
        """Begin the archive; raises HeddleError where something is there already or cannot be written."""
        if target.exists():
            raise HeddleError(f"{target} already exists; an archive must be written to a new file")
        self.manifest = Manifest()
        self._target = target
        with contextlib.ExitStack() as stack:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._unfinished = stack.enter_context(paths.open_scratch(target)) / "archive"
                self._file = stack.enter_context(open(self._unfinished, "xb", opener=_open_private))
            except OSError as error:
                raise HeddleError(f"{target} cannot be written: {error.strerror}") from None
            self._opened = stack.pop_all()
        self._add(HEADER, orjson.dumps(asdict(header), option=orjson.OPT_INDENT_2))

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._opened:
            if kind is None:
                self._finish()

    def part(self, name: str, group: str, content: bytes, records: int) -> None:
        """Add a member that holds records of a group."""
        self._note(name, hashlib.sha256(content).hexdigest(), len(content), records)
        self.manifest.counts[group] = self.manifest.counts.get(group, 0) + records
        self._add(name, content)

    def blob(self, key: str, content: BinaryIO) -> None:
        """Add a blob; raises HeddleError when its content is not what its key says."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
            found, size = _copy(content, copy)
            if found != key:
                raise HeddleError(f"The content {key} is damaged: its SHA-256 is {found}")
            copy.seek(0)
            self._add(BLOBS + key, copy, size)
        self.manifest.blobs += 1
        self.manifest.blob_bytes += size

    def file(self, name: str, content: BinaryIO) -> None:
        """Add a file of the data folder under `folders/`."""
        digest, size = _copy(content, None)
        content.seek(0)
        self._note(FOLDERS + name, digest, size, 0)
        self._add(FOLDERS + name, content, size)

    def _note(self, name: str, digest: str, size: int, records: int) -> None:
        self.manifest.members[name] = {"sha256": digest, "bytes": size, "records": records}

    def _add(self, name: str, content: "bytes | BinaryIO | IO[bytes]", size: int | None = None) -> None:
        """One member; the format is written here, for the library's writer keeps a list of everything it wrote."""
        member = tarfile.TarInfo(name)
        stream = io.BytesIO(content) if isinstance(content, bytes) else content
        member.size = len(content) if isinstance(content, bytes) else size or 0
        with self._writing():
            self._file.write(member.tobuf(tarfile.PAX_FORMAT))
            _, written = _copy(stream, self._file)
            self._file.write(bytes(-written % tarfile.BLOCKSIZE))
        if written != member.size:
            raise HeddleError(f"{name} changed while it was exported; try again")

    def _finish(self) -> None:
        self._add(MANIFEST, orjson.dumps(asdict(self.manifest), option=orjson.OPT_INDENT_2))
        with self._writing():
            self._file.write(bytes(2 * tarfile.BLOCKSIZE))
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._unfinished, self._target)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HeddleError(f"{self._target} cannot be written: {error.strerror or error}") from None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, paths.FILE)


class ArchiveReader:
    """Reads an archive as often as needed, from its first member to its last."""

    def __init__(self, source: Path, beginning: bytes | None = None) -> None:
        """Read the header, of a file or of its `beginning`; raises HeddleError for no archive of a known format."""
        self._source = source
        self._beginning = beginning
        with contextlib.closing(self._members()) as members:
            name, content = next(members, ("", io.BytesIO()))
            if name != HEADER:
                raise HeddleError(f"{source} is not a heddle archive: it does not start with {HEADER}")
            with self._reading():
                self.header = _header(source, content.read())

    def members(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Every member but header and manifest, with its content, which is to be read before the next."""
        yield from ((name, content) for name, content in self._members() if name not in (HEADER, MANIFEST))

    def verify(self) -> Manifest:
        """Read everything and compare it with the manifest; raises HeddleError naming the first thing that is wrong."""
        known: dict[str, str] = {}
        manifest: Manifest | None = None
        blobs = blob_bytes = 0
        for name, content in self._members():
            if name == MANIFEST:
                with self._reading():
                    manifest = _manifest(self._source, content.read())
                continue
            with self._reading():
                digest, size = _copy(content, None)
            if not name.startswith(BLOBS):
                if name in known:
                    raise HeddleError(f"{self._source} is damaged: it contains {name} twice")
                known[name] = digest
                continue
            blobs, blob_bytes = blobs + 1, blob_bytes + size
            if name != BLOBS + digest:
                raise HeddleError(f"{self._source} is damaged: the SHA-256 of {name} is {digest}")
        if manifest is None:
            raise HeddleError(f"{self._source} is incomplete: {MANIFEST}, its last member, is missing")
        known.pop(HEADER, None)
        wrong = sorted(
            {name for name, entry in manifest.members.items() if known.get(name) != entry["sha256"]}
            | (known.keys() - manifest.members.keys())
        )
        if wrong:
            raise HeddleError(f"{self._source} is damaged: {wrong[0]} is missing or does not match {MANIFEST}")
        if (blobs, blob_bytes) != (manifest.blobs, manifest.blob_bytes):
            raise HeddleError(f"{self._source} is incomplete: {blobs} blobs instead of {manifest.blobs}")
        return manifest

    def _members(self) -> Generator[tuple[str, IO[bytes]]]:
        given = None if self._beginning is None else io.BytesIO(self._beginning)
        with self._reading(), tarfile.open(self._source, "r:", given, tarinfo=_Member) as tar:
            while (member := tar.next()) is not None:
                cast(Any, tar).members = []  # else it keeps every member that it read
                _check_member(member)
                content = tar.extractfile(member)
                if content is not None:
                    yield member.name, content

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HeddleError(f"{self._source} cannot be read: {error.strerror or error}") from None
        except (tarfile.TarError, ValueError, RecursionError) as error:
            # Headers of sparse files are numbers for the library, and what stands behind a header it reads inside it.
            raise HeddleError(f"{self._source} is not a complete archive: {str(error)[:300]}") from None


def _header(source: Path, text: bytes) -> Header:
    try:
        found = orjson.loads(text)
        is_ours = found["format"] == FORMAT
        version = int(found["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        is_ours, version = False, 0
    if not is_ours:
        raise HeddleError(f"{source} is not a heddle archive: its {HEADER} has another format")
    if version > VERSION:
        raise HeddleError(
            f"{source} is a heddle archive of version {version}, written by heddle {found.get('heddle')}; "
            f"this heddle reads versions up to {VERSION}: upgrade heddle"
        )
    projects = found.get("projects")
    if not isinstance(projects, list) or not all(isinstance(name, str) for name in projects):
        raise HeddleError(f"{source} is damaged: its {HEADER} does not list its projects")
    return Header(heddle=str(found.get("heddle")), made_at=str(found.get("made_at")), projects=projects)


def _manifest(source: Path, text: bytes) -> Manifest:
    try:
        found = Manifest(**orjson.loads(text))
        for entry in found.members.values():
            str(entry["sha256"])
        return found
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        raise HeddleError(f"{source} is damaged: its {MANIFEST} is not valid for version {VERSION}") from None


def _copy(source: "BinaryIO | IO[bytes]", target: IO[bytes] | None) -> tuple[str, int]:
    """SHA-256 and size of a stream, which is copied where there is a target."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest(), size


class _Member(tarfile.TarInfo):
    """A member whose extended header, which the library reads whole, is a short one, as for long names and sizes."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header; raises HeddleError for a long extended one."""
        found = super().frombuf(buf, encoding, errors)
        if found.type not in tarfile.REGULAR_TYPES and found.size > _MOST_HEADER_BYTES:
            raise HeddleError(f"The archive has a header of {found.size} bytes; the maximum is {_MOST_HEADER_BYTES}")
        return found


def _check_member(member: tarfile.TarInfo) -> None:
    """Raise HeddleError for a link or a device, a name that no export gives, and records that are too large."""
    name = member.name
    if not member.isreg() or member.issparse():
        raise HeddleError(f"The archive contains {name[:300]!r}, which is not a regular file")
    if name in (HEADER, MANIFEST):
        _check_size(member, _MOST_LIST_BYTES)
    elif name.startswith(FOLDERS) and not _is_file_name(name):
        raise HeddleError(f"The archive contains {name[:300]!r}, which is not a file of an adapter or a checkpoint")
    elif name.startswith(BLOBS) and not _BLOB.fullmatch(name):
        raise HeddleError(f"The archive contains {name[:300]!r}, which is not a SHA-256")
    elif not name.startswith((FOLDERS, BLOBS)):
        if not _PART.fullmatch(name):
            raise HeddleError(f"The archive contains {name[:300]!r}, which this version of heddle does not support")
        _check_size(member, MOST_BYTES)


def _is_file_name(name: str) -> bool:
    """True for a file of an adapter or a checkpoint that an export could have written."""
    parts = name.split("/")
    is_short = len(name) <= _MOST_NAME
    return is_short and bool(_FILE.fullmatch(name)) and ".." not in parts and not parts[-1].startswith(UNFINISHED)


def _check_size(member: tarfile.TarInfo, most: int) -> None:
    if member.size > most:
        raise HeddleError(f"The archive's {member.name} has {member.size} bytes; the maximum is {most}")


def require_parquet() -> None:
    """Raise ExtraMissing without pyarrow."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ExtraMissing(
            f"Parquet requires pyarrow: {install_command('parquet')}, or use --json to write and read JSON lines"
        ) from None


class RecordWriter:
    """Collects the records of one group and writes them as members of bounded size; end it with `flush`."""

    def __init__(self, archive: ArchiveWriter, group: str, integers: Sequence[str] | None = None) -> None:
        """With `integers` (the columns that are no text) the members are Parquet, otherwise JSON lines."""
        self._archive = archive
        self._group = group
        self._integers = integers
        self._rows: list[Mapping[str, Any]] = []
        self._characters = self._number = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one record; texts may be of any length."""
        self._rows.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(self._rows) >= _PART_ROWS or self._characters >= _PART_CHARACTERS:
            self.flush()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add all records of the group."""
        for row in rows:
            self.add(row)
        self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._rows:
            return
        self._number += 1
        is_parquet = self._integers is not None
        content = _to_parquet(self._rows, self._integers or ()) if is_parquet else _to_lines(self._rows)
        name = f"{self._group}/{self._number:06}{PARQUET if is_parquet else JSON_LINES}"
        self._archive.part(name, self._group, content, len(self._rows))
        self._rows, self._characters = [], 0


def read_records(name: str, content: bytes) -> list[Row]:
    """The records of a member; raises HeddleError for one that is neither."""
    if name.endswith(JSON_LINES):
        return [_parse_record(name, number, line) for number, line in enumerate(content.split(b"\n"), 1) if line]
    if name.endswith(PARQUET):
        require_parquet()
        return _read_parquet(name, content)
    raise HeddleError(f"The archive contains {name}, which this version of heddle does not support")


def _parse_record(name: str, number: int, line: bytes) -> Row:
    """A record is flat: texts, numbers, and one list of digests at most."""
    # Some texts hold integers beyond 64 bits only inside strings; the records themselves are plain.
    try:
        if STRINGS.sub(b"", line).count(b",") > _MOST_VALUES:
            raise ValueError("it has too many values")
        found = orjson.loads(line)
    except ValueError as error:
        raise HeddleError(f"The archive is refused: {name}, record {number}: not a valid record: {error}") from None
    if not isinstance(found, dict):
        raise HeddleError(f"The archive is refused: {name}, record {number}: not a valid record")
    return found


def _read_parquet(name: str, content: bytes) -> list[Row]:
    """The records of a Parquet file; raises HeddleError for what is none, or unpacks to more than it may."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if file.metadata.num_rows > _PART_ROWS or sum(group.total_byte_size for group in groups) > MOST_BYTES:
            raise HeddleError(f"The archive is refused: {name} exceeds the maximum size of a member when decompressed")
        texts = [field.name for field in file.schema_arrow if pyarrow.types.is_large_string(field.type)]
        # As dictionaries, else one long text that is named thousands of times takes thousands of times its room.
        table = parquet.ParquetFile(io.BytesIO(content), read_dictionary=texts).read(use_threads=False)
        if sum(_unpacked(column) for column in table.columns) > MOST_BYTES:
            raise HeddleError(f"The archive is refused: {name} exceeds the maximum size of a member when decompressed")
        rows: list[Row] = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise HeddleError(f"The archive is refused: {name} is not a Parquet file: {str(error)[:300]}") from None
    return rows


def _unpacked(column: Any) -> int:
    """The bytes of a column's texts, each counted as often as it is named."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = (compute.take(compute.binary_length(part.dictionary), part.indices) for part in column.chunks)
    return sum(int(compute.sum(part).as_py() or 0) for part in lengths)


def _to_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(jsontext.dumps_bytes(row) + b"\n" for row in rows)


def _to_parquet(rows: Sequence[Mapping[str, Any]], integers: Sequence[str]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = [(name, pyarrow.int64() if name in integers else pyarrow.large_string()) for name in rows[0]]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(kinds)), sink, compression="zstd")
    return sink.getvalue()

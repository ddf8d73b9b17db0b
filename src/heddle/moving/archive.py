"""The archive: one tar file, written and read as a stream (docs: moving).

The header comes first, so that an unknown format is refused at once; the manifest comes last, so that an archive that
was cut off is never taken for a whole one. Memory holds one member at a time.
"""

import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

import orjson

from heddle.errors import HeddleError
from heddle.moving.archive_names import BLOBS, FOLDERS, HEADER, MANIFEST
from heddle.moving.members import check_member

FORMAT = "heddle archive"
VERSION = 1
_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20


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
            raise HeddleError(f"{target} exists already; an archive is written to a new place")
        self.manifest = Manifest()
        self._target = target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        except OSError as error:
            raise HeddleError(f"{target} cannot be written: {error.strerror}") from None
        self._unfinished = Path(name)
        self._file = os.fdopen(descriptor, "wb")
        self._add(HEADER, orjson.dumps(asdict(header), option=orjson.OPT_INDENT_2))

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._unfinished.unlink(missing_ok=True)

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
                raise HeddleError(f"The content {key} is damaged: it has the SHA-256 {found}")
            copy.seek(0)
            self._add(BLOBS + key, copy, size)
        self.manifest.blobs += 1
        self.manifest.blob_bytes += size

    def file(self, name: str, path: Path) -> None:
        """Add a file of the data folder under `folders/`."""
        with path.open("rb") as content:
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


class ArchiveReader:
    """Reads an archive as often as needed, from its first member to its last."""

    def __init__(self, source: Path) -> None:
        """Read the header; raises HeddleError for what is no archive of a format known here."""
        self._source = source
        with contextlib.closing(self._members()) as members:
            name, content = next(members, ("", io.BytesIO()))
            if name != HEADER:
                raise HeddleError(f"{source} is no archive of heddle: it does not begin with {HEADER}")
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
                manifest = _manifest(self._source, content.read())
                continue
            with self._reading():
                digest, size = _copy(content, None)
            if not name.startswith(BLOBS):
                if name in known:
                    raise HeddleError(f"{self._source} is damaged: it holds {name} twice")
                known[name] = digest
                continue
            blobs, blob_bytes = blobs + 1, blob_bytes + size
            if name != BLOBS + digest:
                raise HeddleError(f"{self._source} is damaged: {name} has the SHA-256 {digest}")
        if manifest is None:
            raise HeddleError(f"{self._source} is not whole: {MANIFEST}, its last member, is missing")
        known.pop(HEADER, None)
        wrong = sorted(
            {name for name, entry in manifest.members.items() if known.get(name) != entry["sha256"]}
            | (known.keys() - manifest.members.keys())
        )
        if wrong:
            raise HeddleError(f"{self._source} is damaged: {wrong[0]} is missing or not what {MANIFEST} says")
        if (blobs, blob_bytes) != (manifest.blobs, manifest.blob_bytes):
            raise HeddleError(f"{self._source} is not whole: {blobs} blobs instead of {manifest.blobs}")
        return manifest

    def _members(self) -> Generator[tuple[str, IO[bytes]]]:
        with self._reading(), tarfile.open(self._source, "r:") as tar:
            while (member := tar.next()) is not None:
                cast(Any, tar).members = []  # else it keeps every member that it read
                check_member(member)
                content = tar.extractfile(member)
                if content is not None:
                    yield member.name, content

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HeddleError(f"{self._source} cannot be read: {error.strerror or error}") from None
        except tarfile.TarError as error:
            raise HeddleError(f"{self._source} is no whole archive: {error}") from None


def _header(source: Path, text: bytes) -> Header:
    try:
        found = orjson.loads(text)
        is_ours = found["format"] == FORMAT
        version = int(found["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        is_ours, version = False, 0
    if not is_ours:
        raise HeddleError(f"{source} is no archive of heddle: its {HEADER} does not say so")
    if version > VERSION:
        raise HeddleError(
            f"{source} is a heddle archive of version {version}, written by heddle {found.get('heddle')}; "
            f"this one reads up to version {VERSION}: upgrade heddle"
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
        raise HeddleError(f"{source} is damaged: its {MANIFEST} is none of version {VERSION}") from None


def _copy(source: "BinaryIO | IO[bytes]", target: IO[bytes] | None) -> tuple[str, int]:
    """SHA-256 and size of a stream, which is copied where there is a target."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest(), size

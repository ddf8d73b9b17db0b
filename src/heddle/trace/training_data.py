"""Rows for fine-tuning: an uploaded file, a published dataset, or an address that the settings allow."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from heddle.auth import Caller
from heddle.certificates import ssl_context
from heddle.errors import Forbidden, InvalidRequest, NotFound, TooLarge, ValidationFailed
from heddle.paths import OutsideRoot, resolve
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import jsontext, refs
from heddle.wire.jsontypes import Json

PARAM = "training_data_url"
_SECONDS = 600.0
_MOST_ROWS = 10_000_000


class TrainingData:
    """A DatasetReader over files, datasets and addresses."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        listed = settings.training_sources
        self._sources = [part.strip() for part in listed.split(",") if part.strip() and part.strip() != "none"]

    async def read(self, caller: Caller, project_id: str, url: str, max_bytes: int) -> list[Json]:
        """The rows behind an address, in order.

        A bare file digest is one of the project. Raises ValidationFailed for an address of none of the three forms,
        NotFound, Forbidden, TooLarge beyond `max_bytes`, InvalidRequest for a file that is no JSONL.
        """
        if url.startswith((refs.EXTERNAL, refs.INTERNAL)):
            return await self._dataset(caller, url, max_bytes)
        if refs.looks_like_digest(url):
            return await _parsed(await self._file(caller, project_id, url, max_bytes))
        if not any(_lies_under(url, source) for source in self._sources):
            raise _refused(url, self._sources)
        if url.startswith("file:"):
            return await _parsed(
                await asyncio.to_thread(_local, url, self._sources, max_bytes, Path(self._settings.data))
            )
        return await _parsed(await _download(url, max_bytes))

    async def _file(self, caller: Caller, project_id: str, digest: str, max_bytes: int) -> bytes:
        found = await self._store.files.expect(caller.open(project_id), digest)
        if found is None:
            raise NotFound(f"File {digest} not found in {project_id}")
        _check_size(found.size, max_bytes)
        with await asyncio.to_thread(self._store.blobs.open, found.blob) as stream:
            return await asyncio.to_thread(stream.read)

    async def _dataset(self, caller: Caller, url: str, max_bytes: int) -> list[Json]:
        """The rows of a Dataset object, or of a table."""
        try:
            ref = refs.parse(refs.to_internal(url) if url.startswith(refs.EXTERNAL) else url)
        except InvalidRequest as error:
            raise ValidationFailed.at(["body", PARAM], error.reason) from None
        if ref.kind not in ("object", "table") or ref.edges:
            raise ValidationFailed.at(["body", PARAM], "The ref names neither a Dataset nor a table")
        self._require(caller, ref)
        if ref.kind == "object":
            version = await self._store.objects.read(ref.project, ref.name, ref.version)
            if version is None or version.deleted_at is not None:
                raise NotFound(f"Dataset {refs.to_external(url) if url.startswith(refs.INTERNAL) else url} not found")
            value = orjson.loads(version.val or "null")
            rows = value.get("rows") if isinstance(value, dict) else None
            if isinstance(rows, list):
                return _objects(rows)
            if not isinstance(rows, str) or not rows.startswith(refs.INTERNAL):
                raise InvalidRequest(f"{ref.name} is not a Dataset: it has no rows", param=PARAM)
            ref = refs.parse(rows)
            self._require(caller, ref)
        return await self._table(ref, max_bytes)

    async def _table(self, ref: refs.Ref, max_bytes: int) -> list[Json]:
        tables = self._store.tables
        known = await tables.stats(ref.project, [ref.name], with_size=True)
        if ref.kind != "table" or not known:
            raise NotFound(f"Table {ref.name[:100]} of the dataset not found")
        _check_size(known[0].size or 0, max_bytes)
        rows = await tables.query(ref.project, ref.name, limit=_MOST_ROWS)
        return _objects(await asyncio.to_thread(lambda: [orjson.loads(row.val) for row in rows]))

    @staticmethod
    def _require(caller: Caller, ref: refs.Ref) -> None:
        project = refs.external_project(ref.project)
        if project is None or not caller.may_read(project):
            raise Forbidden(f"The key of user '{caller.user}' does not have permission to read datasets of '{project}'")


def _refused(url: str, sources: Sequence[str]) -> ValidationFailed:
    allowed = ", ".join(sources) if sources else "none (setting training_sources)"
    return ValidationFailed.at(
        ["body", PARAM],
        f"{url[:200]!r} is neither the digest of an uploaded file, nor a weave:///.../object/<dataset>:<version> ref, "
        f"nor an allowed URL; allowed sources: {allowed}",
    )


def _lies_under(url: str, source: str) -> bool:
    """True when an address is a source, or lies in the folder that a source names."""
    try:
        asked, allowed = urlsplit(url), urlsplit(source)
    except ValueError:
        return False
    if asked.scheme not in ("https", "file") or (asked.scheme, asked.netloc) != (allowed.scheme, allowed.netloc):
        return False
    path, folder = unquote(asked.path), unquote(allowed.path)
    if ".." in path.split("/") or "\\" in path or "\0" in path:
        return False
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def _local(url: str, sources: Sequence[str], max_bytes: int, data: Path) -> bytes:
    """The bytes of a file; links out of the allowed folders, and into the data folder, are not followed."""
    try:
        path = resolve(unquote(urlsplit(url).path))
    except OutsideRoot:
        raise _refused(url, sources) from None
    folders = [resolve(unquote(urlsplit(source).path)) for source in sources if source.startswith("file:")]
    if not any(path == folder or folder in path.parents for folder in folders) or resolve(data) in path.parents:
        raise _refused(url, sources)
    if not os.path.isfile(path):
        raise NotFound(f"{url[:200]} is not a file on this server")
    try:
        _check_size(path.stat().st_size, max_bytes)
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        raise NotFound(f"{url[:200]} cannot be read: {error.strerror}") from None
    _check_size(len(content), max_bytes)
    return content


async def _download(url: str, max_bytes: int) -> bytes:
    import httpx

    content = bytearray()
    try:
        # Redirects could lead to an address that nobody allowed.
        async with (
            httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False, verify=await ssl_context()) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != 200:
                raise InvalidRequest(f"{url[:200]} returned {response.status_code}", param=PARAM)
            async for part in response.aiter_bytes():
                content += part
                _check_size(len(content), max_bytes)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidRequest(
            f"{url[:200]} cannot be read: {type(error).__name__}: {error}"[:500], param=PARAM
        ) from None
    return bytes(content)


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise TooLarge(f"{PARAM}: the data has more than {max_bytes} bytes (limit max_training_body)")


async def _parsed(content: bytes) -> list[Json]:
    return await asyncio.to_thread(parse_lines, content)


def parse_lines(content: bytes) -> list[Json]:
    """The objects of JSON lines, empty lines left out; raises InvalidRequest naming the line (from 1) that is none."""
    rows: list[Any] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = jsontext.loads(line)
        except ValidationFailed as error:
            raise InvalidRequest(f"{PARAM}: line {number} is not valid JSON: {error.reason}", param=PARAM) from None
        if not isinstance(row, dict):
            raise InvalidRequest(f"{PARAM}: line {number} is not a JSON object", param=PARAM)
        rows.append(row)
    return rows


def _objects(rows: Sequence[Any]) -> list[Json]:
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InvalidRequest(f"{PARAM}: row {place} of the dataset is not an object", param=PARAM)
    return list(rows)

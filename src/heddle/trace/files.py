"""Files: uploaded as multipart forms while they arrive, addressed by their content, read back as bytes.

Signed addresses let a browser load files of a project for a while without a key.
"""

import asyncio
import codecs
import io
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from heddle.errors import Conflict, InvalidRequest, NotFound, TooLarge, ValidationFailed
from heddle.http.quotas import count_file
from heddle.http.routing import ProjectReq, Reader, ResponseModel, SettingsDep, StoreDep, Writer, answer, group, hot
from heddle.http.signing import Signer, check_address
from heddle.store.base import Store
from heddle.store.blobs.base import Blobs, BlobWriter
from heddle.store.control.files import StoredFile
from heddle.wire import refs, times
from heddle.wire.redaction import Redactor

FILE_PART = "file"
_WRITE_BYTES = 1 << 20
_MAX_FIELD = 64 * 1024
_MAX_HEADERS = 16 * 1024
_MAX_PARTS = 20


def boundary_of(content_type: str) -> bytes:
    """The boundary of a multipart content type; raises ValidationFailed for anything else."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise ValidationFailed.at(["body"], "Expected multipart/form-data with a boundary", "multipart_invalid")
    return boundary


class FileForm:
    """A form on its way in: its text fields, and its file.

    A small file waits in memory; of a large one the most is in `writer`, which the caller ends by `keep` or `discard`.
    """

    def __init__(self, boundary: bytes, begin: Callable[[dict[str, str]], BlobWriter], max_file: int) -> None:
        """`begin` gets the fields that came before the file."""
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self.writer: BlobWriter | None = None
        self._begin = begin
        self._max_file = max_file
        self._waiting = bytearray()
        self._file_size = 0
        self._has_file = self._complete = False
        self._parts = self._header_bytes = 0
        self._name: str | None = None
        self._text = bytearray()
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""
        self._boundary = boundary

    async def receive(self, chunks: AsyncIterator[bytes]) -> None:
        """Read the whole form; raises ValidationFailed when it is none, TooLarge and StorageFull."""
        parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )
        async for chunk in chunks:
            try:
                parser.write(chunk)
            except FormParserError as error:
                raise ValidationFailed.at(["body"], f"The form cannot be read: {error}", "multipart_invalid") from None
            if len(self._waiting) >= _WRITE_BYTES:
                await asyncio.to_thread(self._write)
        if not self._complete:
            raise ValidationFailed.at(["body"], "The form is truncated", "multipart_invalid")

    def field(self, name: str) -> str:
        """A text field; raises ValidationFailed when it is missing."""
        if name not in self.fields:
            raise ValidationFailed.at(["body", name], "Field required", "missing")
        return self.fields[name]

    def require_file(self) -> None:
        """Raise ValidationFailed when the form has no file."""
        if not self._has_file:
            raise ValidationFailed.at(["body", FILE_PART], "Field required", "missing")

    def keep(self, check: Callable[[str], None]) -> tuple[str, int]:
        """Make the file durable; returns the key of its blob and its size. Blocks.

        `check(key)` may raise before anything is kept.
        """
        writer = self._write()
        check(writer.key)
        return writer.commit(), writer.size

    async def discard(self) -> None:
        """Leave nothing behind, unless the file was kept."""
        if self.writer is not None and not self.writer.is_done:
            await asyncio.to_thread(self.writer.discard)

    def _write(self) -> BlobWriter:
        if self.writer is None:
            self.writer = self._begin(self.fields)
        waiting, self._waiting = bytes(self._waiting), bytearray()
        self.writer.write(waiting)
        return self.writer

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ValidationFailed.at(["body"], f"The form has more than {_MAX_PARTS} parts", "multipart_invalid")
        self._disposition, self._name, self._header_bytes = b"", None, 0
        self._text.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._count_header(end - start)

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count_header(end - start)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MAX_HEADERS:
            raise ValidationFailed.at(["body"], "The headers of a part are too long", "multipart_invalid")

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE_PART:
            if self._has_file:
                raise ValidationFailed.at(["body", FILE_PART], "The form has more than one file", "multipart_invalid")
            self._has_file = True
            self.file_name = options.get(b"filename", b"").decode("utf-8", "replace")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE_PART:
            self._text += data[start:end]
            if len(self._text) > _MAX_FIELD:
                raise ValidationFailed.at(["body", self._name or ""], f"Longer than {_MAX_FIELD} bytes", "too_long")
            return
        self._file_size += end - start
        if self._file_size > self._max_file:
            raise TooLarge(f"Request too large: the file is over the limit max_file = {self._max_file} bytes")
        self._waiting += data[start:end]

    def _on_part_end(self) -> None:
        if self._name and self._name != FILE_PART:
            try:
                self.fields[self._name] = self._text.decode()
            except UnicodeDecodeError:
                place = ["body", self._name]
                raise ValidationFailed.at(place, "The field is not UTF-8", "multipart_invalid") from None

    def _on_end(self) -> None:
        self._complete = True


UNNAMED = "<unnamed_file>"
_CHUNK = 1 << 20
_MAX_NAME = 1024
MOST_TEXT = 64 * 1024 * 1024
router: APIRouter = group("Files")


class FileCreateRes(ResponseModel):
    """Where the file is found."""

    digest: str


class FileContentReq(ProjectReq):
    """Body of /file/content."""

    digest: str


class FilesStatsReq(ProjectReq):
    """Body of /files/query_stats."""


class FilesStatsRes(ResponseModel):
    """The bytes of all files of the project."""

    total_size_bytes: int


FILE_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "title": "FileCreateReq",
                    "type": "object",
                    "required": ["project_id", "file"],
                    "properties": {
                        "project_id": {"title": "Project Id", "type": "string"},
                        "expected_digest": {
                            "title": "Expected Digest",
                            "anyOf": [{"type": "string"}, {"type": "null"}],
                            "default": None,
                        },
                        "file": {"title": "File", "type": "string", "format": "binary"},
                    },
                }
            }
        },
    }
}


@router.post("/files/create", response_model=FileCreateRes, openapi_extra=FILE_FORM, include_in_schema=False)
@router.post("/file/create", response_model=FileCreateRes, openapi_extra=FILE_FORM)
@hot
async def file_create(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store a file; the same content again is the same file."""
    count_file(request.scope)
    is_redacted = await store.redaction.is_on()
    redactors: dict[str, Redactor] = {}

    def begin(fields: dict[str, str]) -> BlobWriter:
        named = fields.get("project_id")
        is_free = not is_redacted or (named is not None and not store.redaction.has_rules(caller.open(named)))
        return store.blobs.begin() if is_free else RedactingWriter(store.blobs, redactors)

    form = FileForm(boundary_of(request.headers.get("content-type", "")), begin, settings.max_file)
    with store.files.note_arrival():
        try:
            await form.receive(request.stream())
            project, expected = caller.open(form.field("project_id")), form.fields.get("expected_digest")
            form.require_file()
            redactors |= await store.redaction.of([project])
            key, size = await asyncio.to_thread(form.keep, lambda key: _check_digest(expected, _digest_of_blob(key)))
        finally:
            await form.discard()
        name, digest = (form.file_name or UNNAMED)[:_MAX_NAME], _digest_of_blob(key)
        blob = form.writer.blob if isinstance(form.writer, RedactingWriter) else None
        name = redactors[project].text(name) if project in redactors else name
        await store.files.create(project, name, digest, size, blob or key)
        await store.redaction.note(redactors)
    return answer({"digest": digest})


class RedactingWriter(BlobWriter):
    """A blob whose text stays in memory until it is redacted; its key is that of what was sent."""

    blob: str | None = None
    """The key of what was stored."""

    def __init__(self, blobs: Blobs, redactors: Mapping[str, Redactor]) -> None:
        """`redactors` holds, by the end, what takes out of the project's content, if anything does."""
        self._text = io.BytesIO()
        self._redactors = redactors
        super().__init__(self._text)
        self._blobs = blobs
        self._binary: BlobWriter | None = None

    def write(self, chunk: bytes) -> None:
        """Append; raises TooLarge for a text that is too long to be held, and StorageFull."""
        if self._binary is None and self.size == 0 and not is_text(chunk):
            self._binary = self._blobs.begin()
        if self._binary is not None:
            self._binary.write(chunk)
            self._hash.update(chunk)
            self.size += len(chunk)
            return
        super().write(chunk)
        if self.size > MOST_TEXT:
            raise TooLarge(f"Request too large: text files over {MOST_TEXT} bytes cannot be redacted")

    def _keep(self) -> None:
        if self._binary is not None:
            self.blob = self._binary.commit()
            return
        content = self._text.getvalue()
        for redactor in self._redactors.values():
            content = redactor.content(content)
        self.blob = self._blobs.put_bytes(content)

    def _drop(self) -> None:
        if self._binary is not None:
            self._binary.discard()


def is_text(beginning: bytes) -> bool:
    """Whether content begins as text in UTF-8 does; its last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return b"\0" not in beginning


def _digest_of_blob(key: str) -> str:
    return refs.encode_sha256(bytes.fromhex(key))


def _check_digest(expected: str | None, digest: str) -> None:
    if expected and expected != digest:
        raise Conflict(f"Digest mismatch for file: expected {expected[:100]}, got {digest}")


@router.post("/files/content", response_class=Response, include_in_schema=False)
@router.post(
    "/file/content",
    response_class=Response,
    responses={
        200: {
            "description": "The bytes of the file",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def file_content(body: FileContentReq, caller: Reader, store: StoreDep) -> Response:
    """The bytes of a file."""
    project, files = caller.open(body.project_id), store.files
    found = await files.find(project, body.digest)
    if found is None and refs.looks_like_digest(body.digest):
        found = await files.expect(project, body.digest)
    if found is None:
        raise NotFound(f"File {body.digest[:100]} not found")
    return await _send(store, found, {})


@router.post("/files/stats", response_model=FilesStatsRes, include_in_schema=False)
@router.post("/files/query_stats", response_model=FilesStatsRes)
async def files_query_stats(body: FilesStatsReq, caller: Reader, store: StoreDep) -> Response:
    """How many bytes the project's files have."""
    return answer({"total_size_bytes": await store.files.total_size(caller.open(body.project_id))})


async def chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    """The bytes of an open file, which is closed at the end."""
    with stream:
        while chunk := await asyncio.to_thread(stream.read, _CHUNK):
            yield chunk


MOST_URIS = 1000
_FILE = "/file/"
_DOWNLOAD = "files/download"


class ResolveUrlReq(ProjectReq):
    """Body of /files/resolve_url; a uri is a file's digest, or `weave:///entity/project/file/<digest>`."""

    uris: list[str]


class ResolveUrlRes(ResponseModel):
    """One address per uri, in that order, and when they end."""

    download_urls: list[str]
    expires_at: str | None = None


@router.post("/files/resolve_url", response_model=ResolveUrlRes)
async def resolve_url(
    request: Request, body: ResolveUrlReq, caller: Reader, settings: SettingsDep, store: StoreDep
) -> Response:
    """Addresses of files that can be loaded without a key until they end."""
    project = caller.open(body.project_id)
    if len(body.uris) > MOST_URIS:
        raise InvalidRequest(f"uris has {len(body.uris)} entries, at most {MOST_URIS} are allowed")
    wanted = [_digest_of_uri(uri, project) for uri in body.uris]
    for digest in dict.fromkeys(wanted):
        if await store.files.find(project, digest) is None:
            raise NotFound(f"File {digest[:100]} not found")
    sign = await Signer.make(settings, str(request.base_url))
    urls = [sign.address(_DOWNLOAD, project=project, digest=digest) for digest in wanted]
    return answer({"download_urls": urls, "expires_at": times.to_iso(sign.expires)})


@router.get(
    f"/{_DOWNLOAD}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download(
    project: Annotated[str, Query()],
    digest: Annotated[str, Query()],
    expires: Annotated[int, Query()],
    signature: Annotated[str, Query()],
    settings: SettingsDep,
    store: StoreDep,
) -> Response:
    """The bytes of a file, by an address of /files/resolve_url; 403 for one that has ended or was not made here."""
    await check_address(settings, signature, expires, _DOWNLOAD, project, digest)
    found = await store.files.find(project, digest)
    if found is None:
        raise NotFound(f"File {digest[:100]} not found")
    # What was uploaded must not run as a page of this server; pages of others may show it, as its address is the key.
    headers = {"content-disposition": "attachment", "cross-origin-resource-policy": "cross-origin"}
    return await _send(store, found, headers)


async def _send(store: Store, file: StoredFile, headers: Mapping[str, str]) -> Response:
    if file.size <= _CHUNK:
        content = await asyncio.to_thread(store.blobs.read, file.blob)
        return Response(content, media_type="application/octet-stream", headers=dict(headers))
    stream = await asyncio.to_thread(store.blobs.open, file.blob)
    if isinstance(getattr(stream, "raw", None), io.FileIO) and os.fstat(stream.fileno()).st_size != file.size:
        stream.close()
        raise NotFound(f"The content {file.blob} is damaged (heddle check)")
    size = {"content-length": str(file.size)}
    return StreamingResponse(chunks(stream), media_type="application/octet-stream", headers={**size, **headers})


def _digest_of_uri(uri: str, project: str) -> str:
    """The digest that a uri of the project (internal id) names; raises InvalidRequest."""
    if refs.looks_like_digest(uri):
        return uri
    prefix = f"{refs.INTERNAL}{project}{_FILE}"
    if uri.startswith(prefix) and refs.looks_like_digest(uri.removeprefix(prefix)):
        return uri.removeprefix(prefix)
    shown = refs.to_external(uri) if uri.startswith(refs.INTERNAL) else uri
    raise InvalidRequest(
        f"{shown[:300]!r} is not a file of this project; expected a digest or weave:///entity/project/file/<digest>"
    )

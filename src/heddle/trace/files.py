"""Files: uploaded as multipart forms, addressed by their content, read back as bytes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from heddle.errors import Conflict, NotFound
from heddle.http import Reader, RequestModel, ResponseModel, SettingsDep, StoreDep, Writer, answer, group, hot
from heddle.trace.multipart import FileForm, boundary_of
from heddle.wire import digests

UNNAMED = "<unnamed_file>"
_CHUNK = 1 << 20
_MAX_NAME = 1024
router: APIRouter = group("Files")


class FileCreateRes(ResponseModel):
    """Where the file is found."""

    digest: str


class FileContentReq(RequestModel):
    """Body of /file/content."""

    project_id: str
    digest: str


class FilesStatsReq(RequestModel):
    """Body of /files/query_stats."""

    project_id: str


class FilesStatsRes(ResponseModel):
    """The bytes of all files of the project."""

    total_size_bytes: int


_FORM: dict[str, Any] = {
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


@router.post("/files/create", response_model=FileCreateRes, openapi_extra=_FORM, include_in_schema=False)
@router.post("/file/create", response_model=FileCreateRes, openapi_extra=_FORM)
@hot
async def file_create(request: Request, caller: Writer, settings: SettingsDep, store: StoreDep) -> Response:
    """Store a file; the same content again is the same file."""
    form = FileForm(boundary_of(request.headers.get("content-type", "")), store.blobs.begin, settings.max_file)
    with store.files.arriving():
        try:
            await form.receive(request.stream())
            project, expected = caller.open(form.field("project_id")), form.fields.get("expected_digest")
            form.require_file()
            blob, size = await asyncio.to_thread(form.keep, lambda key: _check(expected, _digest(key)))
        finally:
            await form.discard()
        name = (form.file_name or UNNAMED)[:_MAX_NAME]
        await store.files.create(project, name, _digest(blob), size, blob)
    return answer({"digest": _digest(blob)})


def _digest(key: str) -> str:
    return digests.encode_sha256(bytes.fromhex(key))


def _check(expected: str | None, digest: str) -> None:
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
    if found is None and digests.looks_like_digest(body.digest):
        found = await files.expect(project, body.digest)
    if found is None:
        raise NotFound(f"File {body.digest[:100]} not found")
    stream = await asyncio.to_thread(store.blobs.open, found.blob)
    headers = {"content-length": str(found.size)}
    return StreamingResponse(chunks(stream), media_type="application/octet-stream", headers=headers)


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

"""Addresses under which a browser can load files of a project for a while without a key.

An address carries its end and a signature; the secret behind it lies in the data folder, so that any server that
shares it can check what another one has signed.
"""

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.http import Reader, RequestModel, ResponseModel, SettingsDep, StoreDep, answer, group
from heddle.origins import public_address
from heddle.store.secret import secret
from heddle.trace.files import chunks
from heddle.wire import digests, refs, times

router: APIRouter = group("Files")

LASTS = 900 * times.SECOND
MOST_URIS = 1000
_FILE = "/file/"


class ResolveUrlReq(RequestModel):
    """Body of /files/resolve_url; a uri is a file's digest, or `weave:///entity/project/file/<digest>`."""

    project_id: str
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
    wanted = [_digest(uri, project) for uri in body.uris]
    for digest in dict.fromkeys(wanted):
        if await store.files.find(project, digest) is None:
            raise NotFound(f"File {digest[:100]} not found")
    expires = times.now() + LASTS
    base = f"{public_address(settings, str(request.base_url))}files/download?"
    key = await asyncio.to_thread(secret, Path(settings.data))
    urls = [base + urlencode(signed(key, project, digest, expires)) for digest in wanted]
    return answer({"download_urls": urls, "expires_at": times.to_iso(expires)})


@router.get(
    "/files/download",
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
    key = await asyncio.to_thread(secret, Path(settings.data))
    check(key, project, digest, expires, signature, times.now())
    found = await store.files.find(project, digest)
    if found is None:
        raise NotFound(f"File {digest[:100]} not found")
    stream = await asyncio.to_thread(store.blobs.open, found.blob)
    # What was uploaded must not run as a page of this server; pages of others may show it, as its address is the key.
    headers = {"content-length": str(found.size), "content-disposition": "attachment"}
    headers["cross-origin-resource-policy"] = "cross-origin"
    return StreamingResponse(chunks(stream), media_type="application/octet-stream", headers=headers)


def check(key: bytes, project: str, digest: str, expires: int, signature: str, now: int) -> None:
    """Raise Forbidden for an address that was not made here, or has ended."""
    if not hmac.compare_digest(_signature(key, project, digest, expires), signature.encode("utf-8", "replace")):
        raise Forbidden("The address was not made by this server; ask /files/resolve_url again")
    if now >= expires:
        raise Forbidden(f"The address ended at {times.to_iso(expires)}; ask /files/resolve_url again")


def signed(key: bytes, project: str, digest: str, expires: int) -> dict[str, str]:
    """The query of an address."""
    signature = _signature(key, project, digest, expires).decode()
    return {"project": project, "digest": digest, "expires": str(expires), "signature": signature}


def _digest(uri: str, project: str) -> str:
    """The digest that a uri of the project (internal id) names; raises InvalidRequest."""
    if digests.looks_like_digest(uri):
        return uri
    prefix = f"{refs.INTERNAL}{project}{_FILE}"
    if uri.startswith(prefix) and digests.looks_like_digest(uri.removeprefix(prefix)):
        return uri.removeprefix(prefix)
    shown = refs.to_external(uri) if uri.startswith(refs.INTERNAL) else uri
    raise InvalidRequest(
        f"{shown[:300]!r} is no file of this project: a digest, or weave:///entity/project/file/<digest>, is needed"
    )


def _signature(key: bytes, project: str, digest: str, expires: int) -> bytes:
    said = "\n".join((project, digest, str(expires))).encode("utf-8", "replace")
    return hmac.new(key, said, hashlib.sha256).hexdigest().encode()

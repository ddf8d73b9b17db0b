"""The OpenAPI description, for programs and as a page for people.

It is made once for an installation, like bytecode, and anew where sources changed: that takes a second of a processor
and tens of megabytes. `python -m heddle.describe` does it in a process of its
own, when heddle is installed with make, or when a server is asked for a description that is not there.
"""

import asyncio
import hashlib
import logging
import sys
import tempfile
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from threading import Lock

from fastapi import Response
from fastapi.responses import HTMLResponse

from heddle.errors import Unavailable
from heddle.http.routing import group
from heddle.ipc.child import Child

logger = logging.getLogger("heddle.compat.description")
PACKAGE = Path(__file__).parent.parent
KEPT = PACKAGE / "openapi.json"
"""The description, with the digest of what it was made of."""
_MADE_BY = ("fastapi", "pydantic", "pydantic-core")
_SECONDS = 60.0
_making = Lock()


def read_description() -> bytes:
    """The description of every route as JSON text; blocks. Raises Unavailable where it cannot be made."""
    with _making:
        return _read()


@cache
def _read() -> bytes:
    sources = digest_of_sources()
    if (kept := _read_kept(KEPT, sources)) is not None:
        return kept
    with tempfile.TemporaryDirectory(prefix="heddle-openapi-") as folder:
        made = Path(folder, KEPT.name)
        child = Child("The process that describes the API", ["heddle.describe", str(made)], logger)
        child.end(_SECONDS)
        found = _read_kept(made, sources)
    if found is None:
        raise Unavailable(child.how_it_ended())
    return found


def _read_kept(file: Path, sources: str) -> bytes | None:
    """What a file has, None where it was made of other sources."""
    begin = _begin(sources)
    try:
        found = file.read_bytes()
    except OSError:
        return None
    return found[len(begin) : -1] if found.startswith(begin) else None


def _begin(sources: str) -> bytes:
    return b'{"made_of":"%s","description":' % sources.encode()


def digest_of_sources() -> str:
    """The digest of every module of heddle, and of the versions of what describes them."""
    found = hashlib.sha256(repr((sys.version_info[:2], [(name, metadata.version(name)) for name in _MADE_BY])).encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def keep(description: bytes, file: Path = KEPT) -> None:
    """Write a description that was just made to a file."""
    file.write_bytes(_begin(digest_of_sources()) + description + b"}")


router = group("Pages")

_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The routes of /openapi.json, readable; the page loads nothing from anywhere else."""
    page = resources.files("heddle.compat").joinpath("docs.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY, "Referrer-Policy": "same-origin"})


@router.get("/openapi.json", include_in_schema=False)
async def openapi() -> Response:
    """The description of every route."""
    return Response(await asyncio.to_thread(read_description), media_type="application/json")

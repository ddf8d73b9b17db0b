"""The description of the API, for programs and as a page for people."""

import asyncio
from importlib import resources

from fastapi import Response
from fastapi.responses import HTMLResponse

from heddle.compat.description import read_description
from heddle.http.routing import group

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

"""The description of the API, as a page for people."""

from importlib import resources

from fastapi import Response
from fastapi.responses import HTMLResponse

from heddle.http import group

router = group("Pages")

_POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The routes of /openapi.json, readable; the page loads nothing from anywhere else."""
    page = resources.files("heddle.compat").joinpath("docs.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

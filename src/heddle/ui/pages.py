"""The pages for people, and the files that they are made of."""

import gzip
from collections.abc import Iterable

from fastapi import Request, Response
from starlette.routing import BaseRoute

from heddle.errors import NotFound
from heddle.http import AuthenticatorDep, SettingsDep, group
from heddle.settings import Settings
from heddle.ui import paths
from heddle.ui.assets import POLICY, Assets, assets, read_assets
from heddle.ui.session import kept_cookie

router = group("Pages")

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding, Cookie",
}


def _assets(settings: Settings) -> Assets:
    return read_assets() if settings.ui_files == "reread" else assets()


@router.get("/_ui/{build}/{path:path}", include_in_schema=False)
async def asset(build: str, path: str, request: Request, settings: SettingsDep) -> Response:
    """A file of the interface; for ever the same under the address of its build."""
    found = _assets(settings)
    file = found.files.get(path)
    if file is None or path == "index.html":
        raise NotFound(f"The interface has no file {path[:200]!r}")
    lasting = build == found.build and settings.ui_files == "cached"
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable" if lasting else "no-store",
        "Vary": "Accept-Encoding",
    }
    if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, media_type=file.media_type, headers=headers | {"Content-Encoding": "gzip"})
    return Response(file.body, media_type=file.media_type, headers=headers)


async def page(request: Request, settings: SettingsDep, authenticator: AuthenticatorDep) -> Response:
    """The HTML of the page at this address; unknown ones get a page, too, that says so, with status 404."""
    path = request.scope["path"]
    name = paths.find(path)
    caller = request.scope.get("heddle.caller")
    told = {
        "user": caller.user if caller is not None else None,
        "admin": caller is not None and caller.has("admin"),
        "needs_key": authenticator.needs_key,
    }
    body = _assets(settings).index(name or "missing", settings.root_path.rstrip("/"), told)
    headers = dict(_HEADERS)
    if (cookie := kept_cookie(request, settings.root_path)) is not None:
        headers["Set-Cookie"] = cookie
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 6), "gzip"
    return Response(body, 200 if name else 404, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/{entity}/{project}/weave", include_in_schema=False)
@router.get("/{entity}/{project}/weave/{rest:path}", include_in_schema=False)
@router.get("/{entity}/{project}/r/call/{call}", include_in_schema=False)
async def project_page(
    entity: str, request: Request, settings: SettingsDep, authenticator: AuthenticatorDep
) -> Response:
    """A page of one project; raises NotFound below a first part that belongs to the interface."""
    if is_reserved(request.app.routes, entity):
        raise NotFound("There is no such route")
    return await page(request, settings, authenticator)


def is_reserved(routes: Iterable[BaseRoute], entity: str) -> bool:
    """True for the first part of a path of the interface, which is no entity in the address of a page."""
    return any(f"{getattr(route, 'path', '')}/".startswith(f"/{entity}/") for route in routes)


for _path in ("/", "/settings", "/inference"):
    router.get(_path, include_in_schema=False)(page)

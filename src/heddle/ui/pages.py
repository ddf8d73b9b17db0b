"""The pages for people: which page shows at which address, and the files they are made of."""

import base64
import gzip
import hashlib
import html
import mimetypes
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import orjson
from fastapi import Request, Response
from starlette.routing import BaseRoute

import heddle
from heddle.auth import NOBODY
from heddle.errors import NotFound
from heddle.http.routing import AuthenticatorDep, SettingsDep, group
from heddle.settings import Settings
from heddle.ui.session import renew_cookie

router = group("Pages")
PREFIX = "/_ui"
_SMALLEST_TO_COMPRESS = 400
_IMPORT = re.compile(rb"""from\s+"(\.{1,2}/[^"]+)";""")
_CSS_IMPORT = re.compile(rb"""@import\s+"(\.{1,2}/[^"]+)";""")
_OWN_STYLE = re.compile(rb"""^await loadStyle\("([a-z_/]+)"\);$""", re.MULTILINE)
_COMMENT = re.compile(rb"^[ \t]*(?://.*|/\*(?:[^*]|\*(?!/))*\*/)$", re.MULTILINE)
_THEME = 'document.documentElement.dataset.theme=localStorage.getItem("heddle.theme")||"auto"'
_ICON = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Crect width='32' height='32' rx='8' "
    "fill='%230f766e'/%3E%3Cpath d='M9 6v20M16 6v20M23 6v20M5 12c4 0 4 8 8 8s4-8 8-8 4 8 7 8' stroke='%23fff' "
    "stroke-width='2.4' fill='none'/%3E%3C/svg%3E"
)
PROJECT = "/:entity/:project/weave"

PAGES: tuple[tuple[str, str], ...] = (
    ("/", "projects"),
    ("/settings", "settings"),
    ("/inference", "inference"),
    (PROJECT, "overview"),
    ("/:entity/:project/r/call/:call", "call"),
    (f"{PROJECT}/calls/:call", "call"),
    (f"{PROJECT}/traces", "calls"),
    (f"{PROJECT}/traces/compare", "comparecalls"),
    (f"{PROJECT}/traces/:trace", "trace"),
    (f"{PROJECT}/errors", "errors"),
    (f"{PROJECT}/threads", "threads"),
    (f"{PROJECT}/threads/*thread", "thread"),
    (f"{PROJECT}/agents", "threads"),
    (f"{PROJECT}/agents/conversations", "threads"),
    (f"{PROJECT}/agents/conversations/*thread", "conversation"),
    (f"{PROJECT}/dashboards", "dashboards"),
    (f"{PROJECT}/dashboards/:name", "dashboard"),
    (f"{PROJECT}/costs", "costs"),
    (f"{PROJECT}/metrics", "metrics"),
    (f"{PROJECT}/alerts", "alerts"),
    (f"{PROJECT}/evaluations", "evaluations"),
    (f"{PROJECT}/evaluations/compare", "compare"),
    (f"{PROJECT}/evaluations/:run", "evaluation"),
    (f"{PROJECT}/leaderboards", "leaderboards"),
    (f"{PROJECT}/leaderboards/:name", "leaderboard"),
    (f"{PROJECT}/scorers", "scorers"),
    (f"{PROJECT}/datasets", "datasets"),
    (f"{PROJECT}/datasets/:name", "dataset"),
    (f"{PROJECT}/queues", "queues"),
    (f"{PROJECT}/queues/:queue", "queue"),
    (f"{PROJECT}/queues/:queue/work", "work"),
    (f"{PROJECT}/replays", "replays"),
    (f"{PROJECT}/replays/:replay", "replay"),
    (f"{PROJECT}/playground", "playground"),
    (f"{PROJECT}/objects", "objects"),
    (f"{PROJECT}/objects/:name/versions/:version", "object"),
    (f"{PROJECT}/prompts", "objects"),
    (f"{PROJECT}/ops", "ops"),
    (f"{PROJECT}/ops/:name/versions/:version", "op"),
    (f"{PROJECT}/models", "models"),
    (f"{PROJECT}/training", "training"),
    (f"{PROJECT}/training/:job", "job"),
    (f"{PROJECT}/trajectories", "trajectories"),
    (f"{PROJECT}/improvements", "improvements"),
    (f"{PROJECT}/improvements/:improvement", "improvement"),
    (f"{PROJECT}/inference", "inference"),
    (f"{PROJECT}/settings", "settings"),
)
"""Pattern and page, the first that fits; `:name` is one part of a path, `*name` all the rest."""


def _hash(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'self'; script-src 'self' {_hash(_THEME)}; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""What a page may load: nothing from any other server, no inline script but the line that sets the theme."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its bytes, the same compressed (None where that does not pay), and its media type."""

    body: bytes
    compressed: bytes | None
    media_type: str


@dataclass(frozen=True)
class Assets:
    """All files of one build, and the pages made from them."""

    build: str
    files: dict[str, Asset]

    def modules(self, page: str) -> list[str]:
        """What a page's modules import, itself and the frame included, so that the browser asks for all at once."""
        waiting, found = ["app.js", f"pages/{page}.js"], dict[str, None]()
        while waiting:
            name = waiting.pop(0)
            if name in found or name not in self.files:
                continue
            found[name] = None
            waiting += _find_links(_IMPORT, name, self.files[name].body)
        return list(found)

    def styles(self) -> list[str]:
        """The style sheets beside the one of the frame, as "pages/trace"."""
        return [name[:-4] for name in sorted(self.files) if name.endswith(".css") and name != "app.css"]

    def index(self, page: str, root: str, config: dict[str, Any]) -> bytes:
        """The HTML of a page; `root` is the path prefix in front of this server, `config` what the script is told."""
        base = f"{root}{PREFIX}/{self.build}/"
        modules = self.modules(page)
        links = [f'<link rel="modulepreload" href="{base}{name}">' for name in modules]
        own = [style.decode() for name in modules for style in _OWN_STYLE.findall(self.files[name].body)]
        for name in [*own, f"pages/{page}"]:
            sheet = f"{name}.css"
            if sheet not in self.files:
                continue
            links += [
                f'<link rel="preload" as="style" href="{base}{name}">'
                for name in _find_links(_CSS_IMPORT, sheet, self.files[sheet].body)
            ]
            links.append(f'<link rel="stylesheet" href="{base}{sheet}" data-style="{name}">')
        known = {"base": base, "root": root, "version": heddle.__version__, "routes": PAGES}
        told = orjson.dumps(known | {"styles": self.styles()} | config).decode()
        parts = {"config": html.escape(told), "icon": _ICON, "base": base, "preload": "\n".join(links), "theme": _THEME}
        page_text = self.files["index.html"].body.decode()
        return re.sub(r"\{(config|icon|base|preload|theme)\}", lambda found: parts[found[1]], page_text).encode()


def _find_links(pattern: re.Pattern[bytes], name: str, body: bytes) -> list[str]:
    folder = posixpath.dirname(name)
    return [posixpath.normpath(posixpath.join(folder, target.decode())) for target in pattern.findall(body)]


def read_assets() -> Assets:
    """The files as they are on disk now."""
    found = dict(sorted(_walk(resources.files("heddle.ui").joinpath("static"))))
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + body for name, body in found.items())).hexdigest()
    return Assets(digest[:12], {name: _make_asset(name, body) for name, body in found.items()})


@cache
def assets() -> Assets:
    """The files as they were when they were first asked for."""
    return read_assets()


def _make_asset(name: str, body: bytes) -> Asset:
    if name.endswith((".js", ".css")):
        # A first visit loads dozens of modules: comments go, the numbers of lines stay.
        body = _COMMENT.sub(lambda found: b"\n" * found[0].count(b"\n"), body)
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    return Asset(body, gzip.compress(body, 9) if len(body) > _SMALLEST_TO_COMPRESS else None, kind)


def _walk(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def find_page(path: str) -> str | None:
    """The page of an encoded path below the root, or None."""
    parts = path.rstrip("/").split("/")
    return next((page for pattern, page in PAGES if _matches(pattern.rstrip("/").split("/"), parts)), None)


def _matches(pattern: list[str], parts: list[str]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted.startswith("*"):
            return len(parts) > index
        if index >= len(parts) or not (bool(parts[index]) if wanted.startswith(":") else wanted == parts[index]):
            return False
    return len(parts) == len(pattern)


_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding, Cookie",
}


def _current_assets(settings: Settings) -> Assets:
    return read_assets() if settings.ui_files == "reread" else assets()


@router.get("/_ui/{build}/{path:path}", include_in_schema=False)
async def asset(build: str, path: str, request: Request, settings: SettingsDep) -> Response:
    """A file of the interface; for ever the same under the address of its build."""
    found = _current_assets(settings)
    file = found.files.get(path)
    if file is None or path == "index.html":
        raise NotFound(f"Interface file {path[:200]!r} not found")
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
    # As it was sent: a name may hold an encoded slash.
    name = find_page(request.scope["raw_path"].decode("latin-1"))
    caller = request.scope.get("heddle.caller")
    told = {
        **(NOBODY if caller is None else caller.abilities),
        "needs_key": authenticator.needs_key,
        "sign_in": settings.oidc_issuer != "none",
    }
    body = _current_assets(settings).index(name or "missing", settings.root_path.rstrip("/"), told)
    headers = dict(_HEADERS)
    if (cookie := renew_cookie(request, settings.root_path)) is not None:
        headers["Set-Cookie"] = cookie
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 6), "gzip"
    if name is None:
        request.scope["heddle.refusal"] = "No page has this address"
    return Response(body, 200 if name else 404, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/{entity}/{project}/weave", include_in_schema=False)
@router.get("/{entity}/{project}/weave/{rest:path}", include_in_schema=False)
@router.get("/{entity}/{project}/r/call/{call:path}", include_in_schema=False)
async def project_page(
    entity: str, request: Request, settings: SettingsDep, authenticator: AuthenticatorDep
) -> Response:
    """A page of one project; raises NotFound below a first part that belongs to the interface."""
    if is_reserved(request.app.routes, entity):
        raise NotFound("Route not found")
    return await page(request, settings, authenticator)


def is_reserved(routes: Iterable[BaseRoute], entity: str) -> bool:
    """True for the first part of a path of the interface, which is no entity in the address of a page."""
    return any(f"{getattr(route, 'path', '')}/".startswith(f"/{entity}/") for route in routes)


for _path in ("/", "/settings", "/inference"):
    router.get(_path, include_in_schema=False)(page)

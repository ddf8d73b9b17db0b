"""The files of the interface as they are sent: under an address that changes with them, compressed once."""

import base64
import gzip
import hashlib
import html
import mimetypes
import posixpath
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import orjson

import heddle
from heddle.ui import paths

PREFIX = "/_ui"
_SMALLEST_TO_COMPRESS = 400
_IMPORT = re.compile(rb"""from\s+"(\.{1,2}/[^"]+)";""")
_CSS_IMPORT = re.compile(rb"""@import\s+"(\.{1,2}/[^"]+)";""")
_OWN_STYLE = re.compile(rb"""^await loadStyle\("([a-z_/]+)"\);$""", re.MULTILINE)
_THEME = 'document.documentElement.dataset.theme=localStorage.getItem("heddle.theme")||"auto"'
_ICON = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Crect width='32' height='32' rx='8' "
    "fill='%230f766e'/%3E%3Cpath d='M9 6v20M16 6v20M23 6v20M5 12c4 0 4 8 8 8s4-8 8-8 4 8 7 8' stroke='%23fff' "
    "stroke-width='2.4' fill='none'/%3E%3C/svg%3E"
)


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
            waiting += _linked(_IMPORT, name, self.files[name].body)
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
                for name in _linked(_CSS_IMPORT, sheet, self.files[sheet].body)
            ]
            links.append(f'<link rel="stylesheet" href="{base}{sheet}" data-style="{name}">')
        known = {"base": base, "root": root, "version": heddle.__version__, "routes": paths.PAGES}
        told = orjson.dumps(known | {"styles": self.styles()} | config).decode()
        parts = {"config": html.escape(told), "icon": _ICON, "base": base, "preload": "\n".join(links), "theme": _THEME}
        page_text = self.files["index.html"].body.decode()
        return re.sub(r"\{(config|icon|base|preload|theme)\}", lambda found: parts[found[1]], page_text).encode()


def _linked(pattern: re.Pattern[bytes], name: str, body: bytes) -> list[str]:
    folder = posixpath.dirname(name)
    return [posixpath.normpath(posixpath.join(folder, target.decode())) for target in pattern.findall(body)]


def read_assets() -> Assets:
    """The files as they are on disk now."""
    found = dict(sorted(_walk(resources.files("heddle.ui").joinpath("static"))))
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + body for name, body in found.items())).hexdigest()
    return Assets(digest[:12], {name: _asset(name, body) for name, body in found.items()})


@cache
def assets() -> Assets:
    """The files as they were when they were first asked for."""
    return read_assets()


def _asset(name: str, body: bytes) -> Asset:
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

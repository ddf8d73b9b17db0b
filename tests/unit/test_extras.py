"""The command that adds an extra, by where the package came from."""

import json
import re
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from heddle.extras import install_command


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///srv/heddle", "dir_info": {}}, "pip install '.[grpc,s3]' in the checkout of heddle"),
        (
            {"url": "file:///srv/heddle", "dir_info": {"editable": True}},
            "pip install -e '.[grpc,s3]' in the checkout of heddle",
        ),
        (
            {"url": "file:///tmp/heddle_server-1.0-py3-none-any.whl", "archive_info": {}},
            "pip install './heddle_server-1.0-py3-none-any.whl[grpc,s3]'",
        ),
        (
            {"url": "https://example.com/heddle", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'heddle-server[grpc,s3] @ git+https://example.com/heddle@abc'",
        ),
        (None, "pip install 'heddle-server[grpc,s3]'"),
    ],
)
def test_where_it_came_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    install_command.cache_clear()
    assert install_command("grpc", "s3") == command


def test_not_installed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", lacks)
    install_command.cache_clear()
    assert install_command("mcp") == "pip install '.[mcp]' in a checkout of heddle"
    install_command.cache_clear()


def test_nothing_tells_to_install_what_another_has_published() -> None:
    root = Path(__file__).parents[2]
    files = [root / "README.md", root / "Makefile", *(root / "docs").rglob("*.md"), *(root / "deploy").rglob("*")]
    files += [path for path in (root / "src").rglob("*") if path.suffix in (".py", ".js", ".html")]
    told = re.compile(r"(?:pip|pipx|uv tool) install (?:-\S+ )*['\"]?heddle(?:\[|['\"\s]|$)", re.MULTILINE)
    found = {str(path): told.findall(path.read_text(errors="replace")) for path in files if path.is_file()}
    assert len(found) > 400 and {path: lines for path, lines in found.items() if lines} == {}
    assert told.search("pip install 'heddle[vllm]'") and told.search("pip install heddle\n")

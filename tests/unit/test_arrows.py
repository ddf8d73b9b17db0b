"""Arrows point one way (docs: the services).

cli -> app -> {trace, evals, inference, training, compat} -> {models, store} -> wire
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "heddle"
SQL = ("sqlite3", "sqlalchemy", "heddle.store.sqlite")
HTTP = (
    "fastapi",
    "starlette",
    "uvicorn",
    "heddle.http",
    "heddle.request_body",
    "heddle.app",
    "heddle.middleware",
    "heddle.failures",
    "heddle.serve",
)
ROOMS = (
    "heddle.trace",
    "heddle.inference",
    "heddle.training",
    "heddle.evals",
    "heddle.compat",
    "heddle.demo",
    "heddle.cli",
    "heddle.checks",
    "heddle.keyring",
    "heddle.moving",
)

CLIENTS = ("heddle.remote", "heddle.gate", "heddle.mcp", "heddle.moving")
ABOVE = ("heddle.app", "heddle.middleware", "heddle.serve", "heddle.cli", "heddle.compat", "heddle.demo", *CLIENTS)
INSIDE = tuple(room for room in ROOMS if room != "heddle.inference")

FORBIDDEN = {
    "store": (*HTTP, *ROOMS, "heddle.services", "heddle.metrics"),
    "trace": (*SQL, *ABOVE, "heddle.inference", "heddle.training", "heddle.evals", "heddle.models"),
    "evals": (*SQL, *ABOVE, "heddle.inference", "heddle.training", "heddle.trace", "heddle.models"),
    "inference": (*SQL, *ABOVE, "heddle.trace", "heddle.training", "heddle.evals"),
    "training": (*SQL, *ABOVE, "heddle.trace", "heddle.inference", "heddle.evals"),
    "training/trainer": (*HTTP, "heddle.store", "heddle.services"),
    "inference/engine": (*SQL, *HTTP, *INSIDE, "heddle.store", "heddle.services"),
    "models": (*SQL, *HTTP, *ROOMS, "heddle.store", "heddle.services", "heddle.wire"),
    "compat": (*SQL, "heddle.app", "heddle.middleware", "heddle.serve", "heddle.cli", "heddle.trace", "heddle.demo"),
    "moving": (*HTTP, "heddle.services", "heddle.inference", "heddle.training", "heddle.evals", "heddle.compat"),
    "gate": (*SQL, *HTTP, "heddle.store", "heddle.services", *INSIDE, "heddle.inference"),
    "mcp": (*SQL, *HTTP, "heddle.store", "heddle.services", *INSIDE, "heddle.inference"),
    "demo": (*SQL, *HTTP, "heddle.store", "heddle.trace", "heddle.compat", "heddle.services"),
}


def files(package: str) -> list[Path]:
    """The modules of a package."""
    return sorted((SOURCE / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every absolute module name that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where arrows point"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lies_in(name: str, packages: tuple[str, ...]) -> bool:
    """True when a module is one of the packages or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_torch_stays_in_the_engines_process() -> None:
    """The server itself imports no torch: only what the worker runs does."""
    allowed = ("models", "inference/engine/local", "training/trainer", "demo/tiny")
    found = {
        str(path.relative_to(SOURCE).parent)
        for path in SOURCE.rglob("*.py")
        if any(lies_in(name, ("torch", "transformers", "heddle.models")) for name in imports(path))
    }
    assert {folder for folder in found if not folder.startswith(allowed)} == set()


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_no_arrow_points_back(package: str) -> None:
    assert files(package)
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in files(package)
        for name in imports(path)
        if lies_in(name, FORBIDDEN[package])
    ]
    assert wrong == []


def test_wire_imports_nothing_of_ours_but_the_errors() -> None:
    own = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in files("wire")
        for name in imports(path)
        if lies_in(name, ("heddle", *SQL, *HTTP)) and not lies_in(name, ("heddle.wire", "heddle.errors"))
    ]
    assert own == []

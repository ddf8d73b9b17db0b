"""Arrows point one way: cli -> app -> {trace, compat} -> store -> wire (docs: the house)."""

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
    "heddle.app",
    "heddle.edge",
    "heddle.failures",
    "heddle.serve",
)
ROOMS = ("heddle.trace", "heddle.compat", "heddle.demo", "heddle.cli", "heddle.checks", "heddle.keyring")

FORBIDDEN = {
    "store": (*HTTP, *ROOMS, "heddle.house", "heddle.metrics"),
    "trace": (*SQL, "heddle.app", "heddle.edge", "heddle.serve", "heddle.cli", "heddle.compat", "heddle.demo"),
    "compat": (*SQL, "heddle.app", "heddle.edge", "heddle.serve", "heddle.cli", "heddle.trace", "heddle.demo"),
    "demo": (*SQL, *HTTP, "heddle.store", "heddle.trace", "heddle.compat", "heddle.house"),
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

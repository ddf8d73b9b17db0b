"""The lock files of requirements/ hold all an installation brings, with hashes, in versions pyproject.toml takes."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"core": [], **PROJECT["optional-dependencies"]}
OTHERS = {"all", "build", "cuda", "tools", "torch-cpu"}
ENTRY = re.compile(
    r"^([\w.-]+)==([\w.+!]+)( ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def text_of(name: str) -> str:
    """A lock file without its comment."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


@cache
def locked(name: str) -> dict[str, set[str]]:
    """The versions of each package of a lock file; more than one where they differ by Python."""
    found: dict[str, set[str]] = {}
    for package, version, _, _ in ENTRY.findall(text_of(name)):
        found.setdefault(package, set()).add(version)
    return found


def requirements(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for, with the extra."""
    return [Requirement(line) for line in (*PROJECT["dependencies"], *EXTRAS[extra])]


def installed(wanted: Iterable[Requirement], seen: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Name and version of each installed package that the requirements bring, directly or through others."""
    for requirement in wanted:
        for extra in ("", *requirement.extras):
            name = canonicalize_name(requirement.name)
            if (name, extra) in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
                continue
            seen.add((name, extra))
            try:
                found = distribution(name)
            except PackageNotFoundError:  # an extra that this environment leaves out
                continue
            yield name, found.version
            yield from installed(brought(found.requires or [], extra), seen)


def brought(lines: Iterable[str], extra: str) -> Iterator[Requirement]:
    """The requirements of a package that its extra, or none, asks for here."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            yield requirement


def test_every_extra_has_a_lock_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(EXTRAS) | OTHERS


@pytest.mark.parametrize("name", sorted({*EXTRAS, *OTHERS}))
def test_every_package_is_pinned_with_hashes_and_no_address(name: str) -> None:
    text = text_of(name)
    assert ENTRY.sub("", text) == "" and locked(name)
    assert "://" not in text and "--index" not in text and "--find-links" not in text


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_installed_for_an_extra_is_in_its_lock_file(extra: str) -> None:
    pins = locked(extra)
    found = dict(installed(requirements(extra), set()))
    assert {*map(canonicalize_name, (requirement.name for requirement in requirements(extra)))} <= set(pins)
    for name, version in found.items():
        versions = pins[name] if name in pins else locked("cuda")[name]
        assert version.partition("+")[0] in versions, f"{name} is {version} here; `make lock` or install again"


@pytest.mark.parametrize("extra", EXTRAS)
def test_lock_files_fit_the_ranges_of_the_project(extra: str) -> None:
    pins = locked(extra)
    for requirement in requirements(extra):
        versions = pins[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version, prereleases=True) for version in versions), requirement


def test_lock_files_agree_with_each_other() -> None:
    everything = locked("all")
    for extra in EXTRAS:
        assert all(versions <= everything[name] for name, versions in locked(extra).items()), extra
    assert locked("torch-cpu") == {"torch": {f"{version}+cpu" for version in everything["torch"]}}
    assert not set(locked("cuda")) & set(everything)

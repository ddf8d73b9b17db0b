"""Which tests run where: `make test` leaves out what is marked `thorough`, `make test-all` leaves out nothing."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

HAS_TORCH = pytest.StashKey[bool]()
"""Whether torch was imported while tests were collected."""
TESTS = Path(__file__).parent.parent
_TORCH = {
    TESTS / name
    for name in (
        "api/inference/test_adapters.py",
        "api/inference/test_embeddings.py",
        "api/inference/test_other_model.py",
        "api/inference/test_policies.py",
        "api/inference/test_policies_logprobs.py",
        "api/inference/test_responses.py",
        "api/inference/test_text_completions.py",
        "api/inference/test_vllm_servers.py",
        "api/test_old_data.py",
        "api/test_upgrade.py",
        "api/test_tenant_matrix.py",
        "api/training/test_models_routes.py",
        "clients/test_tinker_losses.py",
        "soak/test_damaged_files.py",
        "soak/test_fuzz.py",
        "soak/test_inference_swap.py",
        "soak/test_structured.py",
        "unit/demo",
        "unit/inference/engine",
        "unit/inference/vllm/test_engine.py",
        "unit/models",
        "unit/training",
    )
}
"""Where test modules import torch."""
_ALL_THOROUGH = re.compile(r"^pytestmark\b.*\bmark\.thorough\b", re.MULTILINE)
"""Says in a test file that all of it is `thorough`; what it imports may take a second."""
PARTS = ("torch", "unit", "api", "rest")
"""What `make test` runs one after the other, each with new workers: none ever gives the memory of a test back."""
WITHOUT_THOROUGH = "not thorough"
"""What `make test` gives as `-m`."""
_EXAMPLES = 100
"""Of a test by Hypothesis that does not say how many; `make test` gives a profile that has fewer."""


def is_chosen(path: Path, config: pytest.Config) -> bool:
    """Whether the options `--part`, `--package` and `-m` leave anything of a test file or a folder in."""
    return _is_chosen(path, config.getoption("--part"), config.getoption("--package"), config.getoption("-m"))


@cache
def _is_chosen(path: Path, part: str | None, package: str | None, marks: str) -> bool:
    is_test = path.name.startswith("test_") and path.suffix == ".py"
    if part is not None and path.is_relative_to(TESTS) and part not in _parts_of(path, is_test):
        return False
    if not is_test:
        return True
    if marks == WITHOUT_THOROUGH and _ALL_THOROUGH.search(path.read_text(encoding="utf-8")):
        return False
    return package is None or _is_of(path, package)


def _parts_of(path: Path, is_test: bool) -> set[str]:
    """The part of a test file; the parts that may have tests in a folder."""
    if not _TORCH.isdisjoint((path, *path.parents)):
        return {"torch"}
    if path == TESTS or (is_test and path.parent == TESTS):
        return set(PARTS)
    folder = path.relative_to(TESTS).parts[0]
    part = folder if folder in PARTS else "rest"
    return {part} if is_test else {part, "torch"}


def _is_of(path: Path, package: str) -> bool:
    """Whether a test file is in the folder of a package of heddle, or in none of another and imports it."""
    folders = {TESTS.parent / "src" / "heddle" / part for part in path.relative_to(TESTS).parts[1:-1]}
    if owners := {folder.name for folder in folders if folder.is_dir()}:
        return package in owners
    importing = rf"^\s*(from|import) heddle\.{package}\b|^\s*from heddle import .*\b{package}\b"
    return re.search(importing, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def examples(number: int) -> int:
    """How many examples of Hypothesis a test looks at: so many, in `make test` a quarter."""
    return number * hypothesis.settings.default.max_examples // _EXAMPLES


def spread(cases: Iterable[Any], every: int = 3) -> list[Any]:
    """The cases of a loop, of which `make test` looks at every nth."""
    found = list(cases)
    return found if examples(_EXAMPLES) == _EXAMPLES else found[::every]


def with_breadth(cases: Iterable[Any], keep: int = 1, every: int = 0, *, are_named: bool = False) -> list[Any]:
    """Cases of a parametrized test of which `make test` runs the first ones and every nth.

    The first value of a case that is named is its id.
    """
    marked = []
    for number, case in enumerate(cases):
        name, *values = case if are_named else (None, *(case if isinstance(case, tuple) else (case,)))
        is_kept = number < keep or (every and number % every == 0)
        marked.append(pytest.param(*values, id=name, marks=() if is_kept else pytest.mark.thorough))
    return marked

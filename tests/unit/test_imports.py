"""What the rules of pyproject.toml cannot say of imports."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "heddle"


def imported(path: Path) -> set[str]:
    """Every module and name that a file imports, wherever it does so."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return named | {
        f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_torch_stays_in_the_engines_process() -> None:
    """The server itself imports no torch: only what the worker runs does."""
    # Losses name its type alone: tests/unit/training/trainer/test_losses.py
    allowed = ("models", "inference/engine/local", "training/trainer", "training/losses", "demo/tiny")
    heavy = ("torch.", "transformers.", "heddle.models.")
    found = {
        str(path.relative_to(SOURCE).parent)
        for path in SOURCE.rglob("*.py")
        if any(f"{name}.".startswith(heavy) for name in imported(path))
    }
    assert {folder for folder in found if not folder.startswith(allowed)} == set()


def test_no_private_module_of_a_library_is_imported() -> None:
    private = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name in imported(path)
        if not name.startswith(("heddle.", "__future__")) and any(part.startswith("_") for part in name.split("."))
    }
    assert private == set()


def test_there_are_no_circles_among_modules() -> None:
    """Imports within functions and those for types alone count, too."""
    paths = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}

    def module_of(name: str) -> str:
        return name if name in modules else name.rpartition(".")[0]

    graph = {
        name: {module_of(target) for target in imported(path)} & modules.keys() - {name, "heddle"}
        for name, path in modules.items()
    }
    TopologicalSorter(graph).prepare()


WORKER = """
import sys
import heddle.web_workers.__main__

print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("heddle.")}))
"""


def test_a_worker_imports_the_trace_alone() -> None:
    """Of every worker's memory a fifth would be features that it does not serve."""
    found = subprocess.run([sys.executable, "-c", WORKER], check=True, capture_output=True, text=True).stdout
    assert "trace" in found.split()
    assert set(found.split()) & {"app", "services", "evals", "inference", "training", "improve", "ui"} == set()


STARTED = """
import sys
import heddle.serve

print(*sys.modules)
"""


def test_a_start_imports_the_first_routes_alone() -> None:
    """And nothing that only some commands, engines or stores need."""
    found = subprocess.run([sys.executable, "-c", STARTED], check=True, capture_output=True, text=True).stdout.split()
    later = {"heddle.evals.routes", "heddle.inference.api.chat", "heddle.training.routes", "heddle.ui.pages"}
    libraries = {"alembic", "graphql", "httpx", "jinja2", "numpy", "psycopg", "rich", "torch"}
    assert set(found) & (later | libraries | {"heddle.trace.builtin_models"}) == set()
    assert "heddle.trace.calls.write" in found


BUILT = """
import heddle.serve
from pydantic import BaseModel

def check(kind):
    for model in kind.__subclasses__():
        if model.__module__.startswith("heddle.") and model.__pydantic_complete__:
            print(f"{model.__module__}.{model.__name__}")
        check(model)

check(BaseModel)
"""


def test_a_start_builds_no_model() -> None:
    """Building hundreds of request models would be a tenth of a start; a `LazyModel` is built when it is first used."""
    found = subprocess.run([sys.executable, "-c", BUILT], check=True, capture_output=True, text=True).stdout
    assert found.split() == []

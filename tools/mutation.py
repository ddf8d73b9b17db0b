"""Mutation testing, `make mutation`: one operator, constant or statement of a function changed, and its tests run.

A mutant that no test fails for has survived: either the tests lack a case, or the change makes no difference. The
sample is drawn by a seed; `ARGS='--only refs --count 1000'` tries all of one subject.
"""

import argparse
import ast
import gc
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from hypothesis import Phase, settings

NOT_APPLIED = 77
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "--hypothesis-profile=mutation")
settings.register_profile(
    "mutation", max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)


@dataclass(frozen=True)
class Subject:
    """Modules, and the tests that are to notice what changes in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


SUBJECTS = {
    "query": Subject(("heddle/wire/query.py",), ("tests/unit/test_query.py",)),
    "conditions": Subject(
        ("heddle/store/query/compiler.py", "heddle/store/query/sqlite.py"),
        ("tests/unit/test_condition_kinds.py", "tests/unit/test_conditions.py"),
    ),
    "refs": Subject(("heddle/wire/refs.py",), ("tests/unit/test_refs.py", "tests/unit/test_digests.py")),
    "leases": Subject(("heddle/store/control/coordination.py",), ("tests/unit/test_leases.py",)),
    "advantages": Subject(
        ("heddle/training/sequences.py",),
        ("tests/unit/training/test_advantages.py", "tests/unit/training/test_sequences.py"),
    ),
    "losses": Subject(
        ("heddle/training/losses/*.py", "heddle/training/trainer/loss.py"),
        (
            *("tests/unit/training/trainer/test_losses.py", "tests/unit/training/trainer/test_loss.py"),
            "tests/unit/training/trainer/test_dpo.py::test_the_loss_is_the_formula_and_so_is_its_gradient",
            "tests/unit/training/trainer/test_operations.py::test_a_loss_is_its_formula",
            "tests/unit/training/trainer/test_operations.py::test_stopped_gradients",
            "tests/unit/training/trainer/test_operations.py::test_a_sequence_without_marked_tokens_has_the_ratio_1",
            "tests/unit/training/trainer/test_operations.py::test_bounds_of_a_token_come_before_those_of_the_request",
        ),
    ),
    "sampler": Subject(("heddle/inference/engine/local/sampler.py",), ("tests/unit/inference/engine/test_sampler.py",)),
    "draw": Subject(
        ("heddle/inference/engine/local/draw.py",),
        ("tests/unit/inference/engine/test_draw.py", "tests/unit/inference/engine/test_sampler.py"),
    ),
    "costs": Subject(("heddle/trace/prices.py",), ("tests/unit/test_prices.py",)),
}

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.what}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change that is tried of a module, each as the text of a whole module."""
    module, text = path.relative_to(SOURCE).as_posix(), path.read_text()
    count = len(list(_places(ast.parse(text))))
    for number in range(count):
        tree = ast.parse(text)
        node, change = list(_places(tree))[number]
        before = ast.unparse(node)
        change()
        after = ast.unparse(node)
        line = getattr(node, "lineno", 0)
        yield Mutant(module, line, f"{before[:70]!r} -> {after[:70]!r}", ast.unparse(tree))


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, Callable[[], None]]]:
    """The nodes that can be changed, and how; types, errors and what stands outside of functions are left alone."""
    ignored = set(_ignored(tree))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    bodies = {id(inner): inner for function in functions for part in function.body for inner in ast.walk(part)}
    for node in bodies.values():
        if id(node) in ignored:
            continue
        match node:
            case ast.Compare(ops=[operator, *_]) if type(operator) in _SWAPS:
                yield node, lambda n=node, o=operator: n.ops.__setitem__(0, _SWAPS[type(o)]())  # type: ignore[misc]
            case ast.BoolOp() | ast.BinOp() if type(node.op) in _SWAPS and not _is_text(node):
                yield node, lambda n=node: setattr(n, "op", _SWAPS[type(n.op)]())  # type: ignore[misc]
            case ast.UnaryOp(op=ast.Not()):
                yield node, lambda n=node: setattr(n, "op", ast.UAdd()) or setattr(n, "operand", _as_bool(n.operand))  # type: ignore[misc,func-returns-value]
            case ast.UnaryOp(op=ast.USub()):
                yield node, lambda n=node: setattr(n, "op", ast.UAdd())  # type: ignore[misc]
            case ast.Constant(value=bool() as value):
                yield node, lambda n=node, v=value: setattr(n, "value", not v)  # type: ignore[misc]
            case ast.Constant(value=int() | float() as value):
                yield node, lambda n=node, v=value: setattr(n, "value", v + 1)  # type: ignore[misc]
            case ast.If() | ast.IfExp():
                yield node, lambda n=node: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))  # type: ignore[misc]
            case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
                yield node, lambda n=node: setattr(n, "value", ast.Constant(None))  # type: ignore[misc]
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield node, lambda n=node: _replace(tree, n)  # type: ignore[misc]
            case ast.Break() | ast.Continue():
                yield node, lambda n=node: _replace(tree, n)  # type: ignore[misc]


def _ignored(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            hidden.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            hidden += [node.returns, *node.decorator_list]
        if isinstance(node, ast.ClassDef):
            hidden += node.decorator_list
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.Assert):
            hidden.append(node)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            hidden.append(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            hidden.append(node)
        for top in hidden:
            if top is not None:
                yield from (id(inner) for inner in ast.walk(top))


def _is_text(node: ast.AST) -> bool:
    """Whether an operator joins texts or types, where another one is no likely mistake."""
    return any(
        isinstance(inner, ast.JoinedStr) or getattr(inner, "value", 0).__class__ is str for inner in ast.walk(node)
    ) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and "None" in ast.unparse(node))


def _as_bool(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("bool", ast.Load()), [node], [])


def _replace(tree: ast.Module, statement: ast.stmt) -> None:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and statement in body:
                body[body.index(statement)] = ast.Pass(lineno=statement.lineno, col_offset=0)


def functions_of(module: str) -> list[FunctionType]:
    """The functions of an imported module, also those that were made when it was imported."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return [found for found in gc.get_objects() if type(found) is FunctionType and found.__module__ == name]


def apply(mutant: Mutant, functions: Sequence[FunctionType]) -> bool:
    """Give functions of an imported module the code of a mutant; false where none can take what changes."""
    changed = dict(_codes(compile(mutant.source, str(SOURCE / mutant.module), "exec")))
    is_changed = False
    for function in functions:
        code = changed.get(function.__code__.co_qualname)
        if code is not None:
            if code.co_freevars != function.__code__.co_freevars:
                return False
            is_changed |= code.co_code != function.__code__.co_code or code.co_consts != function.__code__.co_consts
            function.__code__ = code
    return is_changed


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname, inner
            yield from _codes(inner)


def _pytest(*arguments: str) -> int:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return int(pytest.main([*_OPTIONS, *arguments]))


def run_tests(tests: Sequence[str], change: Callable[[], bool], seconds: float) -> bool | None:
    """Whether the tests pass in a process of their own after a change; None where that cannot be made.

    One that hangs fails them.
    """
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.setsid()
            code = _pytest(*tests) if change() else NOT_APPLIED
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code == NOT_APPLIED else code == 0
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.02)


def try_subject(name: str, count: int, seed: int, workers: int) -> tuple[int, list[Mutant]]:
    """How many mutants of a subject were tried, and those that survived; raises SystemExit if tests fail anyway."""
    subject = SUBJECTS[name]
    paths = [path for module in subject.modules for path in sorted(SOURCE.glob(module))]
    found = [mutant for path in paths for mutant in mutants_of(path)]
    chosen = random.Random(f"{seed} {name}").sample(found, min(count, len(found)))
    _pytest(*subject.tests, "--collect-only")  # imports everything once
    functions = {path: functions_of(path.relative_to(SOURCE).as_posix()) for path in paths}
    gc.freeze()  # pytest collects garbage; of what is shared with this process there is none
    began = time.monotonic()
    if not run_tests(subject.tests, lambda: True, 600):
        raise SystemExit(f"{name}: {' '.join(subject.tests)} fail without a mutant")
    limit = 30 + 10 * (time.monotonic() - began)

    def try_mutant(mutant: Mutant) -> bool | None:
        return run_tests(subject.tests, lambda: apply(mutant, functions[SOURCE / mutant.module]), limit)

    tried, survived = 0, list[Mutant]()
    with ThreadPoolExecutor(workers) as pool:
        for mutant, passed in zip(chosen, pool.map(try_mutant, chosen), strict=True):
            tried += passed is not None
            if passed:
                survived.append(mutant)
                print(f"  survived: {mutant}", flush=True)
    print(f"{name}: {tried - len(survived)} of {tried} mutants killed ({len(found)} possible)", flush=True)
    return tried, survived


def main() -> int:
    """Try a sample of each subject; 1 when fewer than nine tenths are killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--count", type=int, default=40, help="mutants of each subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    tried = 0
    survived: list[Mutant] = []
    for name in given.only:
        count, alive = try_subject(name, given.count, given.seed, given.workers)
        tried += count
        survived += alive
    print(f"{tried - len(survived)} of {tried} killed, seed {given.seed}")
    return int(len(survived) > tried / 10)


if __name__ == "__main__":
    raise SystemExit(main())

"""A search by `next` without a default may raise StopIteration, which no future of Python 3.11 takes.

A coroutine that waits for it in a thread waits for ever: the request for a call without a name had no answer.
"""

import ast
from collections import Counter
from pathlib import Path

import heddle

SRC = Path(heddle.__file__).parent
FIND_SOMETHING = {
    "cli.py": 1,
    "http/bodies.py": 1,
    "improve/timeline.py": 1,
    "inference/chat/request.py": 1,
    "inference/structured/guidance.py": 1,
    "inference/tools/calls.py": 1,
    "trace/charts.py": 1,
    "trace/otel/agent_sessions.py": 2,
    "transfer/archive_import.py": 1,
    "ui/reads/overview.py": 1,
    "ui/sign_in.py": 1,
    "wire/jsontext.py": 1,
}
"""Searches by file of which it was seen that they always find something."""


def searches_without_default(path: Path) -> int:
    """How many searches of a file may raise StopIteration."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    searches = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "next"]
    return sum(len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp) for call in searches)


def test_searches_that_may_find_nothing_have_a_default() -> None:
    found = Counter({path.relative_to(SRC).as_posix(): searches_without_default(path) for path in SRC.rglob("*.py")})
    assert {name: count for name, count in found.items() if count} == FIND_SOMETHING

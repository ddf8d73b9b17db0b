"""How long chains of rules and references may be, and what becomes of those that no rule of ours foresees."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.inference.chat import compile_process
from heddle.inference.chat.compile_process import CompileJob, compile_constraint
from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.structured import checks
from heddle.inference.structured.constraints import StructuredOutputs
from heddle.inference.structured.guidance import Constraint
from heddle.inference.structured.lark import to_lark
from heddle.inference.structured.schema import JsonStyle, compile_schema
from heddle.ipc.bounded import BoundedProcesses

pytestmark = pytest.mark.skipif(not (TINY_FOLDER / "tokenizer.json").is_file(), reason="the tiny model is not built")


def chain(count: int) -> str:
    """So many rules in a row, the first of them `start`."""
    names = ["start", *(f"r{n}" for n in range(1, count))]
    return "\n".join([*(f'{one}: "k" {two}' for one, two in pairwise(names)), f'{names[-1]}: "z"'])


def references(count: int) -> dict[str, Any]:
    """A schema of so many references in a row."""
    defs: dict[str, Any] = {f"a{n}": {"items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(count - 1)}
    return {"$defs": {**defs, f"a{count - 1}": {"type": "null"}}, "$ref": "#/$defs/a0"}


def test_the_longest_chain_of_rules() -> None:
    to_lark(chain(checks.MAX_RULE_CHAIN), "g")
    with pytest.raises(InvalidRequest, match=r"^g: 401 rules refer to each other in a row; the limit is 400"):
        to_lark(chain(checks.MAX_RULE_CHAIN + 1), "g")


def test_the_most_rules() -> None:
    many = "\n".join(f'x{n}: "a"' for n in range(checks.MAX_RULES - 1))
    to_lark(f'start: "a"\n{many}', "g")
    with pytest.raises(InvalidRequest, match=r"^g: has 5001 rules; the limit is 5000"):
        to_lark(f'start: "a"\n{many}\nx: "a"', "g")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a b: c"\n// d: e f\nx: /g: h/ "\\\\" i',
        '?start.2: a | b -> c\n!b[lazy]: "x"\na: /\\//',
        "start: <think> a\na: %json {}",
    ],
)
def test_what_is_no_rule_is_not_counted(grammar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.inference.structured.lark.MAX_RULES", 3)
    to_lark(grammar, "g")


def test_the_longest_chain_of_references() -> None:
    compile_schema(references(checks.MAX_REFERENCE_CHAIN), JsonStyle(), "s")
    with pytest.raises(InvalidRequest, match=r"^s: \$ref: 151 references follow each other; the limit is 150"):
        compile_schema(references(checks.MAX_REFERENCE_CHAIN + 1), JsonStyle(), "s")


def test_a_circle_is_no_chain() -> None:
    assert checks.chain_length(["a"], {"a": ["b", "c"], "b": ["a"], "c": ["b", "d"]}) == 3


def compiled(**outputs: Any) -> Constraint | None:
    """What a request with that constraint is given."""
    wanted = StructuredOutputs.model_validate(outputs)
    return asyncio.run(compile_constraint(CompileJob("tiny", TINY_FOLDER, 968, (0,), None, wanted, None, None, None)))


def deep(last: str, levels: int = 60) -> dict[str, Any]:
    """A schema whose reference lies so many objects deep."""
    schema: dict[str, Any] = {"$ref": f"#/$defs/{last}"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return schema


def test_a_crash_of_the_compiler_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the levels nor the references are too many, but each reference lies deep below the one before."""
    processes = BoundedProcesses(compile_process.__name__)
    monkeypatch.setattr(compile_process, "processes", processes)
    schema = {
        "$defs": {f"a{n}": deep(f"a{n + 1}") for n in range(40)} | {"a40": {"type": "null"}},
        "$ref": "#/$defs/a0",
    }
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"^structured_outputs\.json: to compile it needs more") as caught:
            compiled(json=schema)
        assert caught.value.param == "structured_outputs.json"
    assert processes.started == 1
    assert compiled(grammar=chain(20)) is not None and processes.started == 2
    processes.close()

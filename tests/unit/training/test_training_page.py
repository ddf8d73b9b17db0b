"""docs/training*.md: a row for each route, field of a job's settings, metric and scorer, as the code has them."""

import ast
import re
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from heddle.app import served_routes
from heddle.evals.scorers import KINDS
from heddle.training.config import DpoConfig, RlConfig, SftConfig
from heddle.training.losses import LOSSES
from heddle.training.messages import Started, Stepped
from heddle.training.schemas.requests import ExperimentalConfig, resolve_config
from tests.unit.training.trainer.jobs import Sampler, groups_of, make_task, perform

ROOT = Path(__file__).parent.parent.parent.parent
PAGES = [ROOT / "docs" / name for name in ("training.md", "training-protocols.md", "training-losses.md")]
LARGEST = 2**53
"""Of every integer; said once above the table."""
OTHER_ROUTES = ("/v1/system-check", "/v1/health")
_WORDS = {
    "number": "number",
    "integer": "integer",
    "boolean": "true, false",
    "string": "text",
    "object": "object of numbers",
}


@cache
def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines][1:]


def allowed(field: str) -> str:
    """What the field may be, from the model itself."""
    schema = ExperimentalConfig.model_json_schema(by_alias=False)["properties"][field]
    kind = next(option for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind["enum"])
    low, high, above = (kind.get(name) for name in ("minimum", "maximum", "exclusiveMinimum"))
    high = None if high == LARGEST else high
    bounds = ""
    if low is not None:
        bounds = f" {low:g} to {high:g}" if high is not None else f" ≥ {low:g}"
    elif above is not None:
        bounds = f" > {above:g}"
    return _WORDS[kind["type"]] + bounds


def default(field: str) -> Any:
    """What null means."""
    if field == "loss_fn":
        return resolve_config(None).loss
    found = {item.name: item.default for item in fields(RlConfig)}
    if field == "ppo":
        return found["loss"] == "ppo"
    if field == "loss_fn_config":
        return None
    assert found[field] is not MISSING
    return found[field]


def shown(value: Any) -> str:
    """A default as the page writes it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`"
    return f"{value:g}".replace("e-0", "e-")


def test_every_field_has_one_row() -> None:
    assert [row[0] for row in rows("Fields of experimental_config")] == [
        f"`{name}`" for name in ExperimentalConfig.model_fields
    ]


@pytest.mark.parametrize("field", ExperimentalConfig.model_fields)
def test_ranges_and_defaults_are_those_of_the_code(field: str) -> None:
    row = next(row for row in rows("Fields of experimental_config") if row[0] == f"`{field}`")
    assert row[1:3] == [allowed(field), shown(default(field))]
    assert row[3].endswith(".")


def test_every_loss_has_one_row() -> None:
    told = {row[0].strip("`"): row for row in rows("Losses of trajectories")}
    assert list(told) == [name for name in LOSSES if name != "cross_entropy"]
    for name, row in told.items():
        bounds = LOSSES[name].bounds
        low, high = bounds or (None, None)
        assert row[3] == ("–" if low is None else f"{shown(low)}, {'the same' if high is None else shown(high)}")
        named = [f"`{option}` ({item.default:g}" for option, item in LOSSES[name].options.items()]
        assert all(option in row[4] for option in named), name


def test_every_named_test_exists() -> None:
    missing = []
    for test in sorted({row[-1].strip("`") for row in rows("Fields of experimental_config")}):
        path, _, name = test.partition("::")
        file = ROOT / "tests" / path
        if not file.is_file() or name not in functions(file):
            missing.append(test)
    assert not missing


def functions(file: Path) -> set[str]:
    """Names of the functions at the top of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_route_has_one_row() -> None:
    there = {
        f"`{method} {route.path}`"
        for route in served_routes()
        for method in route.methods or ()
        if route.path.startswith("/v1/preview/") or route.path in OTHER_ROUTES
    }
    told = [row[0] for row in rows("Routes")]
    assert sorted(told) == sorted(there)


def test_every_row_of_a_route_says_something() -> None:
    assert all(all(row) for row in rows("Routes"))


def test_scorers_are_those_of_the_code() -> None:
    assert [row[0] for row in rows("Promotion")] == [f"`{name}`" for name in KINDS]


def test_every_figure_has_one_row(tmp_path: Path) -> None:
    body = {"trajectory_groups": groups_of(Sampler(None), 2, 3)}
    body["trajectory_groups"][0]["trajectories"][0]["initial_policy_version"] = 0
    config = replace(RlConfig(), kl_penalty_coef=0.1).as_json()
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    messages = perform(make_task(tmp_path / "rl", body, config=config))
    task = make_task(tmp_path / "sft", {"rows": [{"messages": chat}]}, kind="sft", config=SftConfig().as_json())
    messages += perform(task)
    pair = {"chosen": chat, "rejected": [chat[0], {"role": "assistant", "content": "no"}]}
    task = make_task(tmp_path / "dpo", {"rows": [pair]}, kind="dpo", config=DpoConfig().as_json())
    messages += perform(task)
    found = {(name, "start") for message in messages if isinstance(message, Started) for name in message.data}
    found |= {(name, "step") for message in messages if isinstance(message, Stepped) for name in message.data}
    told = [(row[0].strip("`"), where) for row in rows("Metrics") for where in row[1].split(", ")]
    assert sorted(told) == sorted(found)

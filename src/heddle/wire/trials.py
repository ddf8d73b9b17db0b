"""Trials: the calls of an evaluation that each answer and score one row once (contract: trace-evals, sections 4, 5).

A trial is a direct child of the call that shows the evaluation run; its own children are the call of the model and
those of the scorers. The three SDKs and this server write them in slightly different shapes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from heddle.wire import refs
from heddle.wire.calls import CallRow, Usage
from heddle.wire.query import Operation

T = TypeVar("T")
EVALUATE, PREDICT_AND_SCORE, SUMMARIZE = (
    f"Evaluation.{name}" for name in ("evaluate", "predict_and_score", "summarize")
)
TRIAL_OPS = frozenset({PREDICT_AND_SCORE, "Evaluation.predictAndScore"})
_TABLE_ROW = re.compile(re.escape(refs.INTERNAL) + "[^/]+/table/[^/]+/id/([^/]+)")
OUTPUT_KEYS = ("output", "model_output")
"""Where the output of a trial holds that of the model: Python, TypeScript."""


def referenced_row(example: Any) -> str | None:
    """The digest of the dataset row whose ref this is; None for anything else.

    TypeScript names a row that was part of a stored dataset by the ref of its table.
    """
    if not isinstance(example, str):
        return None
    dataset, _, digest = example.partition(refs.ROWS)
    if dataset and digest and "/" not in digest:
        return digest
    found = _TABLE_ROW.fullmatch(example)
    return found[1] if found else None


def row_digest(example: Any) -> str:
    """The digest of the row that a trial is about: that of a dataset row's ref, else that of the value itself."""
    return referenced_row(example) or refs.value_digest(example)


def split_rows(trials: Sequence[T], per_row: int) -> list[Sequence[T]]:
    """The trials about one content, oldest first, by the rows that hold it.

    Rows of a dataset may be equal; SDKs go through all of them once per trial.
    """
    copies = -(-len(trials) // max(1, per_row))
    return [trials[copy::copies] for copy in range(copies)]


def trials_of(evaluation: Any) -> int:
    """How often an evaluation (the value of its object) has each row answered."""
    said = evaluation.get("trials") if isinstance(evaluation, dict) else None
    return said if isinstance(said, int) and said > 0 else 1


def row_key(digest: str, copy: int) -> str:
    """What tells a row from others of the same content: the first has the digest alone."""
    return f"{digest}~{copy + 1}" if copy else digest


class Step(NamedTuple):
    """A child of a trial, as far as finding the call of the model needs it."""

    rid: int
    started_at: int
    op_name: str
    is_score: bool
    self_value: Any
    """Its `inputs.self`."""


def predict_step(steps: Sequence[Step], model: Any) -> Step | None:
    """The call of the model among the children of a trial, oldest first; `model` is the trial's `inputs.model`.

    Its `self` is the model, or its name says so; a model that is a plain function is the op itself.
    """
    candidates = [step for step in steps if not step.is_score]
    for step in candidates:
        name = refs.operation_name(step.op_name).lower()
        if step.self_value == model or "predict" in name or "invoke" in name:
            return step
    return next((step for step in candidates if step.op_name == model), None)


@dataclass(frozen=True, slots=True)
class TrialSort:
    """One term of the order of rows; `evaluation` None looks at all of them."""

    path: str
    descending: bool
    evaluation: str | None = None
    mode: Literal["value", "difference"] = "value"


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """A condition on rows, on the values of one evaluation or of all."""

    query: Operation
    evaluation: str | None = None


@dataclass(frozen=True, slots=True)
class TrialsQuery:
    """Which rows of which evaluations (call ids; `project` internal), in which order.

    Filters of one evaluation hold together; `any_filter` lets one evaluation's be enough. `values` are the JSON texts
    of the refs that stand in scores in the place of numbers.
    """

    project: str
    evaluations: tuple[str, ...]
    intersection: bool = False
    filters: tuple[TrialFilter, ...] = ()
    any_filter: bool = True
    sort: tuple[TrialSort, ...] = ()
    limit: int | None = None
    offset: int = 0
    values: Mapping[str, str] = field(default_factory=dict)


class TrialsPage(NamedTuple):
    """Row digests in order, and how many rows there are on all pages."""

    row_digests: list[str]
    total: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial with its calls; `predict` is among the `children`, `usage` that of the predict call (or its own)."""

    row_digest: str
    evaluation: str
    call: CallRow
    children: list[CallRow]
    predict: CallRow | None
    total_tokens: int | None
    usage: list[Usage]


class TrialStats(NamedTuple):
    """What a sum over trials needs of one; `scores` is JSON text with refs replaced, usage as in `Trial`.

    `seconds` (of the call of the model), `has_answer` and `call_id` are known only where they were asked for.
    """

    evaluation: str
    row_digest: str
    started_at: int
    scores: str | None
    total_tokens: int | None
    priced_at: int
    usage: Sequence[Usage]
    seconds: float | None = None
    has_answer: bool = True
    call_id: str = ""

"""Trials of evaluations as clients read them: one by one, and summed by evaluation."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson

from heddle.errors import InvalidRequest
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import CallRow, CostOf, Usage
from heddle.wire.inference import sum_of_costs
from heddle.wire.jsontypes import Json
from heddle.wire.means import with_one_more
from heddle.wire.trials import OUTPUT_KEYS, Trial, TrialStats

RUNNABLE = "wandb.runnable."
ValueType = Literal["binary", "continuous", "text"]
_VALUE_TYPES: dict[type, ValueType] = {bool: "binary", int: "continuous", float: "continuous", str: "text"}
_NO_NAME = re.compile(r"[^\w._]+")
_RUN_OF_SIGNS = re.compile(r"[._-]{2,}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A child of a trial that may have made a score; names as people read them."""

    id: str
    op: str
    scorer: str | None
    """The name of the object behind `inputs.self`."""
    is_marked: bool

    @classmethod
    def of(cls, row: CallRow) -> "Candidate":
        """What a stored call says about itself."""
        attributes = _object(row.attributes)
        weave, noted = attributes.get("weave"), attributes.get("_weave_eval_meta")
        marks = [weave.get("score") == "true", weave.get("kind") == "scorer"] if isinstance(weave, dict) else []
        is_marked = any(marks) or (isinstance(noted, dict) and bool(noted.get("score")))
        return cls(row.id, refs.operation_name(row.op_name), _name(_object(row.inputs).get("self")), is_marked)

    @property
    def looks_like_scorer(self) -> bool:
        """True when it is marked as one, or its op says so."""
        op = self.op.lower()
        return self.is_marked or ".score" in op or "scorer" in op


def _object(text: str | None) -> Json:
    value = orjson.loads(text) if text else None
    return value if isinstance(value, dict) else {}


def _name(ref: Any) -> str | None:
    if not isinstance(ref, str) or not ref.startswith(refs.INTERNAL):
        return None
    try:
        return refs.parse(ref).name
    except InvalidRequest:
        return None


def match_by_name(keys: Iterable[str], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Call ids by score, where a scorer object or an op has exactly that name, or the name that SDKs make of it."""
    found: dict[str, str] = {}
    for key in keys:
        made = _RUN_OF_SIGNS.sub("-", _NO_NAME.sub("-", key)).strip("-_")
        by_object = (item for item in candidates if item.scorer == key)
        by_op = (item for item in candidates if item.op in (key, f"{key}.score"))
        by_made = (
            item for item in candidates if made and made in (item.scorer, item.op, item.op.removesuffix(".score"))
        )
        match = next(by_object, None) or next(by_op, None) or next(by_made, None)
        if match is not None:
            found[key] = match.id
    return found


def match_by_feedback(
    keys: Iterable[str], candidates: Sequence[Candidate], rows: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Call ids by score, where the call left feedback under that name on the call of the model."""
    known = {item.id for item in candidates}
    calls = {row["feedback_type"]: str(row["call_ref"] or "").rpartition("/")[2] for row in rows}
    return {key: calls[RUNNABLE + key] for key in keys if calls.get(RUNNABLE + key) in known}


def match_by_likeness(keys: Iterable[str], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Call ids by score, where the op of a scorer holds the name or is held by it."""
    found: dict[str, str] = {}
    for key in keys:
        name = key.lower()
        for item in candidates:
            op = item.op.lower()
            if item.looks_like_scorer and (name in op or op in name):
                found[key] = item.id
                break
    return found


class TrialView:
    """A trial taken apart; `unmatched` are the scores whose calls are not known for certain."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        inputs, output = _parsed(trial.call.inputs), _parsed(trial.call.output)
        self.example = inputs.get("example") if isinstance(inputs, dict) else None
        self._output: Json = output if isinstance(output, dict) else {}
        scores = self._output.get("scores")
        self._scores: Json = scores if isinstance(scores, dict) else {}
        others = [child for child in trial.children if child is not trial.predict]
        self._candidates = [Candidate.of(child) for child in others]
        self._calls = match_by_name(self._scores, self._candidates)
        self.spans = _spans(trial)

    @property
    def unmatched(self) -> list[str]:
        """Scores without a call so far; none where the trial has no children to look at."""
        return [key for key in self._scores if key not in self._calls] if self._candidates else []

    def match(self, feedback: Sequence[Mapping[str, Any]]) -> None:
        """Find the calls of the scores that are left, by the feedback on the call of the model and by likeness."""
        self._calls |= match_by_feedback(self.unmatched, self._candidates, feedback)
        self._calls |= match_by_likeness(self.unmatched, self._candidates)

    def as_fields(self, cost: float | None) -> Json:
        """The entry of the answer."""
        predict = self.trial.predict
        return {
            "predict_and_score_call_id": self.trial.call.id,
            "predict_call_id": None if predict is None else predict.id,
            "model_output": next((self._output[key] for key in OUTPUT_KEYS if key in self._output), None),
            "scores": self._scores,
            "model_latency_seconds": self._latency(),
            "total_tokens": self.trial.total_tokens,
            "total_cost": cost,
            "scorer_call_ids": {key: self._calls[key] for key in self._scores if key in self._calls},
            "genai_span_ref": self.spans,
        }

    def _latency(self) -> float | None:
        predict = self.trial.predict
        if predict is not None and predict.ended_at is not None:
            return (predict.ended_at - predict.started_at) / times.SECOND
        latency = self._output.get("model_latency")
        latency = latency.get("mean") if isinstance(latency, dict) else latency
        return float(latency) if isinstance(latency, (int, float)) and not isinstance(latency, bool) else None


def _parsed(text: str | None) -> Any:
    return None if text is None else jsontext.loads(text.encode())


def _spans(trial: Trial) -> list[Json] | None:
    """The spans of agents that the trial's calls name, each once."""
    found: dict[tuple[str, str], Json] = {}
    for row in (trial.predict, trial.call):
        for item in (_named_spans(row.attributes) or _named_spans(row.summary)) if row is not None else ():
            found.setdefault((item["trace_id"], item["span_id"]), item)
    return list(found.values()) or None


def _named_spans(text: str | None) -> list[Json]:
    if text is None or '"genai_span_ref"' not in text:
        return []
    weave = _parsed(text).get("weave")
    listed = weave.get("genai_span_ref") if isinstance(weave, dict) else None
    return [
        {"trace_id": item["trace_id"], "span_id": item["span_id"]}
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, dict) and isinstance(item.get("trace_id"), str) and isinstance(item.get("span_id"), str)
    ]


def call_about(row: CallRow) -> Json:
    """What the call of an evaluation run says in a summary."""
    inputs = _parsed(row.inputs)
    inputs = inputs if isinstance(inputs, dict) else {}
    return {
        "evaluation_ref": _text(inputs.get("self") or inputs.get("this")),
        "model_ref": _text(inputs.get("model")),
        "display_name": row.display_name or None,
        "trace_id": row.trace_id,
        "started_at": times.to_datetime(row.started_at).isoformat(),
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(slots=True)
class EvalResultsScorerStats:
    """One dimension of a scorer: a number, a boolean or a text at one path of its scores."""

    scorer_key: str
    path: str | None = None
    value_type: ValueType | None = None
    """That of the first value."""
    trial_count: int = 0
    numeric_count: int = 0
    numeric_mean: float | None = None
    pass_true_count: int = 0
    pass_known_count: int = 0
    pass_rate: float | None = None
    pass_signal_coverage: float | None = None

    def add(self, value: bool | float | str) -> None:
        """One more trial."""
        self.trial_count += 1
        kind = type(value)
        if kind is bool:
            self.pass_known_count += 1
            self.pass_true_count += value is True
        elif kind is not str:
            self.numeric_mean = with_one_more(self.numeric_mean or 0.0, self.numeric_count, float(value))
            self.numeric_count += 1

    def close(self) -> "EvalResultsScorerStats":
        """With the shares of all trials."""
        self.pass_rate = self.pass_true_count / self.pass_known_count if self.pass_known_count else None
        self.pass_signal_coverage = self.pass_known_count / self.trial_count
        return self


@dataclass(slots=True)
class Sums:
    """One evaluation; `first` is where its first trial stands, by row digest and start."""

    evaluation: str
    first: tuple[str, int]
    trials: int = 0
    tokens: int | None = None
    cost: float | None = None
    dimensions: dict[tuple[str, str | None], EvalResultsScorerStats] = field(default_factory=dict)

    def add(self, stats: TrialStats, cost: float | None) -> None:
        """One more trial."""
        self.trials += 1
        if stats.total_tokens is not None:
            self.tokens = (self.tokens or 0) + stats.total_tokens
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        if stats.scores is not None:
            for scorer, value in orjson.loads(stats.scores).items():
                self._add(scorer, None, value)

    def _add(self, scorer: str, path: str | None, value: Any) -> None:
        kind = type(value)
        if kind is dict:
            for name, item in value.items():
                self._add(scorer, name if path is None else f"{path}.{name}", item)
        elif kind in _VALUE_TYPES:
            stats = self.dimensions.get((scorer, path))
            if stats is None:
                stats = self.dimensions[scorer, path] = EvalResultsScorerStats(scorer, path, _VALUE_TYPES[kind])
            stats.add(value)

    def as_fields(self, about: Json) -> Json:
        """The sums as clients read them, with what the evaluation's own call says."""
        return {
            "evaluation_call_id": self.evaluation,
            "trial_count": self.trials,
            "scorer_stats": [asdict(stats.close()) for stats in self.dimensions.values()],
            "predict_total_tokens": self.tokens,
            "predict_total_cost": self.cost,
            **about,
        }


def sum_trials(prices: CostOf | None) -> Callable[[Iterable[TrialStats]], list[Sums]]:
    """A fold that sums trials by evaluation, in the order of their first rows; with prices also their cost."""

    def fold(trials: Iterable[TrialStats]) -> list[Sums]:
        found: dict[str, Sums] = {}
        for stats in trials:
            sums = found.get(stats.evaluation)
            if sums is None:
                sums = found[stats.evaluation] = Sums(stats.evaluation, (stats.row_digest, stats.started_at))
            sums.add(stats, None if prices is None else cost_of(stats.usage, stats.priced_at, prices))
        return sorted(found.values(), key=lambda sums: sums.first)

    return fold


def cost_of(usage: Iterable[Usage], at: int, prices: CostOf | None) -> float | None:
    """What the tokens of a call come to; None where no model of it has a price."""
    return None if prices is None else sum_of_costs(prices(entry, at) for entry in usage)

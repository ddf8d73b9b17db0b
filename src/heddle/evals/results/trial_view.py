"""One trial as clients read it."""

from collections.abc import Mapping, Sequence
from typing import Any

from heddle.evals.results.scorer_calls import Candidate, alike, by_feedback, certain
from heddle.wire import jsontext, times
from heddle.wire.calls import CallRow
from heddle.wire.jsontypes import Json
from heddle.wire.trials import OUTPUT_KEYS, Trial


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
        self._calls = certain(self._scores, self._candidates)
        self.spans = _spans(trial)

    @property
    def unmatched(self) -> list[str]:
        """Scores without a call so far; none where the trial has no children to look at."""
        return [key for key in self._scores if key not in self._calls] if self._candidates else []

    def match(self, feedback: Sequence[Mapping[str, Any]]) -> None:
        """Find the calls of the scores that are left, by the feedback on the call of the model and by likeness."""
        self._calls |= by_feedback(self.unmatched, self._candidates, feedback)
        self._calls |= alike(self.unmatched, self._candidates)

    def shown(self, cost: float | None) -> Json:
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

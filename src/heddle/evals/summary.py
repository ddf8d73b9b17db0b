"""What the scores of many rows come to, in the shape in which SDKs summarise evaluations."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]


def summarise(scores: Sequence[Json], latencies: Iterable[float]) -> Json:
    """Per scorer the summary of its values, and the mean latency in seconds."""
    names = dict.fromkeys(name for row in scores for name in row)
    summary = {name: _summary([row[name] for row in scores if name in row]) for name in names}
    made: Json = {name: value for name, value in summary.items() if value is not None}
    known = list(latencies)
    return made | ({"model_latency": {"mean": sum(known) / len(known)}} if known else {})


def _summary(values: Sequence[Any]) -> Json | None:
    """Truths as count and fraction, numbers as their mean, objects key by key; None where there is nothing to sum."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return {"true_count": sum(known), "true_fraction": sum(known) / len(known)}
    if known and all(isinstance(value, int | float) and math.isfinite(value) for value in known):
        return {"mean": sum(known) / len(known)}
    if known and all(isinstance(value, dict) for value in known):
        keys = dict.fromkeys(key for value in known for key in value)
        parts = {key: _summary([value[key] for value in known if key in value]) for key in keys}
        return {key: part for key, part in parts.items() if part is not None} or None
    return None

"""Two runs of an evaluation, row by row: every scorer, latency, cost, tokens and failures."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.gate.bootstrap import Interval, interval
from heddle.remote import Project
from heddle.wire.jsontypes import Json

SCORE, ERRORS = "score", "error_share"
OF_TRIALS = {"latency": "model_latency_seconds", "cost": "total_cost", "tokens": "total_tokens"}
"""The measures that are no scores, by the field of a trial; seconds, US dollars and tokens."""
_PAGE = 1_000
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """What one run made of one row: the mean over its trials of each measure that it has."""

    digest: str
    values: Values
    outputs: Sequence[Any]
    example: Any = None
    """The row itself or its ref, where it was asked for."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure in both runs, over the rows that have it in both."""

    name: str
    baseline: float | None
    run: float | None
    rows: int
    interval: Interval | None

    @property
    def difference(self) -> float | None:
        """The run's value minus the baseline's."""
        return None if self.run is None or self.baseline is None else self.run - self.baseline


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run against its baseline."""

    run_id: str
    baseline_id: str
    common: int
    only_run: int
    only_baseline: int
    measures: Mapping[str, Measured]
    pairs: Sequence[tuple[Row, Row]] = field(default=(), repr=False)
    """The common rows: the run's, the baseline's."""
    warnings: Sequence[str] = ()

    @property
    def shown(self) -> list[Measured]:
        """The measures without those that only repeat a scorer, as its one path does."""
        names = list(self.measures)
        paths = {name: [path for path in names if path.startswith(f"{name}.")] for name in names}
        repeated = {found[0] for found in paths.values() if len(found) == 1}
        return [measured for name, measured in self.measures.items() if name not in repeated]


def compare(project: Project, run_id: str, baseline_id: str, with_examples: bool = False) -> Comparison:
    """Read both runs and compare them over their common rows; raises HeddleError when they cannot be read."""
    runs: dict[str, dict[str, Row]] = {run_id: {}, baseline_id: {}}
    warnings = list[str]()
    for row in _rows(project, [run_id, baseline_id], with_examples, warnings):
        for part in row["evaluations"]:
            if part["evaluation_call_id"] in runs:
                runs[part["evaluation_call_id"]][row["row_digest"]] = row_of(row, part["trials"])
    return compared(run_id, runs[run_id], baseline_id, runs[baseline_id], warnings)


def compared(
    run_id: str, run: Mapping[str, Row], baseline_id: str, baseline: Mapping[str, Row], warnings: Sequence[str] = ()
) -> Comparison:
    """The comparison of two runs' rows, by row digest."""
    pairs = [(run[digest], baseline[digest]) for digest in run if digest in baseline]
    names = _in_order({name for pair in pairs for row in pair for name in row.values})
    measures = {name: _measured(name, pairs) for name in names}
    common = len(pairs)
    return Comparison(
        run_id, baseline_id, common, len(run) - common, len(baseline) - common, measures, pairs, tuple(warnings)
    )


def _rows(project: Project, ids: Sequence[str], with_examples: bool, warnings: list[str]) -> Iterator[Json]:
    body = {"evaluation_call_ids": list(ids), "include_raw_data_rows": with_examples, "include_costs": True}
    body["limit"], offset = _PAGE, 0
    while True:
        answer = project.remote.post(project.v2("/eval_results/query"), {**body, "offset": offset})
        warnings += [text for text in answer.get("warnings") or () if text not in warnings]
        yield from answer["rows"]
        offset += _PAGE
        if not answer["rows"] or offset >= answer["total_rows"]:
            return


def row_of(row: Json, trials: Sequence[Json]) -> Row:
    """A row as one run answered it; a failed answer counts 0 for every score of which more is better."""
    scored = [_scores(trial) for trial in trials if not _failed(trial)]
    names = {name for values in scored for name in values}
    failed = len(trials) - len(scored)
    values = {}
    for name in names:
        zeros = [] if _is_distance(name) else [0.0] * failed
        values[name] = _mean([*(item[name] for item in scored if name in item), *zeros])
    for name, key in OF_TRIALS.items():
        if known := [float(trial[key]) for trial in trials if isinstance(trial.get(key), int | float)]:
            values[name] = _mean(known)
    if trials:
        values[ERRORS] = failed / len(trials)
    outputs = [trial.get("model_output") for trial in trials]
    return Row(row["row_digest"], values, outputs, row.get("raw_data_row"))


def _failed(trial: Json) -> bool:
    return trial.get("model_output") is None and not trial.get("scores")


def _scores(trial: Json) -> dict[str, float]:
    """Every path inside a scorer, every scorer as the mean of its own, and `score`: the mean over the scorers."""
    values: dict[str, float] = {}
    means = []
    for scorer, value in (trial.get("scores") or {}).items():
        leaves = dict(_leaves(scorer, value))
        values |= leaves
        if counted := [number for name, number in leaves.items() if not _is_distance(name)]:
            means.append(_mean(counted))
            values[scorer] = means[-1]
    return values | ({SCORE: _mean(means)} if means else {})


def less_is_better(name: str) -> bool:
    """True for latency, cost, tokens, the share of failed answers, and distances."""
    return name in (ERRORS, *OF_TRIALS) or _is_distance(name)


def _is_distance(name: str) -> bool:
    """True for a path such as `levenshtein_distance`: less is better there, so that it enters no mean of scores."""
    leaf = name.rpartition(".")[2]
    return leaf == "distance" or leaf.endswith("_distance")


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, int | float) and math.isfinite(value):
        yield path, float(value)


def _in_order(names: Iterable[str]) -> list[str]:
    """`score` first, then the scorers by name, then what is no score."""
    last = [*OF_TRIALS, ERRORS]
    return sorted(names, key=lambda name: (name != SCORE, last.index(name) + 1 if name in last else 0, name))


def _measured(name: str, pairs: Sequence[tuple[Row, Row]]) -> Measured:
    known = [(run, base) for run, base in pairs if _has(run, name) and _has(base, name)]
    ours = [run.values.get(name, 0.0) for run, _ in known]
    theirs = [base.values.get(name, 0.0) for _, base in known]
    if not known:
        return Measured(name, None, None, 0, None)
    spread = interval([run - base for run, base in zip(ours, theirs, strict=True)])
    return Measured(name, _mean(theirs), _mean(ours), len(known), spread)


def _has(row: Row, name: str) -> bool:
    """True when a row has a measure; one whose every answer failed has each score, as 0."""
    return name in row.values or (row.values.get(ERRORS) == 1 and not less_is_better(name))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)

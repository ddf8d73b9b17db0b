"""Two runs of an evaluation, row by row: what differs, how sure that is, and what of it counts as a regression."""

import math
import operator
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from heddle.ci.runs import StoredObject, list_runs, list_unscored, trials_per_row
from heddle.errors import InvalidRequest
from heddle.remote import Project
from heddle.wire.jsontypes import Json
from heddle.wire.means import mean
from heddle.wire.trials import row_key, split_rows

RESAMPLES = 10_000
FEWEST_RESAMPLES = 1_000
_MOST_DRAWS = 20_000_000
CONFIDENCE = 0.95
SEED = 20_240_607


class Interval(NamedTuple):
    """Where the mean lies with the confidence asked for."""

    low: float
    high: float


def resamples_for(rows: int) -> int:
    """10,000, and fewer where rows are so many that they are hardly needed: at least 1,000."""
    return max(FEWEST_RESAMPLES, min(RESAMPLES, _MOST_DRAWS // max(1, rows)))


def bootstrap_interval(
    differences: Sequence[float], confidence: float = CONFIDENCE, seed: int = SEED
) -> Interval | None:
    """The interval of the mean; the same for the same differences and seed. None for no differences."""
    if not differences:
        return None
    if all(value == differences[0] for value in differences):
        return Interval(differences[0], differences[0])
    generator = random.Random(seed)
    count = len(differences)
    draws = range(resamples_for(count))
    means = sorted(mean(generator.choices(differences, k=count)) for _ in draws)
    tail = (1 - confidence) / 2
    return Interval(_quantile(means, tail), _quantile(means, 1 - tail))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


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
    scorers: Mapping[str, str] = field(default_factory=dict)
    """The scorer of each measure that is a score."""


@dataclass(frozen=True, slots=True)
class Measurement:
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
    measures: Mapping[str, Measurement]
    pairs: Sequence[tuple[Row, Row]] = field(default=(), repr=False)
    """The common rows: the run's, the baseline's."""
    warnings: Sequence[str] = ()

    @property
    def is_first(self) -> bool:
        """True for a run without a baseline, which is shown beside itself."""
        return self.run_id == self.baseline_id

    @property
    def distinct(self) -> list[Measurement]:
        """The measures without those that only repeat a scorer, as its one path does."""
        names = list(self.measures)
        paths = {name: [path for path in names if path.startswith(f"{name}.")] for name in names}
        repeated = {found[0] for found in paths.values() if len(found) == 1}
        return [measured for name, measured in self.measures.items() if name not in repeated]


def find_latest_run(project: Project, of: StoredObject) -> str | None:
    """The id of the newest run that ended well and in which an answer came; None before the first."""
    found = (str(run["id"]) for run in list_runs(project, of.ref, status="success"))
    return next((run_id for run_id in found if _has_answers(project, run_id)), None)


def _has_answers(project: Project, run_id: str) -> bool:
    """False for a run in which every answer failed: nothing can be compared with it."""
    rows = _rows(project, [run_id], False, [])
    trials = (trial for row in rows for part in row["evaluations"] for trial in part["trials"])
    return not all(map(is_failed, trials))


def compare(project: Project, run_id: str, baseline_id: str, with_examples: bool = False) -> Comparison:
    """Read both runs and compare them over their common rows; raises HeddleError when they cannot be read."""
    runs: dict[str, dict[str, Row]] = {run_id: {}, baseline_id: {}}
    per_row = {found: trials_per_row(project, found) for found in runs}
    warnings = [text for found in runs for text in list_unscored(project, found)]
    for row in _rows(project, [run_id, baseline_id], with_examples, warnings):
        for part in row["evaluations"]:
            if (found := part["evaluation_call_id"]) in runs:
                for copy, trials in enumerate(split_rows(part["trials"], per_row[found])):
                    runs[found][row_key(row["row_digest"], copy)] = read_row(row, trials)
    return compare_rows(run_id, runs[run_id], baseline_id, runs[baseline_id], warnings)


def compare_rows(
    run_id: str, run: Mapping[str, Row], baseline_id: str, baseline: Mapping[str, Row], warnings: Sequence[str] = ()
) -> Comparison:
    """The comparison of two runs' rows, by row."""
    pairs = [(run[key], baseline[key]) for key in run if key in baseline]
    rows = [row for pair in pairs for row in pair]
    if all(0 <= value <= 1 for row in rows for value in _counted_scores(row).values()):
        pairs = [(_with_means(ours), _with_means(theirs)) for ours, theirs in pairs]
    names = _sort_names({name for pair in pairs for row in pair for name in row.values})
    measures = {name: _compare_measure(name, pairs) for name in names}
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


def read_row(row: Json, trials: Sequence[Json]) -> Row:
    """A row as one run answered it; a failed answer has no score, the share of errors counts it."""
    scored = [list(scores_of(trial)) for trial in trials if not is_failed(trial)]
    failed = len(trials) - len(scored)
    listed: dict[str, list[float]] = {}
    for _, name, value in (item for scores in scored for item in scores):
        listed.setdefault(name, []).append(float(value))
    values = {name: mean(found) for name, found in listed.items()}
    for name, key in OF_TRIALS.items():
        if known := [float(trial[key]) for trial in trials if isinstance(trial.get(key), int | float)]:
            values[name] = mean(known)
    if trials:
        values[ERRORS] = failed / len(trials)
    outputs = [trial.get("model_output") for trial in trials]
    scorers = {name: scorer for scores in scored for scorer, name, _ in scores}
    return Row(row["row_digest"], values, outputs, row.get("raw_data_row"), scorers)


def is_failed(trial: Json) -> bool:
    """True for an answer that did not come: neither an output nor a score."""
    return trial.get("model_output") is None and not trial.get("scores")


def scores_of(trial: Json) -> Iterator[tuple[str, str, bool | float]]:
    """The scorer, the name and the value of every number and truth in the scores of a trial."""
    for scorer, value in (trial.get("scores") or {}).items():
        for name, leaf in _leaves(scorer, value):
            yield scorer, name, leaf


def _counted_scores(row: Row) -> Values:
    """The scores of which more is better."""
    return {name: row.values[name] for name in row.scorers if not _is_distance(name)}


def _with_means(row: Row) -> Row:
    """The same with each scorer as the mean of its values and `score` as the mean over the scorers, all from 0 to 1."""
    by_scorer: dict[str, list[float]] = {}
    for name, value in _counted_scores(row).items():
        by_scorer.setdefault(row.scorers[name], []).append(value)
    means = {scorer: mean(values) for scorer, values in by_scorer.items()}
    return replace(row, values={**row.values, **means, **({SCORE: mean(means.values())} if means else {})})


def less_is_better(name: str) -> bool:
    """True for latency, cost, tokens, the share of failed answers, and distances."""
    return name in (ERRORS, *OF_TRIALS) or _is_distance(name)


def _is_distance(name: str) -> bool:
    """True for a path such as `levenshtein_distance`: less is better there, so that it enters no mean of scores."""
    leaf = name.rpartition(".")[2]
    return leaf == "distance" or leaf.endswith("_distance")


def _leaves(path: str, value: Any) -> Iterator[tuple[str, bool | float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, int | float) and math.isfinite(value):
        yield path, value


def _sort_names(names: Iterable[str]) -> list[str]:
    """`score` first, then the scorers by name, then what is no score."""
    last = [*OF_TRIALS, ERRORS]
    return sorted(names, key=lambda name: (name != SCORE, last.index(name) + 1 if name in last else 0, name))


def _compare_measure(name: str, pairs: Sequence[tuple[Row, Row]]) -> Measurement:
    known = [(run, base) for run, base in pairs if name in run.values and name in base.values]
    ours = [run.values[name] for run, _ in known]
    theirs = [base.values[name] for _, base in known]
    if not known:
        return Measurement(name, None, None, 0, None)
    spread = bootstrap_interval([run - base for run, base in zip(ours, theirs, strict=True)])
    return Measurement(name, mean(theirs), mean(ours), len(known), spread)


_FORM = re.compile(
    r"\s*(?:(?P<statistic>mean|low|high)\s*\(\s*(?P<inner>[^()<>]+?)\s*\)|(?P<measure>[^()<>=]+?))"
    r"\s*(?P<operator><=|>=|<|>)\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*(?P<percent>%?)\s*"
)
_DIGITS = 12
_NO_SCORE = "`score` is the mean over scorers whose values are all between 0 and 1"
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition that counts as a regression."""

    text: str
    statistic: str
    """`difference`, `mean`, `low` or `high`."""
    measure: str
    operator: str
    number: float
    is_percent: bool

    def check(self, comparison: Comparison) -> "Verdict":
        """Whether it holds; raises InvalidRequest for a measure that the runs do not have."""
        measured = comparison.measures.get(self.measure)
        if measured is None:
            known = ", ".join(comparison.measures)
            why = f"; {_NO_SCORE}" if self.measure == SCORE else ""
            raise InvalidRequest(
                f"the condition {self.text!r} uses an unknown measure {self.measure!r}; the runs have: {known}{why}"
            )
        value = _statistic(measured, self.statistic)
        if value is None:
            raise InvalidRequest(f"the condition {self.text!r} has no value: no row has {self.measure} in both runs")
        if self.is_percent:
            value = _share(value, measured.baseline) * 100
        # 0.75 - 0.8 is a little below -0.05 in binary, which no one means by `< -0.05`.
        value = round(value, _DIGITS)
        return Verdict(self, value, _OPERATORS[self.operator](value, self.number))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition and what it came to."""

    condition: Condition
    value: float
    has_failed: bool

    @property
    def sentence(self) -> str:
        """The condition, and the value that decided."""
        unit = "%" if self.condition.is_percent else ""
        return f"{self.condition.text}: it is {self.value:.6g}{unit}"


def parse_condition(text: str) -> Condition:
    """A condition as it is typed; raises InvalidRequest saying how one is written."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"the condition {text!r} is not valid; expected a condition such as 'score < -0.02', 'latency > 10%' or "
            "'mean(score) < 0.8'"
        )
    measure = (found["inner"] or found["measure"]).strip().strip("'\"")
    statistic = found["statistic"] or "difference"
    if statistic == "mean" and found["percent"]:
        raise InvalidRequest(f"the condition {text!r}: % is not allowed with mean(), which is not a difference")
    return Condition(
        text.strip(), statistic, measure, found["operator"], float(found["number"]), bool(found["percent"])
    )


def _statistic(measured: Measurement, statistic: str) -> float | None:
    if statistic == "mean":
        return measured.run
    if statistic == "difference":
        return measured.difference
    if measured.interval is None:
        return None
    return measured.interval.low if statistic == "low" else measured.interval.high


def _share(value: float, of: float | None) -> float:
    if not of:
        return math.copysign(math.inf, value) if value else 0.0
    return value / abs(of)

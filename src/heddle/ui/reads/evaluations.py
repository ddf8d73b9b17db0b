"""The values of evaluation runs row by row, without inputs and answers: what comparing 10,000 rows needs at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson
from fastapi import Response

from heddle.ci.comparison import ERRORS, OF_TRIALS, is_failed, read_row, scores_of
from heddle.errors import InvalidRequest
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import PricesDep, Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallsQuery, CostOf, Filter
from heddle.wire.inference import sum_of_costs
from heddle.wire.jsontypes import Json
from heddle.wire.trials import TrialsQuery, TrialStats, row_key, split_rows, trials_of

router = group("Pages")
MOST_RUNS = 100
_DIGITS = 6
_STATISTICS = ("true_count", "true_fraction", "mean")
_CLOSE = 1e-9


@dataclass(slots=True)
class _Figure:
    """One measure over the answers of a run that have it."""

    count: int = 0
    total: float = 0.0
    true: int | None = 0
    """How many are true; None where one is no truth."""
    low: float = 0.0
    high: float = 0.0

    def add(self, value: bool | float) -> None:
        self.low = float(min(self.low, value) if self.count else value)
        self.high = float(max(self.high, value) if self.count else value)
        self.count += 1
        self.total += value
        self.true = None if self.true is None or type(value) is not bool else self.true + value

    def shown(self, summed: Json | None, errors: int) -> Json:
        """The figure, as the summary of the run has it where there is one, and whether it follows from the answers.

        The fraction of a truth may be one of all answers, those that failed among them.
        """
        own, of, said = self.total / self.count, self.count, _said(summed)
        if said is not None and self.true is not None and not _is_close(own, said):
            whole = self.true / (self.count + errors)
            own, of = (whole, self.count + errors) if _is_close(whole, said) else (own, of)
        found: Json = {"value": own if said is None else said, "own": own, "of": of, "count": self.count}
        found |= {"low": self.low, "high": self.high} | ({} if self.true is None else {"true": self.true})
        return found if said is None else {**found, "agrees": _is_close(own, said)}


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= _CLOSE * max(1.0, abs(one))


@dataclass(slots=True)
class _Run:
    """A run: how often it answered each row, where its rows lie in its data, what its SDK summed up, and its rows."""

    trials: int = 1
    places: Mapping[str, Sequence[int]] = field(default_factory=dict)
    summary: dict[str, Json] = field(default_factory=dict)
    rows: dict[str, Mapping[str, float]] = field(default_factory=dict)
    order: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    """By row: its index in the data, where it is known, and when it was first answered."""
    calls: dict[str, list[str]] = field(default_factory=dict)
    """By row: its trials, where other rows have the same content."""
    figures: dict[str, _Figure] = field(default_factory=dict)
    answers: int = 0
    errors: int = 0

    def add(self, digest: str, trials: Sequence[TrialStats], prices: CostOf) -> None:
        """Take in all trials about one content."""
        parts, places = split_rows(trials, self.trials), self.places.get(digest, ())
        for copy, part in enumerate(parts):
            key, listed = row_key(digest, copy), [_trial(trial, prices) for trial in part]
            self.rows[key] = read_row({"row_digest": digest}, listed).values
            self.order[key] = (places[copy] if copy < len(places) else None, part[0].started_at)
            if len(parts) > 1:
                self.calls[key] = [trial.call_id for trial in part]
            for trial in listed:
                self._count(trial)

    def _count(self, trial: Json) -> None:
        self.answers += 1
        found = {name: trial[key] for name, key in OF_TRIALS.items() if trial[key] is not None}
        if is_failed(trial):
            self.errors += 1
        else:
            found |= {name: value for _, name, value in scores_of(trial)}
        for name, value in found.items():
            self.figures.setdefault(name, _Figure()).add(value)


@router.get("/_ui/api/evaluation_values/{entity}/{project}", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def evaluation_values(
    entity: str, project: str, runs: str, caller: Reader, store: StoreDep, prices: PricesDep, columns: bool = True
) -> Response:
    """Every measure of runs (ids with commas) by row of their data, as the regression gate reads it, null for none.

    Without `columns` only the figures of each run: rows, answers, errors, measures and the summary that its SDK wrote.
    """
    internal = caller.open(f"{entity}/{project}")
    chosen = tuple(dict.fromkeys(run for run in runs.split(",") if run))
    if not 0 < len(chosen) <= MOST_RUNS:
        raise InvalidRequest(f"runs must name 1 to {MOST_RUNS} runs")
    cost_of, found = await prices(internal), await _about(store, internal, chosen, columns)

    def fold(trials: Iterable[TrialStats]) -> Json:
        for (run, digest), part in groupby(trials, key=lambda trial: (trial.evaluation, trial.row_digest)):
            found[run].add(digest, list(part), cost_of)
        return _shown(found, columns)

    own = f"{refs.INTERNAL}{internal}/"
    wanted = {ref for ref in await store.trials.refs_in_scores(internal, chosen) if ref.startswith(own)}
    stored = await store.objects.values(internal, wanted) if wanted else {}
    query = TrialsQuery(internal, chosen, values={ref: text for ref, text in stored.items() if text is not None})
    return answer(await store.trials.fold(query, True, True, fold, with_answers=True))


async def _about(store: Store, project: str, ids: Sequence[str], with_places: bool) -> dict[str, _Run]:
    """What the calls of runs and their evaluations say of them."""
    found = {call_id: _Run() for call_id in ids}
    evaluations: dict[str, str] = {}
    chosen = CallsQuery(project, Filter(call_ids=tuple(ids)), columns=frozenset(("inputs", "output")))
    async for calls in store.calls.stream(chosen):
        for call in calls:
            inputs, output = (orjson.loads(text or "null") for text in (call.inputs, call.output))
            ref = (inputs.get("self") or inputs.get("this")) if isinstance(inputs, dict) else None
            if isinstance(ref, str):
                evaluations[call.id] = ref
            for name, statistic, value in _summed(output):
                found[call.id].summary.setdefault(name, {})[statistic] = value
    values = await _objects(store, project, set(evaluations.values()))
    of_data = {ref: value.get("dataset") for ref, value in values.items()} if with_places else {}
    places = await _places(store, project, {ref for ref in of_data.values() if isinstance(ref, str)})
    for call_id, ref in evaluations.items():
        found[call_id].trials = trials_of(values.get(ref))
        found[call_id].places = places.get(of_data.get(ref) or "", {})
    return found


async def _objects(store: Store, project: str, wanted: set[str]) -> dict[str, Json]:
    """The values of objects of the project by ref; other things are left out."""
    own = {ref for ref in wanted if ref.startswith(f"{refs.INTERNAL}{project}/object/")}
    stored = await store.objects.values(project, own) if own else {}
    found = {ref: orjson.loads(text) for ref, text in stored.items() if text is not None}
    return {ref: value for ref, value in found.items() if isinstance(value, dict)}


async def _places(store: Store, project: str, datasets: set[str]) -> dict[str, dict[str, list[int]]]:
    """By dataset: at which indexes each row digest stands."""
    found: dict[str, dict[str, list[int]]] = {}
    for ref, value in (await _objects(store, project, datasets)).items():
        digest = str(value.get("rows")).rpartition("/")[2]
        count = await store.tables.count(project, digest)
        rows = await store.tables.digests_at(project, digest, range(count)) if count else {}
        for index, row in sorted(rows.items()):
            found.setdefault(ref, {}).setdefault(row, []).append(index)
    return found


def _summed(output: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, float]]:
    """The numbers in the summary of a run: what of, which statistic (empty for one of the evaluation's own), value."""
    if isinstance(output, dict):
        for name, value in output.items():
            yield from _summed(value, (*path, name))
    elif type(output) in (int, float) and path:
        of, statistic = (path[:-1], path[-1]) if path[-1] in _STATISTICS and len(path) > 1 else (path, "")
        yield ".".join(of), statistic, output


def _said(summed: Json | None) -> float | None:
    """The figure of a measure in the summary of its run."""
    found = summed or {}
    return found.get("true_fraction", found.get("mean"))


def _shown(runs: Mapping[str, _Run], columns: bool) -> Json:
    """Rows in one order for all runs, and a column per run and measure."""
    order: dict[str, tuple[int | None, int]] = {}
    for run in reversed(list(runs.values())):
        order |= run.order
    keys = sorted(order, key=lambda key: (order[key][0] is None, order[key])) if columns else []
    shown = {"rows": keys, "indexes": [order[key][0] for key in keys]}
    return {**shown, "runs": [_run(call_id, run, keys) for call_id, run in runs.items()]}


def _run(call_id: str, run: _Run, keys: Sequence[str]) -> Json:
    figures = {name: run.figures[name].shown(run.summary.get(name), run.errors) for name in sorted(run.figures)}
    if run.answers:
        share = run.errors / run.answers
        figures[ERRORS] = {"value": share, "own": share, "of": run.answers, "count": run.answers, "low": 0, "high": 1}
    shown: Json = {"id": call_id, "rows": len(run.rows), "trials": run.answers, "errors": run.errors}
    shown |= {"figures": figures, "summary": run.summary}
    if keys:
        names = sorted({name for values in run.rows.values() for name in values})
        empty: Mapping[str, float] = {}
        shown["values"] = {name: [_round(run.rows.get(key, empty).get(name)) for key in keys] for name in names}
        shown["calls"] = run.calls
    return shown


def _round(value: float | None) -> float | int | None:
    if value is None:
        return None
    return int(value) if value.is_integer() else float(f"{value:.{_DIGITS}g}")


def _trial(trial: TrialStats, prices: CostOf) -> Json:
    """A trial as the gate reads it from the public interface."""
    return {
        "model_output": trial.has_answer or None,
        "scores": None if trial.scores is None else orjson.loads(trial.scores),
        "model_latency_seconds": trial.seconds,
        "total_tokens": trial.total_tokens,
        "total_cost": sum_of_costs(prices(entry, trial.priced_at) for entry in trial.usage),
    }

"""The values of evaluation runs row by row, without inputs and answers: what comparing 10,000 rows needs at once."""

from collections.abc import Iterable
from itertools import groupby
from statistics import fmean

import orjson
from fastapi import Response

from heddle.errors import InvalidRequest
from heddle.gate.comparison import ERRORS, less_is_better, row_of
from heddle.http import PricesDep, Reader, StoreDep, answer, group
from heddle.wire import refs
from heddle.wire.inference import CostOf, cost_of_tokens, sum_of_costs
from heddle.wire.jsontypes import Json
from heddle.wire.trials import TrialsQuery, TrialStats

router = group("Pages")
MOST_RUNS = 100
_DIGITS = 6


@router.get("/_ui/api/evaluation_values/{entity}/{project}", include_in_schema=False)
async def evaluation_values(
    entity: str, project: str, runs: str, caller: Reader, store: StoreDep, prices: PricesDep, columns: bool = True
) -> Response:
    """Every measure of runs (ids with commas) by row, as the regression gate computes it; null where there is none.

    Without `columns` only the means over the rows.
    """
    internal = caller.open(f"{entity}/{project}")
    chosen = tuple(dict.fromkeys(run for run in runs.split(",") if run))
    if not 0 < len(chosen) <= MOST_RUNS:
        raise InvalidRequest(f"runs must name 1 to {MOST_RUNS} runs")
    cost_of = await prices(internal)

    def fold(trials: Iterable[TrialStats]) -> Json:
        return _values(trials, chosen, cost_of, columns)

    own = f"{refs.INTERNAL}{internal}/"
    wanted = {ref for ref in await store.trials.refs_in_scores(internal, chosen) if ref.startswith(own)}
    stored = await store.objects.values(internal, wanted) if wanted else {}
    query = TrialsQuery(internal, chosen, values={ref: text for ref, text in stored.items() if text is not None})
    return answer(await store.trials.fold(query, True, True, fold, with_answers=True))


def _values(trials: Iterable[TrialStats], runs: tuple[str, ...], prices: CostOf, columns: bool) -> Json:
    """Rows in one order for all runs, and a column per run and measure."""
    found: dict[str, dict[str, dict[str, float]]] = {run: {} for run in runs}
    counts = dict.fromkeys(runs, 0)
    for (run, digest), group_ in groupby(trials, key=lambda trial: (trial.evaluation, trial.row_digest)):
        listed = [_trial(trial, prices) for trial in group_]
        counts[run] += len(listed)
        found[run][digest] = dict(row_of({"row_digest": digest}, listed).values)
    for rows in found.values():
        _count_failures(rows, found)
    digests = sorted({digest for rows in found.values() for digest in rows}) if columns else []
    return {"rows": digests, "runs": [_run(run, rows, digests, counts[run]) for run, rows in found.items()]}


def _count_failures(rows: dict[str, dict[str, float]], all_runs: dict[str, dict[str, dict[str, float]]]) -> None:
    """Give rows whose every answer failed 0 for each score of the run; where all failed, for those of the others."""
    names = {name for values in rows.values() for name in values}
    if all(less_is_better(name) for name in names):
        names = {name for others in all_runs.values() for values in others.values() for name in values}
    zeros = {name: 0.0 for name in names if not less_is_better(name)}
    for values in rows.values():
        if values.get(ERRORS) == 1:
            values.update({name: value for name, value in zeros.items() if name not in values})


def _run(run: str, rows: dict[str, dict[str, float]], digests: list[str], trials: int) -> Json:
    names = sorted({name for values in rows.values() for name in values})
    empty: dict[str, float] = {}
    shown: Json = {"id": run, "rows": len(rows), "trials": trials}
    shown["means"] = {name: fmean(values[name] for values in rows.values() if name in values) for name in names}
    if digests:
        shown["values"] = {name: [_short(rows.get(digest, empty).get(name)) for digest in digests] for name in names}
    return shown


def _short(value: float | None) -> float | int | None:
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
        "total_cost": _cost(trial, prices),
    }


def _cost(trial: TrialStats, prices: CostOf) -> float | None:
    """What the answer came to; None where no model of it has a price."""
    return sum_of_costs(cost_of_tokens(prices, entry, trial.priced_at) for entry in trial.usage)

"""Tools about evaluations: what there is, which runs were made, and where two of them differ."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from heddle.call_summary import name_of
from heddle.errors import HeddleError
from heddle.gate import running
from heddle.gate.comparison import SCORE, Comparison, Row, compare, less_is_better
from heddle.mcp.text import bounded, cut, figures
from heddle.remote import Project
from heddle.wire.jsontypes import Json

_MOST_RUNS = 6


def list_evaluations(
    project: Project,
    evaluation: Annotated[
        str | None, Field(description="Only runs of this evaluation: name, name:version or full ref.")
    ] = None,
    limit: Annotated[int, Field(description="How many runs to show.", ge=1, le=100)] = 15,
) -> str:
    """List the evaluations of a project and their newest runs, with each run's id, model, status and summary of scores.
    compare_evaluations takes the ids."""
    lines = []
    ref = None
    if evaluation is None:
        chosen = {"base_object_classes": ["Evaluation"], "latest_only": True}
        found = project.post("/objs/query", filter=chosen, limit=100)["objs"]
        lines.append(f"{len(found)} evaluations{' (the first 100)' if len(found) == 100 else ''}:")
        lines += [f"- {item['object_id']} v{item['version_index']}: {_parts(item['val'])}" for item in found]
    else:
        ref = running.evaluation(project, evaluation).ref
    runs = running.runs_of(project, ref, limit=limit)
    lines.append(f"newest runs (at most {limit}):" if runs else "no runs")
    return bounded([*lines, *(_run(call) for call in runs)])


def _parts(value: Any) -> str:
    scorers = value.get("scorers") if isinstance(value, dict) else None
    names = [_short(item) for item in scorers] if isinstance(scorers, list) else []
    dataset = value.get("dataset") if isinstance(value, dict) else None
    return f"dataset {_short(dataset)}, scorers {', '.join(names) or 'none'}"


def _short(ref: Any) -> str:
    """`name:version` of a ref, the beginning of anything else."""
    return cut(ref.rpartition("/")[2] if isinstance(ref, str) else ref, 80)


def _run(call: Json) -> str:
    evaluation = call["inputs"].get("self") or call["inputs"].get("this")
    return (
        f"- run {call['id']} {call['started_at']} {name_of(call)} [{figures(call)}]\n"
        f"    evaluation {_short(evaluation)}, model {_short(call['inputs'].get('model'))}\n"
        f"    summary: {cut(call['exception'] or call['output'], 600)}"
    )


def compare_evaluations(
    project: Project,
    runs: Annotated[
        list[str],
        Field(description="Ids of runs; the first is the baseline that the others are compared with.", min_length=2),
    ],
    worst: Annotated[int, Field(description="How many of the rows that fell most to show.", ge=0, le=50)] = 5,
    measure: Annotated[
        str,
        Field(description="What decides which rows fell most: 'score', a scorer, 'scorer.path', 'latency', 'cost'."),
    ] = SCORE,
) -> str:
    """Compare runs of evaluations row by row: means per scorer, latency, cost, tokens and share of failed answers, the
    difference to the baseline with a 95 % interval (paired bootstrap), and the rows that fell most."""
    if len(runs) > _MOST_RUNS:
        raise HeddleError(f"at most {_MOST_RUNS} runs can be compared at once, got {len(runs)}")
    for run_id in runs:
        running.checked_run(project, run_id)
    lines = []
    for run_id in runs[1:]:
        comparison = compare(project, run_id, runs[0], with_examples=True)
        lines += [*_means(comparison), *_worst(project, comparison, measure, worst)]
    return bounded(lines)


def _means(comparison: Comparison) -> list[str]:
    lines = [f"run {comparison.run_id} against baseline {comparison.baseline_id}, {comparison.common} rows in both"]
    if comparison.only_run or comparison.only_baseline:
        lines.append(f"[{comparison.only_run} rows only in the run, {comparison.only_baseline} only in the baseline]")
    for measured in comparison.shown:
        spread = measured.interval
        if measured.difference is not None and spread is not None:
            lines.append(
                f"- {measured.name}: {measured.baseline:.4g} -> {measured.run:.4g}, difference "
                f"{measured.difference:+.4g} (95 % {spread.low:+.4g} to {spread.high:+.4g}, {measured.rows} rows)"
            )
    return lines + [f"warning: {text}" for text in comparison.warnings]


def _worst(project: Project, comparison: Comparison, measure: str, most: int) -> list[str]:
    if comparison.measures and measure not in comparison.measures:
        raise HeddleError(f"there is no measure {measure!r}; the runs have {', '.join(comparison.measures)}")
    rises = less_is_better(measure)
    known = [pair for pair in comparison.pairs if all(measure in row.values for row in pair)]
    fallen = sorted(known, key=lambda pair: _change(pair, measure), reverse=rises)[:most]
    fallen = [pair for pair in fallen if (_change(pair, measure) > 0 if rises else _change(pair, measure) < 0)]
    head = f"rows that got worst by {measure}:" if fallen else f"no row got worse by {measure}"
    examples = _examples(project, [pair[0].example for pair in fallen])
    return [head, *map(_row, fallen, examples, [measure] * len(fallen))] if most else []


def _examples(project: Project, listed: Sequence[Any]) -> list[Any]:
    """The rows, those that are refs read."""
    refs = [item for item in listed if isinstance(item, str) and item.startswith(running.EXTERNAL)]
    if not refs:
        return list(listed)
    values = project.remote.post("/refs/read_batch", {"refs": refs})["vals"]
    known = dict(zip(refs, values, strict=True))
    return [known.get(item, item) if isinstance(item, str) else item for item in listed]


def _change(pair: Sequence[Row], measure: str) -> float:
    return pair[0].values[measure] - pair[1].values[measure]


def _row(pair: tuple[Row, Row], example: Any, measure: str) -> str:
    ours, theirs = pair
    return (
        f"- row {ours.digest}: {theirs.values[measure]:.4g} -> {ours.values[measure]:.4g}; "
        f"row: {cut(example, 300)}\n"
        f"    baseline answered: {cut(_answers(theirs), 300)}\n"
        f"    run answered: {cut(_answers(ours), 300)}"
    )


def _answers(row: Row) -> Any:
    return row.outputs[0] if len(row.outputs) == 1 else list(row.outputs)

"""Tools about published objects, datasets and evaluations, and about conversations of agents."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field

from heddle.ci.comparison import ERRORS, Comparison, Row, compare, less_is_better
from heddle.ci.runs import EXTERNAL, check_run, find_evaluation, find_object, list_runs
from heddle.errors import HeddleError
from heddle.mcp.text import call_metrics, cut, cut_part, follow_path, join_lines
from heddle.remote import Project
from heddle.wire.call_summary import name_of
from heddle.wire.jsontypes import Json

Kind = Literal["dataset", "model", "prompt", "scorer", "evaluation", "op", "any"]
_CLASSES = {"dataset": "Dataset", "model": "Model", "prompt": "Prompt", "scorer": "Scorer", "evaluation": "Evaluation"}


def list_objects(
    project: Project,
    kind: Annotated[Kind, Field(description="Which kind of object.")] = "any",
    name: Annotated[str | None, Field(description="Show every version of the object of this name.")] = None,
    limit: Annotated[int, Field(description="How many to show.", ge=1, le=200)] = 50,
    offset: Annotated[int, Field(description="How many to skip.", ge=0)] = 0,
) -> str:
    """List published objects (datasets, models, prompts, scorers, evaluations, ops): the latest version of each, or all
    versions of one. read_object shows one."""
    chosen: Json = {"latest_only": name is None, "object_ids": [name] if name else None}
    if kind == "op":
        chosen["is_op"] = True
    elif kind != "any":
        chosen["base_object_classes"] = [_CLASSES[kind]]
    newest = [{"field": "created_at", "direction": "desc"}]
    found = project.post(
        "/objs/query", filter=chosen, limit=limit + 1, offset=offset, sort_by=newest, metadata_only=True
    )["objs"]
    more = f"; offset={offset + limit} shows more" if len(found) > limit else ""
    lines = [
        f"- {item['object_id']}:{item['digest']} v{item['version_index']} "
        f"{item['leaf_object_class'] or item['base_object_class'] or item['kind']} {item['created_at']}"
        for item in found[:limit]
    ]
    return join_lines([f"{len(lines)} objects, newest first{more}" if lines else "no objects", *lines])


def read_object(
    project: Project,
    name: Annotated[str, Field(description="name (latest version), name:version, name:v3, name:alias, or a full ref.")],
    path: Annotated[str, Field(description="Only what this dotted path leads to, such as 'messages.0.content'.")] = "",
    offset: Annotated[int, Field(description="Where in a long value to begin, in characters.", ge=0)] = 0,
    max_characters: Annotated[int, Field(description="How much of it to show.", ge=100, le=20_000)] = 6_000,
    rows: Annotated[int, Field(description="Of a dataset: how many rows to show.", ge=0, le=100)] = 10,
    first_row: Annotated[int, Field(description="Of a dataset: the first row to show.", ge=0)] = 0,
) -> str:
    """Read one published object; of a dataset also a page of its rows."""
    found = find_object(project, name)
    if found is None:
        raise HeddleError(f"object {name!r} not found in {project.id}")
    value = follow_path(found.value, path) if path else found.value
    lines = [f"{found.ref}{' at ' + path if path else ''}:", cut_part(value, offset, max_characters)]
    table = found.value.get("rows")
    if isinstance(table, str) and "/table/" in table and rows and not path:
        lines += _rows(project, table, rows, first_row)
    return join_lines(lines)


def _rows(project: Project, table: str, limit: int, offset: int) -> list[str]:
    home, _, digest = table.removeprefix(EXTERNAL).partition("/table/")
    body = {"project_id": home, "digest": digest}
    count = project.remote.post("/table/query_stats", body)["count"]
    found = project.remote.post("/table/query", {**body, "limit": limit, "offset": offset})["rows"]
    lines = [f"rows {offset} to {offset + len(found) - 1} of {count}:" if found else f"no rows here; {count} in all"]
    return lines + [f"- {place} {row['digest']}: {cut(row['val'], 600)}" for place, row in enumerate(found, offset)]


def search_conversations(
    project: Project,
    text: Annotated[str, Field(description="Text that a message contains; empty: any message.")] = "",
    agent: Annotated[str | None, Field(description="Only conversations of this agent.")] = None,
    limit: Annotated[int, Field(description="How many conversations to show.", ge=1, le=100)] = 20,
    offset: Annotated[int, Field(description="How many to skip.", ge=0)] = 0,
) -> str:
    """Search the messages of agents' conversations (OpenTelemetry agents and chats): which conversations, with what was
    said. read_conversation shows one."""
    answer = project.post("/agents/search", query=text, agent_name=agent, limit=limit, offset=offset)
    lines = [f"{len(answer['results'])} of {answer['total_conversations']} conversations"]
    for item in answer["results"]:
        title = item["conversation_name"] or item["conversation_id"]
        lines.append(f"- {title} id={item['conversation_id']} agent={item['agent_name']} last {item['last_activity']}")
        lines += [
            f"    {message['role'] or '?'}: {cut(message['content_preview'])} (trace={message['trace_id']})"
            for message in item["matched_messages"][:3]
        ]
    return join_lines(lines)


def read_conversation(
    project: Project,
    conversation_id: Annotated[str, Field(description="The id of the conversation.")],
    turns: Annotated[int, Field(description="How many turns to show.", ge=1, le=50)] = 10,
    offset: Annotated[int, Field(description="How many turns to skip.", ge=0)] = 0,
) -> str:
    """Read a conversation of an agent as a chat: what the user said, which tools ran, what was answered."""
    answer = project.post("/agents/conversations/chat", conversation_id=conversation_id, limit=turns, offset=offset)
    if not answer["turns"]:
        raise HeddleError(f"no turns found for conversation {quote(conversation_id)[:200]!r} in {project.id}")
    more = f"; offset={offset + turns} shows more" if answer["has_more"] else ""
    lines = [f"{len(answer['turns'])} of {answer['total_turns']} turns{more}"]
    for turn in answer["turns"]:
        lines.append(f"turn trace={turn['trace_id']} {turn['status_code']} {turn['total_duration_ms']} ms")
        lines += [text for message in turn["messages"] if (text := _message(message))]
    return join_lines(lines)


def _message(message: Json) -> str | None:
    found: Any = message.get(message["type"])
    if not found:
        return None
    if message["type"] == "tool_call":
        return f"  tool {found['tool_name']}({cut(found['tool_arguments'], 300)}) -> {cut(found['tool_result'], 300)}"
    shown = found.get("text") or {key: value for key, value in found.items() if value}
    return f"  {message['type'].removesuffix('_message')}: {cut(shown, 800)}"


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
        ref = find_evaluation(project, evaluation).ref
    runs = list_runs(project, ref, limit=limit)
    lines.append(f"newest runs (at most {limit}):" if runs else "no runs")
    return join_lines([*lines, *(_run_line(call) for call in runs)])


def _parts(value: Any) -> str:
    scorers = value.get("scorers") if isinstance(value, dict) else None
    names = [_short(item) for item in scorers] if isinstance(scorers, list) else []
    dataset = value.get("dataset") if isinstance(value, dict) else None
    return f"dataset {_short(dataset)}, scorers {', '.join(names) or 'none'}"


def _short(ref: Any) -> str:
    """`name:version` of a ref, the beginning of anything else."""
    return cut(ref.rpartition("/")[2] if isinstance(ref, str) else ref, 80)


def _run_line(call: Json) -> str:
    evaluation = call["inputs"].get("self") or call["inputs"].get("this")
    return (
        f"- run {call['id']} {call['started_at']} {name_of(call)} [{call_metrics(call)}]\n"
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
        Field(description="What decides which rows fell most: 'scorer', 'scorer.path', 'latency'; empty: the first."),
    ] = "",
) -> str:
    """Compare runs of evaluations row by row: means per scorer, latency, cost, tokens and share of failed answers, the
    difference to the baseline with a 95 % interval (paired bootstrap), and the rows that fell most."""
    if len(runs) > _MOST_RUNS:
        raise HeddleError(f"at most {_MOST_RUNS} runs can be compared at once, got {len(runs)}")
    for run_id in runs:
        check_run(project, run_id)
    lines = []
    for run_id in runs[1:]:
        comparison = compare(project, run_id, runs[0], with_examples=True)
        lines += [*_means(comparison), *_worst_rows(project, comparison, measure, worst)]
    return join_lines(lines)


def _means(comparison: Comparison) -> list[str]:
    lines = [f"run {comparison.run_id} against baseline {comparison.baseline_id}, {comparison.common} rows in both"]
    if comparison.only_run or comparison.only_baseline:
        lines.append(f"[{comparison.only_run} rows only in the run, {comparison.only_baseline} only in the baseline]")
    for measured in comparison.distinct:
        spread = measured.interval
        if measured.difference is not None and spread is not None:
            lines.append(
                f"- {measured.name}: {measured.baseline:.4g} -> {measured.run:.4g}, difference "
                f"{measured.difference:+.4g} (95 % {spread.low:+.4g} to {spread.high:+.4g}, {measured.rows} rows)"
            )
    return lines + [f"warning: {text}" for text in comparison.warnings]


def _worst_rows(project: Project, comparison: Comparison, measure: str, most: int) -> list[str]:
    measure = measure or next((name for name in comparison.measures if not less_is_better(name)), ERRORS)
    if comparison.measures and measure not in comparison.measures:
        raise HeddleError(f"unknown measure {measure!r}; the runs have {', '.join(comparison.measures)}")
    rises = less_is_better(measure)
    known = [pair for pair in comparison.pairs if all(measure in row.values for row in pair)]
    fallen = sorted(known, key=lambda pair: _change(pair, measure), reverse=rises)[:most]
    fallen = [pair for pair in fallen if (_change(pair, measure) > 0 if rises else _change(pair, measure) < 0)]
    head = f"rows that got worst by {measure}:" if fallen else f"no row got worse by {measure}"
    examples = _examples(project, [pair[0].example for pair in fallen])
    return [head, *map(_pair_line, fallen, examples, [measure] * len(fallen))] if most else []


def _examples(project: Project, listed: Sequence[Any]) -> list[Any]:
    """The rows, those that are refs read."""
    refs = [item for item in listed if isinstance(item, str) and item.startswith(EXTERNAL)]
    if not refs:
        return list(listed)
    values = project.remote.post("/refs/read_batch", {"refs": refs})["vals"]
    known = dict(zip(refs, values, strict=True))
    return [known.get(item, item) if isinstance(item, str) else item for item in listed]


def _change(pair: Sequence[Row], measure: str) -> float:
    return pair[0].values[measure] - pair[1].values[measure]


def _pair_line(pair: tuple[Row, Row], example: Any, measure: str) -> str:
    ours, theirs = pair
    return (
        f"- row {ours.digest}: {theirs.values[measure]:.4g} -> {ours.values[measure]:.4g}; "
        f"row: {cut(example, 300)}\n"
        f"    baseline answered: {cut(_answers(theirs), 300)}\n"
        f"    run answered: {cut(_answers(ours), 300)}"
    )


def _answers(row: Row) -> Any:
    return row.outputs[0] if len(row.outputs) == 1 else list(row.outputs)

"""A stored evaluation, read whole: its rows as prompts, its scorers, its trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.evals.judge import CLASS_NAME as JUDGE
from heddle.evals.judge import JudgeScorer, judge
from heddle.evals.scorers import BuiltinScorer, Scorer, builtin
from heddle.store.base import Store
from heddle.wire import refs

Json = dict[str, Any]
MOST_ROWS = 10_000
MOST_TRIALS = 100
_PROMPTS = ("prompt", "input", "question")
_ROWS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the dataset, and what the model is asked."""

    example: Any
    """Its ref, or the row itself where it is stored inside the evaluation."""
    value: Json
    messages: list[Json]
    tools: list[Json] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """An evaluation that can be run."""

    ref: str
    """Internal, its version a digest."""
    name: str
    rows: Sequence[Row]
    scorers: Sequence[Scorer]
    trials: int


class PlanReader:
    """Reads evaluations with one caller's rights."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store
        self._caller = caller

    async def read(self, ref: str) -> Plan:
        """The evaluation behind a ref in either form; raises HeddleError for what cannot be read or run."""
        target, value = await self._object(ref, "The evaluation")
        if "Evaluation" not in (value.get("_class_name"), value.get("_type")):
            raise InvalidRequest(f"{refs.to_external(ref)[:300]} is no Evaluation but {value.get('_class_name')}")
        name = str(value.get("name") or target.name)
        if value.get("preprocess_model_input") is not None:
            raise InvalidRequest(f"The evaluation {name} has a preprocess_model_input, and stored code is not run here")
        scorers = await self._scorers(value.get("scorers"), name)
        rows = await self._rows(value.get("dataset"), name)
        _check_columns(rows, scorers, name)
        pinned = refs.object_ref(target.project, "object", target.name, target.version)
        return Plan(pinned, name, rows, scorers, _trials(value.get("trials"), name))

    async def _object(self, ref: str, what: str) -> tuple[refs.Ref, Json]:
        """The object behind a ref, which comes back with its version as a digest."""
        target = refs.parse(refs.to_internal(ref) if ref.startswith(refs.EXTERNAL) else ref)
        project = refs.external_project(target.project)
        if target.kind != "object" or target.edges or project is None:
            raise InvalidRequest(f"{what} {ref[:300]!r} is no ref of an object")
        if not self._caller.may_read(project):
            raise Forbidden(f"The key of user '{self._caller.user}' may not read objects of '{project}'")
        found = await self._store.objects.read(target.project, target.name, target.version)
        if found is None or found.deleted_at is not None:
            raise NotFound(
                f"{what} {refs.to_external(ref)[:300] if ref.startswith(refs.INTERNAL) else ref[:300]} is not found"
            )
        value = orjson.loads(found.val or "null")
        if not isinstance(value, dict):
            raise InvalidRequest(f"{what} {target.name} is no object with fields")
        return refs.Ref(target.project, target.kind, target.name, found.digest), value

    async def _scorers(self, listed: Any, name: str) -> list[Scorer]:
        """The scorers of an evaluation; raises InvalidRequest with all those that cannot be run here."""
        if not isinstance(listed, list) or not listed:
            raise InvalidRequest(f"The evaluation {name} has no scorers, so nothing says whether a policy is better")
        made, refused = list[Scorer](), list[str]()
        for place, item in enumerate(listed):
            scorer = await self._scorer(item, place)
            if isinstance(scorer, str):
                refused.append(scorer)
            else:
                made.append(scorer)
        names = [scorer.name for scorer in made]
        refused += [f"two are named {twice}" for twice in sorted({item for item in names if names.count(item) > 1})]
        if refused:
            raise InvalidRequest(f"The evaluation {name} has scorers that cannot be run here: {'; '.join(refused)}")
        return made

    async def _scorer(self, item: Any, place: int) -> Scorer | str:
        """A scorer; a text when it cannot be run here, naming it and saying why."""
        if isinstance(item, dict):
            made = await self._made(str(item.get("name") or f"scorer_{place}"), "", item)
            return f"number {place}: {made}" if isinstance(made, str) else made
        if not isinstance(item, str) or not item.startswith((refs.INTERNAL, refs.EXTERNAL)):
            return f"number {place} is no scorer"
        external = refs.to_external(item) if item.startswith(refs.INTERNAL) else item
        if "/object/" not in external:
            return f"{external} (a function, and stored code is not run here)"
        target, value = await self._object(item, "The scorer")
        ref = refs.object_ref(target.project, "object", target.name, target.version)
        made = await self._made(target.name, ref, value)
        return f"{external} ({made})" if isinstance(made, str) else made

    async def _made(self, name: str, ref: str, value: Json) -> BuiltinScorer | JudgeScorer | str:
        if JUDGE not in (value.get("_class_name"), value.get("_type")):
            return builtin(name, ref, value)
        model = await self._followed(value.get("model"), "The model of a judge")
        prompt = await self._followed(value.get("scoring_prompt"), "The prompt of a judge")
        return judge(name, ref, value, model if isinstance(model, dict) else {}, prompt)

    async def _followed(self, value: Any, what: str) -> Any:
        """The object that a value refers to, or the value itself."""
        if isinstance(value, str) and value.startswith((refs.INTERNAL, refs.EXTERNAL)):
            return (await self._object(value, what))[1]
        return value

    async def _rows(self, dataset: Any, name: str) -> list[Row]:
        home, values = "", dataset
        if isinstance(dataset, str):
            target, values = await self._object(dataset, "The dataset")
            home = refs.object_ref(target.project, "object", target.name, target.version)
        listed = values.get("rows") if isinstance(values, dict) else values
        found = await self._table(listed, home) if isinstance(listed, str) else _inline(listed)
        if not found:
            raise InvalidRequest(f"The dataset of the evaluation {name} has no rows")
        if len(found) > MOST_ROWS:
            raise InvalidRequest(f"The dataset of the evaluation {name} has more than {MOST_ROWS} rows")
        return [_row(example, value, place, name) for place, (example, value) in enumerate(found)]

    async def _table(self, ref: str, home: str) -> list[tuple[Any, Any]]:
        target = refs.parse(refs.to_internal(ref) if ref.startswith(refs.EXTERNAL) else ref)
        project = refs.external_project(target.project)
        if target.kind != "table" or project is None:
            raise InvalidRequest("The rows of the dataset are no table")
        if not self._caller.may_read(project):
            raise Forbidden(f"The key of user '{self._caller.user}' may not read tables of '{project}'")
        rows = await self._store.tables.query(target.project, target.name, limit=MOST_ROWS + 1)
        values = [(row.digest, orjson.loads(row.val)) for row in rows]
        return [(f"{home}{refs.ROWS}{digest}" if home else value, value) for digest, value in values]


def _inline(listed: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in listed] if isinstance(listed, list) else []


def _row(example: Any, value: Any, place: int, name: str) -> Row:
    if not isinstance(value, dict):
        raise InvalidRequest(f"Row {place} of the dataset of {name} is no object")
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise InvalidRequest(f"Row {place} of the dataset of {name}: tools is no list")
    messages = _messages(value)
    if messages is None:
        raise InvalidRequest(
            f"Row {place} of the dataset of {name} gives no prompt: it needs `messages` (a list of chat messages), "
            f"or a text in one of {', '.join(_PROMPTS)}"
        )
    return Row(example, value, messages, tools or None)


def _messages(row: Mapping[str, Any]) -> list[Json] | None:
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(item, dict) and "role" in item for item in messages):
        return messages
    text = next((row[key] for key in _PROMPTS if isinstance(row.get(key), str)), None)
    return None if messages is not None or text is None else [{"role": "user", "content": text}]


def _check_columns(rows: Sequence[Row], scorers: Sequence[Scorer], name: str) -> None:
    needed = [(scorer.name, column) for scorer in scorers for column in scorer.needs]
    for scorer_name, column in needed:
        missing = [str(place) for place, row in enumerate(rows) if row.value.get(column) is None]
        if missing:
            places = ", ".join(missing[:_ROWS_SHOWN]) + (" and more" if len(missing) > _ROWS_SHOWN else "")
            raise InvalidRequest(
                f"The scorer {scorer_name} of {name} needs the column {column!r} (see its column_map), and it is "
                f"missing in rows {places} of the dataset"
            )


def _trials(value: Any, name: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TRIALS:
        raise InvalidRequest(f"The evaluation {name} has trials {value!r}; 1 to {MOST_TRIALS} are possible")
    return value

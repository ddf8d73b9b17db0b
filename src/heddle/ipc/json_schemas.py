"""JSON Schemas that clients wrote: checked and applied in a process that may die of it."""

import json
from collections.abc import Sequence
from typing import Any

from heddle.ipc.bounded import BoundedProcesses, TooMuchWork, answer_jobs
from heddle.text_cache import cache_texts
from heddle.wire.jsontypes import Json

_KEPT_BYTES = 1 << 20
processes = BoundedProcesses(__name__, kept_bytes=_KEPT_BYTES)


class BadSchema(Exception):
    """A schema that cannot be used; the text says why."""


async def check_schemas(schemas: Sequence[Any]) -> list[str | None]:
    """What is wrong with each of the schemas, None for one that is fine. Raises TooMuchWork for all together."""
    problems: list[str | None] = (await processes.answer({"schemas": list(schemas)}))["problems"]
    return problems


def check_schema(schema: Any) -> str | None:
    """What is wrong with a schema, also when it takes too much to find out. Blocks."""
    try:
        (problem,) = processes.ask({"schemas": [schema]})["problems"]
    except TooMuchWork as error:
        return str(error)
    return None if problem is None else str(problem)


async def is_valid(value: Any, schema: Any) -> bool:
    """True for a value that is valid under a schema. Raises BadSchema and TooMuchWork."""
    answer = await processes.answer({"schema": schema, "value": value}, schema)
    if "problem" in answer:
        raise BadSchema(answer["problem"])
    return bool(answer["valid"])


def problem_of(schema: Any) -> str | None:
    """In the process: what is wrong with a schema."""
    import jsonschema

    try:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        return str(error.message)[:300]
    except (TypeError, AttributeError):
        return "it is neither an object nor true or false"
    except RecursionError:
        return "it is nested too deeply"
    return None


@cache_texts(64, longest=100_000)
def _known_problem(text: str) -> str | None:
    """Of a schema by its text; many values are checked by one schema."""
    return problem_of(json.loads(text))


def applied(value: Any, schema: Any) -> Json:
    """In the process: whether a value is valid. What a schema refers to elsewhere is never fetched."""
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    problem = _known_problem(json.dumps(schema))
    if problem is not None:
        return {"problem": problem}
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        return {"valid": kind(schema, registry=Registry()).is_valid(value)}
    except (Unresolvable, RecursionError) as error:
        return {"problem": f"it cannot be followed: {type(error).__name__}"}


def _answer(job: Json) -> Json:
    if "schemas" in job:
        return {"problems": [problem_of(schema) for schema in job["schemas"]]}
    return applied(job["value"], job["schema"])


if __name__ == "__main__":
    answer_jobs(_answer)

"""Makes the answers of the two sides comparable, and finds the first place where they differ."""

import json
import math
from collections.abc import Iterator
from datetime import datetime

from tests.conformance.differential.deviations import DEVIATIONS
from tests.conformance.differential.operations import Json, Operation
from tests.conformance.differential.sides import Answer

# Times that each server takes from its own clock.
CLOCK_KEYS = ("created_at", "deleted_at")
# Times that the client gave: one instant has several spellings.
INSTANT_KEYS = ("started_at", "ended_at", "effective_date", "start", "end", "start_time", "last_updated", "timestamp")
ROW_KEYS = ("result", "results", "objs", "rows", "tables")


def normal(operation: Operation, answer: Answer, made: dict[str, str]) -> Json:
    """The comparable form of an answer: status, and the body without what must differ."""
    status, body = answer
    if status != 200:
        return {"status": status, "body": normal_error(body)}
    for deviation in DEVIATIONS:
        if deviation.path in ("*", operation.path):
            body = deviation.adapt(operation.body, body)
    body = normal_value(body, made)
    if not operation.ordered:
        body = unordered(body)
    return {"status": status, "body": body}


def normal_error(body: Json) -> Json:
    """Of a failure the kind of body; the words are each server's own."""
    if not isinstance(body, dict):
        return body
    if "detail" in body:
        return "detail"
    kept = {key: body[key] for key in ("missing_object_digests", "error_code") if key in body}
    return {"reason": isinstance(body.get("reason"), str), "deleted_at": "deleted_at" in body} | kept


def normal_value(value: Json, made: dict[str, str], key: str = "") -> Json:
    """The value with clock times, server-made ids and spellings of instants replaced."""
    if isinstance(value, dict):
        return {name: normal_value(item, made, name) for name, item in value.items()}
    if isinstance(value, list):
        return [normal_value(item, made) for item in value]
    if isinstance(value, str):
        if key in CLOCK_KEYS:
            return f"a time with an offset: {datetime.fromisoformat(value).tzinfo is not None}"
        if key in INSTANT_KEYS:
            return datetime.fromisoformat(value).isoformat() if is_time(value) else value
        return made.get(value, value)
    return value


def is_time(text: str) -> bool:
    """True when the text is an ISO time."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def unordered(body: Json) -> Json:
    """The body with its rows in a canonical order."""
    if isinstance(body, list):
        return sorted(body, key=lambda row: json.dumps(row, sort_keys=True))
    if isinstance(body, dict):
        return {
            key: unordered(item) if key in ROW_KEYS and isinstance(item, list) else item for key, item in body.items()
        }
    return body


def differences(expected: Json, actual: Json, path: str = "") -> Iterator[str]:
    """Every place where the two differ, in keys, types or values."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key not in actual:
                yield f"{path}.{key}: missing, expected {short(expected[key])}"
            elif key not in expected:
                yield f"{path}.{key}: not expected, got {short(actual[key])}"
            else:
                yield from differences(expected[key], actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(expected)} items expected, {len(actual)} found"
        for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
            yield from differences(left, right, f"{path}[{index}]")
    elif type(expected) is not type(actual) or not same(expected, actual):
        yield f"{path}: expected {short(expected)}, got {short(actual)}"


def same(left: Json, right: Json) -> bool:
    """Equality, with room for the rounding of sums."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-15)
    return bool(left == right)


def short(value: Json) -> str:
    """The JSON text of a value, cut."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 300 else text[:300] + "…"

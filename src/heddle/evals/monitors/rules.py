"""A stored Monitor object, read as a rule."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import orjson

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest
from heddle.store.control.object_rows import ObjectVersion
from heddle.wire import refs
from heddle.wire.query import Operation, parse_stored

CLASS_NAME = "Monitor"
TURN_ENDED = "weave.genai.turn_ended"
"""The op name that stands for turns of agents, which arrive as spans."""
_ALL_MESSAGES = "all_messages"
_WILDCARD = ":*"


@dataclass(frozen=True, slots=True)
class Debounce:
    """Score a trace or thread once, `seconds` after its last call."""

    field: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Rule:
    """Which calls a monitor scores, and by what. `ref` (internal) names the version that says so."""

    project: str
    project_id: str
    name: str
    ref: str
    user: str
    scorers: tuple[str, ...]
    rate: float
    ops: tuple[str, ...]
    """Op refs with any version; empty for every op."""
    turns: bool
    """Also the turns of agents."""
    query: Operation | None
    traced: bool
    debounce: Debounce | None

    @property
    def caller(self) -> Caller:
        """On whose behalf calls are scored: whoever stored the rule, in its project only."""
        return Caller(self.user, frozenset((Scope.READ, Scope.WRITE)), None, self.project_id, None)

    def samples(self, call_id: str) -> bool:
        """True for the share `rate` of calls; the same call always gets the same answer."""
        number = int.from_bytes(hashlib.sha256(f"{self.name}/{call_id}".encode()).digest()[:8], "big")
        return number < self.rate * 2**64


def is_active(version: ObjectVersion) -> bool:
    """True when the stored monitor is switched on."""
    value = orjson.loads(version.val or "null")
    return isinstance(value, dict) and value.get("active") is True


def read(project: str, version: ObjectVersion) -> Rule:
    """The rule of a stored monitor (internal project id); raises InvalidRequest for what cannot be done."""
    value = orjson.loads(version.val or "null")
    project_id = refs.external_project(project)
    if not isinstance(value, dict) or project_id is None:
        raise InvalidRequest("The monitor is no object with fields")
    ops, turns = _ops(value.get("op_names"), project)
    return Rule(
        project=project,
        project_id=project_id,
        name=version.object_id,
        ref=refs.object_ref(project, "object", version.object_id, version.digest),
        user=version.user or "heddle",
        scorers=_scorers(value.get("scorers")),
        rate=_rate(value.get("sampling_rate")),
        ops=ops,
        turns=turns,
        query=_query(value.get("query")),
        traced=value.get("is_traced") is not False,
        debounce=_debounce(value.get("scorer_debounce_config")),
    )


def _scorers(listed: Any) -> tuple[str, ...]:
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest("The monitor has no scorers")
    for place, item in enumerate(listed):
        if not isinstance(item, str) or not item.startswith(refs.INTERNAL):
            raise InvalidRequest(f"scorers[{place}] is no ref of a stored scorer; publish it")
    return tuple(listed)


def _rate(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
        raise InvalidRequest(f"sampling_rate is {value!r}; it must lie between 0 and 1")
    return float(value)


def _ops(listed: Any, project: str) -> tuple[tuple[str, ...], bool]:
    """Refs with a wildcard for the version, and whether turns of agents are meant too."""
    if listed is None:
        return (), False
    if not isinstance(listed, list) or not all(isinstance(name, str) and name.strip() for name in listed):
        raise InvalidRequest("op_names must be a list of op names or op refs")
    found = []
    for name in listed:
        if name == TURN_ENDED:
            continue
        if name.startswith(refs.INTERNAL):
            found.append(name.rpartition(":")[0] + _WILDCARD)
        else:
            found.append(refs.object_ref(project, "op", name.strip(), "*"))
            found.append(name.strip())
    return tuple(found), TURN_ENDED in listed


def _query(value: Any) -> Operation | None:
    return None if value is None else parse_stored(value)


def _debounce(value: Any) -> Debounce | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest("scorer_debounce_config must be an object")
    field, seconds = value.get("aggregation_field"), value.get("timeout_seconds")
    if field not in ("trace_id", "thread_id"):
        raise InvalidRequest("scorer_debounce_config.aggregation_field must be trace_id or thread_id")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 86_400:
        raise InvalidRequest("scorer_debounce_config.timeout_seconds must be a number from 0 to 86400")
    if value.get("aggregation_method") == _ALL_MESSAGES:
        raise InvalidRequest(
            "scorer_debounce_config.aggregation_method 'all_messages' is not done here: the last message is scored"
        )
    return Debounce(field, float(seconds))

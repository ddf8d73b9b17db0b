"""Monitors: stored rules that have calls scored when they end."""

import asyncio
import hashlib
import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, Response

from heddle.auth import ROLES, Caller, Grant
from heddle.errors import HeddleError, InvalidRequest, QueryTimeout
from heddle.http.own_bodies import OwnReq
from heddle.http.routing import Reader, ResponseModel, Service, answer, describe_row, group
from heddle.jobs.runner import Loop
from heddle.store.base import Store
from heddle.store.control.coordination import MONITOR_CLASS, MONITORS
from heddle.store.control.monitors import TURN, Waiting
from heddle.store.control.objects import ObjectVersion
from heddle.wire import refs, times
from heddle.wire.batched import group_pairs
from heddle.wire.calls import CallRow, CallsQuery, Ending, Filter
from heddle.wire.query import Operation, fields, parse_stored

logger = logging.getLogger("heddle.monitors")

BATCH = 500
PAUSE_SECONDS = 5.0
_LEASE_SECONDS = 30.0
_RENEW_SECONDS = 10.0
_LOOK_SECONDS = 1.0
"""How often servers that share the tables look for changed monitors, calls that ended elsewhere, and their turn."""
_NAMES = uuid.UUID("7d0f6a52-6f0e-5c0b-9a54-2f6f4a0b1d37")
"""What the ids of the scoring jobs are derived under."""
Submit = Callable[..., Awaitable[object]]
"""Stores a scoring job, as `Scoring.submit` does; the same `job_id` again is the same job."""
TURN_ENDED = "weave.genai.turn_ended"
"""The op name that stands for turns of agents, which arrive as spans."""
_ALL_MESSAGES = "all_messages"
_WILDCARD = ":*"
_FAILURES = frozenset(("error_group", "exception", "summary.weave.status"))


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
        return Caller(self.user, (Grant(self.project_id, ROLES["editor"]),))

    @property
    def of_failed(self) -> bool:
        """True where the query tells failed calls from others."""
        return self.query is not None and not _FAILURES.isdisjoint(fields(self.query))

    def samples(self, call_id: str) -> bool:
        """True for the share `rate` of calls; the same call always gets the same answer."""
        number = int.from_bytes(hashlib.sha256(f"{self.name}/{call_id}".encode()).digest()[:8], "big")
        return number < self.rate * 2**64


def _read_active(version: ObjectVersion) -> bool:
    """True when the stored monitor is switched on; raises InvalidRequest where it does not say so plainly."""
    value = orjson.loads(version.val or "null")
    return isinstance(value, dict) and _read_switch(value, "active", False)


def _read_switch(value: dict[str, Any], name: str, default: bool) -> bool:
    found = value.get(name)
    if found is not None and not isinstance(found, bool):
        raise InvalidRequest(f"{name} must be true or false, got {found!r:.100}")
    return default if found is None else found


def read_rule(project: str, version: ObjectVersion) -> Rule:
    """The rule of a stored monitor (internal project id); raises InvalidRequest for what cannot be done."""
    value = orjson.loads(version.val or "null")
    project_id = refs.external_project(project)
    if not isinstance(value, dict) or project_id is None:
        raise InvalidRequest("The monitor must be an object")
    ops, turns = _read_ops(value.get("op_names"), project)
    return Rule(
        project=project,
        project_id=project_id,
        name=version.object_id,
        ref=refs.object_ref(project, "object", version.object_id, version.digest),
        user=version.user or "heddle",
        scorers=_read_scorers(value.get("scorers")),
        rate=_read_rate(value.get("sampling_rate")),
        ops=ops,
        turns=turns,
        query=None if (query := value.get("query")) is None else parse_stored(query),
        traced=_read_switch(value, "is_traced", True),
        debounce=_read_debounce(value.get("scorer_debounce_config")),
    )


def _read_scorers(listed: Any) -> tuple[str, ...]:
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest("The monitor has no scorers")
    for place, item in enumerate(listed):
        if not isinstance(item, str) or not item.startswith(refs.INTERNAL):
            raise InvalidRequest(f"scorers[{place}] must be a ref of a published scorer")
    return tuple(listed)


def _read_rate(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
        raise InvalidRequest(f"sampling_rate must be between 0 and 1, got {value!r:.100}")
    return float(value)


def _read_ops(listed: Any, project: str) -> tuple[tuple[str, ...], bool]:
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


def _read_debounce(value: Any) -> Debounce | None:
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
            "scorer_debounce_config.aggregation_method 'all_messages' is not supported; only the last message is scored"
        )
    return Debounce(field, float(seconds))


@dataclass(slots=True)
class MonitorState:
    """A monitor as it is now: `problem` says why it does not score; `submitted` counts calls since the start."""

    project: str
    name: str
    digest: str
    user: str | None
    active: bool
    rule: Rule | None = None
    problem: str | None = None
    submitted: int = 0

    @classmethod
    def of(cls, project: str, version: ObjectVersion) -> "MonitorState":
        """That of a stored monitor (internal project id)."""
        state = cls(project, version.object_id, version.digest, version.user, False)
        try:
            state.active = _read_active(version)
            if state.active:
                state.rule = read_rule(project, version)
        except HeddleError as error:
            state.cannot(error)
        return state

    def cannot(self, error: HeddleError) -> None:
        """Note why it does not score, and log what is new."""
        if self.problem != error.reason:
            self.problem = error.reason
            logger.warning("monitor %s does not score: %s", self.name, error.reason)


class Monitors:
    """The monitors of all projects."""

    def __init__(self, store: Store, submit: Submit) -> None:
        self._store = store
        self._submit = submit
        self._rules: dict[str, list[Rule]] = {}
        self._states: dict[tuple[str, str], MonitorState] = {}
        self._seen = -1
        self._reading = asyncio.Lock()
        self._has_turn = False
        self._renewed = 0.0
        self._watching = Loop(self._watch, logger, "monitors wait", PAUSE_SECONDS, store.calls.has_endings)
        self._following = Loop(self._follow_others, logger, "changes of monitors are not seen", _LOOK_SECONDS)

    async def start(self) -> None:
        """Read the stored monitors and begin to watch."""
        await self.refresh()
        self._store.objects.observers[MONITOR_CLASS] = self._changed
        self._store.calls.has_endings.set()
        self._watching.start()
        if self._store.leases.instance.is_shared:
            self._following.start()

    async def stop(self) -> None:
        """Stop watching; what is noted is read at the next start."""
        self._store.objects.observers.pop(MONITOR_CLASS, None)
        await self._watching.stop()
        await self._following.stop()

    async def _changed(self) -> None:
        """A monitor came or went here."""
        self._store.changes.count_here(MONITORS)
        await self.refresh()

    async def _follow_others(self) -> float:
        """Read monitors that another server changed, and handle calls that ended there."""
        news = await self._store.monitor_waits.look(times.now())
        await self._see(news.changes)
        if not news.is_others_turn:
            if news.is_any or not self._has_turn:
                self._watching.wake()
            elif asyncio.get_running_loop().time() >= self._renewed + _RENEW_SECONDS:
                await self._is_turn()
        return self._store.monitor_waits.instance.looks.seconds_to_next(_LOOK_SECONDS)

    async def _follow(self) -> None:
        """Read the monitors anew where another server changed one."""
        await self._see(await self._store.changes.number(MONITORS))

    async def _see(self, changes: int) -> None:
        if changes != self._seen:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the stored monitors anew; calls that end from now on are judged by them."""
        # One after the other: of two readings the later one must count.
        async with self._reading:
            seen = await self._store.changes.number(MONITORS)
            states = {
                (project, version.object_id): self._state(project, version)
                for project, version in await self._store.objects.latest_of_class(MONITOR_CLASS)
            }
            found = group_pairs((state.project, state.rule) for state in states.values() if state.rule is not None)
            self._rules, self._states, self._seen = found, states, seen
            self._store.calls.watch(found, seen)

    def _state(self, project: str, version: ObjectVersion) -> MonitorState:
        """The state of a stored monitor, read only where it is another version than before."""
        before = self._states.get((project, version.object_id))
        if before is not None and (before.digest, before.user) == (version.digest, version.user):
            return before
        state = MonitorState.of(project, version)
        state.submitted = before.submitted if before else 0
        return state

    def states(self, project: str) -> list[MonitorState]:
        """The monitors of a project (internal id)."""
        return [state for state in self._states.values() if state.project == project]

    async def _watch(self) -> float | None:
        if not await self._is_turn():
            return None
        held = await self._take_all() | await self._score_due()
        if not self._has_turn:
            return None  # another server took it meanwhile
        return PAUSE_SECONDS if held else await self._seconds_to_wait()

    async def _is_turn(self) -> bool:
        """True for the one server that handles ended calls now."""
        asked = asyncio.get_running_loop().time()
        self._has_turn = await self._store.leases.take(TURN, _LEASE_SECONDS)
        self._renewed = asked
        return self._has_turn

    async def _seconds_to_wait(self) -> float | None:
        if self._store.leases.instance.is_shared:
            return None  # `_follow_others` wakes this server
        due = await self._store.monitor_waits.next_due()
        return None if due is None else max(0.0, (due - times.now()) / 1e6)

    async def _take_all(self) -> set[str]:
        """Handle all noted endings; the projects whose turn comes later, as their queue is full or the store is."""
        held: set[str] = set()
        while self._has_turn and (noted := await self._store.calls.take_endings(BATCH, held)):
            project = noted[0].project
            # Whoever made a monitor was told so before these calls ended.
            await self._follow()
            try:
                await self._handle(noted)
            except HeddleError as error:
                logger.warning("the monitors of a project are delayed: %s", error)
                held.add(project)
            await self._is_turn()
        return held

    async def _handle(self, endings: list[Ending]) -> None:
        for rule in self._rules.get(endings[0].project, ()):
            try:
                await self._apply(rule, endings)
            except HeddleError as error:
                # One rule must not hold up the others, unless what fails is the store or the queue.
                if _may_pass(error):
                    raise
                self._cannot(rule, error)
        await self._store.calls.drop_endings(endings)

    async def _apply(self, rule: Rule, endings: list[Ending]) -> None:
        chosen = [row for row in await self._matching(rule, endings) if rule.samples(row.id)]
        if not chosen:
            return
        if rule.debounce is None:
            await self._score(rule, [row.id for row in chosen], f"{endings[0].seq}-{endings[-1].seq}")
            return
        due = times.now() + int(rule.debounce.seconds * 1e6)
        groups = {str(getattr(row, rule.debounce.field) or row.id): row.id for row in chosen}
        waiting = [Waiting(rule.project, rule.name, group, call_id, due) for group, call_id in groups.items()]
        # A server that slept too long must not put its calls in the place of later ones.
        await self._store.monitor_waits.put(waiting, lambda conn: self._store.leases.require(conn, TURN))

    async def _matching(self, rule: Rule, endings: list[Ending]) -> list[CallRow]:
        """The calls that the rule chooses, in the order in which they ended; never those that scorers made."""
        ids = tuple(dict.fromkeys(ending.call_id for ending in endings))
        found: dict[str, CallRow] = {}
        query = CallsQuery(
            rule.project,
            Filter(call_ids=ids, op_names=None if rule.turns else rule.ops or None),
            rule.query,
            columns=frozenset(("attributes",)),
        )
        async for rows in self._store.calls.stream(query):
            found |= {row.id: row for row in rows if _is_meant(rule, row) and not _is_scorer(row)}
        return [found[call_id] for call_id in ids if call_id in found]

    async def _score_due(self) -> set[str]:
        """Score what has waited long enough; the projects whose turn comes later."""
        held: set[str] = set()
        rows = await self._store.monitor_waits.due(times.now(), BATCH)
        if rows:
            # Another server may have noted them, by a monitor that this one has not seen.
            await self._follow()
        for row in rows:
            rule = next((rule for rule in self._rules.get(row.project, ()) if rule.name == row.monitor), None)
            try:
                if rule is not None and row.project not in held:
                    await self._score(rule, [row.call_id], f"{row.group_key}-{row.due_at}")
            except HeddleError as error:
                logger.warning("the monitors of a project are delayed: %s", error)
                held.add(row.project)
            if row.project not in held:
                await self._store.monitor_waits.remove([row])
        return held

    async def _score(self, rule: Rule, call_ids: list[str], occasion: str) -> None:
        state = self._states.get((rule.project, rule.name))
        job_id = str(uuid.uuid5(_NAMES, f"{rule.ref}/{occasion}"))
        try:
            await self._submit(
                rule.caller,
                rule.project_id,
                call_ids,
                rule.scorers,
                trigger_ref=rule.ref,
                traced=rule.traced,
                failed=rule.of_failed,
                job_id=job_id,
            )
        except HeddleError as error:
            if _may_pass(error):
                raise
            self._cannot(rule, error)
            return
        if state is not None:
            state.problem, state.submitted = None, state.submitted + len(call_ids)

    def _cannot(self, rule: Rule, error: HeddleError) -> None:
        state = self._states.get((rule.project, rule.name))
        if state is not None:
            state.cannot(error)


def _may_pass(error: HeddleError) -> bool:
    """True for what has nothing to do with the rule; a query that takes too long has."""
    return error.status == 429 or (error.status >= 500 and not isinstance(error, QueryTimeout))


def _is_meant(rule: Rule, row: CallRow) -> bool:
    """True for every call of a rule without turns of agents, which the filter chose already."""
    return not rule.turns or row.turn_id == row.id or any(_is_op(row.op_name, name) for name in rule.ops)


def _is_op(op_name: str, wanted: str) -> bool:
    return op_name.startswith(wanted[:-1]) if wanted.endswith(":*") else op_name == wanted


def _is_scorer(row: CallRow) -> bool:
    weave = orjson.loads(row.attributes or "{}").get("weave")
    return isinstance(weave, dict) and weave.get("kind") == "scorer"


MonitorsDep = Annotated[Monitors, Depends(Service("monitors"))]
router = group("Monitors")


class MonitorsQueryReq(OwnReq):
    """Body of /monitors/query."""


class MonitorSchema(ResponseModel):
    """A stored monitor as it is now."""

    name: str
    ref: str
    active: bool
    problem: str | None
    """Why it scores nothing, where it cannot."""
    submitted: int
    """Calls that were handed to its scorers since the server started."""


class MonitorsQueryRes(ResponseModel):
    """The monitors of a project."""

    monitors: list[MonitorSchema]


@router.post("/monitors/query", response_model=MonitorsQueryRes)
async def monitors_query(body: MonitorsQueryReq, caller: Reader, monitors: MonitorsDep) -> Response:
    """The monitors of a project: whether each is on, and why it cannot score."""
    project = caller.open(body.project_id)
    found = [
        (state, refs.object_ref(project, "object", state.name, state.digest)) for state in monitors.states(project)
    ]
    return answer({"monitors": [describe_row(MonitorSchema, state, ref=ref) for state, ref in found]})

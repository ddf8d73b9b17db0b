"""Watches calls end and hands those that a monitor chooses to the scorers.

The store notes every ended call of a watched project in the same commit as the call; the note is dropped after the
scoring job is stored. Killed in between, the same job is submitted again under the same id, which is no second job.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from heddle.auth import Caller
from heddle.errors import HeddleError, QueryTimeout
from heddle.evals.monitors import rules
from heddle.evals.monitors.rules import Rule
from heddle.loops import Loop
from heddle.store.base import Store
from heddle.store.control.changes import MONITORS
from heddle.store.control.monitors import Waiting
from heddle.wire import times
from heddle.wire.calls import CallRow, CallsQuery, Ending, Filter

logger = logging.getLogger("heddle.monitors")

BATCH = 500
PAUSE_SECONDS = 5.0
_WATCHING = "monitors"
_LEASE_SECONDS = 30.0
_LOOK_SECONDS = 1.0
"""How often servers that share the tables look for changed monitors, and for calls that ended elsewhere."""
_NAMES = uuid.UUID("7d0f6a52-6f0e-5c0b-9a54-2f6f4a0b1d37")
"""What the ids of the scoring jobs are derived under."""


class Submit(Protocol):
    """Stores a scoring job; the same `job_id` again is the same job."""

    async def __call__(
        self,
        caller: Caller,
        project_id: str,
        call_ids: Sequence[str],
        scorer_refs: Sequence[str],
        *,
        trigger_ref: str | None = None,
        traced: bool = True,
        job_id: str | None = None,
    ) -> Any:
        """Score calls; raises HeddleError for scorers that cannot run."""
        ...


@dataclass(slots=True)
class MonitorState:
    """A monitor as it is now: `problem` says why it does not score; `submitted` counts calls since the start."""

    project: str
    name: str
    digest: str
    active: bool
    problem: str | None = None
    submitted: int = 0


class Monitors:
    """The monitors of all projects."""

    def __init__(self, store: Store, submit: Submit) -> None:
        self._store = store
        self._submit = submit
        self._rules: dict[str, list[Rule]] = {}
        self._states: dict[tuple[str, str], MonitorState] = {}
        self._seen = -1
        self._watching = Loop(self._watch, logger, "monitors wait", PAUSE_SECONDS, store.calls.has_endings)
        self._following = Loop(self._follow_others, logger, "changes of monitors are not seen", _LOOK_SECONDS)

    async def start(self) -> None:
        """Read the stored monitors and begin to watch."""
        await self.refresh()
        self._store.objects.observers[rules.CLASS_NAME] = self._changed
        self._store.calls.has_endings.set()
        self._watching.start()
        if self._store.leases.instance.is_shared:
            self._following.start()

    async def stop(self) -> None:
        """Stop watching; what is noted is read at the next start."""
        self._store.objects.observers.pop(rules.CLASS_NAME, None)
        await self._watching.stop()
        await self._following.stop()

    async def _changed(self) -> None:
        """A monitor came or went here: tell the other servers, and read it."""
        await self._store.changes.count(MONITORS)
        await self.refresh()

    async def _follow_others(self) -> float:
        """Read monitors that another server changed, and handle calls that ended there."""
        await self._follow()
        self._watching.wake()
        return _LOOK_SECONDS

    async def _follow(self) -> None:
        """Read the monitors anew where another server changed one."""
        if await self._store.changes.number(MONITORS) != self._seen:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the stored monitors anew; calls that end from now on are judged by them."""
        seen = await self._store.changes.number(MONITORS)
        found: dict[str, list[Rule]] = {}
        states: dict[tuple[str, str], MonitorState] = {}
        for project, version in await self._store.objects.latest_of_class(rules.CLASS_NAME):
            before = self._states.get((project, version.object_id))
            state = MonitorState(project, version.object_id, version.digest, rules.is_active(version))
            state.submitted = before.submitted if before else 0
            states[project, version.object_id] = state
            if state.active:
                try:
                    found.setdefault(project, []).append(rules.read(project, version))
                except HeddleError as error:
                    state.problem = error.reason
                    logger.warning("monitor %s does not score: %s", version.object_id, error.reason)
        self._rules, self._states, self._seen = found, states, seen
        self._store.calls.watch(found, seen)

    def states(self, project: str) -> list[MonitorState]:
        """The monitors of a project (internal id)."""
        return [state for state in self._states.values() if state.project == project]

    async def _watch(self) -> float | None:
        if not await self._is_turn():
            return PAUSE_SECONDS
        held = await self._take_all() | await self._score_due()
        return PAUSE_SECONDS if held else await self._seconds_to_wait()

    async def _is_turn(self) -> bool:
        """True for the one server that handles ended calls now."""
        return await self._store.leases.take(_WATCHING, _LEASE_SECONDS)

    async def _seconds_to_wait(self) -> float | None:
        due = await self._store.monitor_waits.next_due()
        return None if due is None else max(0.0, (due - times.now()) / 1e6)

    async def _take_all(self) -> set[str]:
        """Handle all noted endings; the projects whose turn comes later, as their queue is full or the store is."""
        held: set[str] = set()
        while await self._is_turn() and (noted := await self._store.calls.take_endings(BATCH, held)):
            project = noted[0].project
            # Whoever made a monitor was told so before these calls ended.
            await self._follow()
            try:
                await self._handle(project, noted)
            except HeddleError as error:
                logger.warning("the monitors of a project wait: %s", error)
                held.add(project)
        return held

    async def _handle(self, project: str, endings: list[Ending]) -> None:
        for rule in self._rules.get(project, ()):
            try:
                await self._apply(rule, endings)
            except HeddleError as error:
                # One rule must not hold up the others, unless what fails is the store or the queue.
                if _may_pass(error):
                    raise
                self._cannot(rule, error)
        # A server that slept too long must not drop what another one has taken since.
        if await self._store.leases.holds(_WATCHING):
            await self._store.calls.drop_endings(project)

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
        await self._store.monitor_waits.put(waiting)

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
        for row in await self._store.monitor_waits.due(times.now(), BATCH):
            rule = next((rule for rule in self._rules.get(row.project, ()) if rule.name == row.monitor), None)
            try:
                if rule is not None and row.project not in held:
                    await self._score(rule, [row.call_id], f"{row.group_key}-{row.due_at}")
            except HeddleError as error:
                logger.warning("the monitors of a project wait: %s", error)
                held.add(row.project)
            if row.project not in held:
                await self._store.monitor_waits.done([row])
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
        logger.warning("monitor %s does not score: %s", rule.name, error.reason)
        state = self._states.get((rule.project, rule.name))
        if state is not None:
            state.problem = error.reason


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

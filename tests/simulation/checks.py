"""What must hold at every instant of a simulation, and at its end."""

import itertools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from heddle.store.clickhouse import assembly
from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.monitors import alert_deliveries, alert_rules, monitor_waiting
from heddle.store.control.pending_calls import call_halves, ended_calls
from heddle.store.control.training import train_events, train_jobs
from heddle.store.control.training_models import train_checkpoints
from tests.simulation.loop import Machine

if TYPE_CHECKING:
    from tests.simulation.site import Clients, Site

ENDED = ("succeeded", "failed", "cancelled")
HANDLED_SECONDS = 1800.0
"""A call that a monitor is about has been scored after so long, whatever goes wrong."""
MAY_FAIL = ("Given up", "a provider does not answer", "attempts ended without progress")
"""How a job may end that everything went wrong for."""
_ENDED_AT = assembly.COLUMNS.index("ended_at")


class _Handler(logging.Handler):
    """A traceback in the log is a fault."""

    def __init__(self, checks: "Checks") -> None:
        super().__init__()
        self._checks = checks

    def emit(self, record: logging.LogRecord) -> None:
        self._checks.logged(record)


class Checks:
    """Collects what broke a promise."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self.violations: list[str] = []
        self.handler = _Handler(self)
        self.pointers: dict[str, int] = {}
        self.scores: dict[str, dict[str, int]] = {}
        self.changes: dict[str, list[str]] = {}
        """By alert rule: the states that it took on."""
        self._states: dict[tuple[str, str], str] = {}
        self._at_work: dict[str, dict[Machine, float]] = {}
        self.begun: dict[str, int] = {}
        """How often each job was begun."""
        self._dead: set[str] = set()
        self.died_with = Counter[str]()
        """How often each evaluation job was taken over from a server that had died, perhaps before it began the job."""

    def violate(self, text: str) -> None:
        """Note what must not be."""
        self._site.log(f"VIOLATION {text}")
        self.violations.append(text)

    def logged(self, record: logging.LogRecord) -> None:
        """A line of a server's log."""
        self._site.log(f"log {record.getMessage()[:300]}")
        if record.exc_info:
            self.violate(f"a traceback in the log: {record.getMessage()}: {record.exc_info[1]!r}")

    def begin(self, work: str, machine: Machine | None) -> None:
        """A server began to work on a job; another one may not have it for longer than it takes to notice."""
        assert machine is not None
        self._site.log(f"{machine.name} begins {work}")
        now = self._site.loop.time()
        self._look_at(work)
        self._at_work.setdefault(work, {})[machine] = now
        self.begun[work] = self.begun.get(work, 0) + 1

    def end(self, work: str, machine: Machine | None) -> None:
        """A server works on a job no more."""
        assert machine is not None
        self._look_at(work)
        self._at_work.get(work, {}).pop(machine, None)

    def machine_died(self, machine: Machine) -> None:
        """Nothing of it works any more."""
        self._dead.add(machine.name)
        for work in list(self._at_work):
            self._at_work[work].pop(machine, None)

    def _look_at(self, work: str) -> None:
        """Two servers may be at one job only as long as the first takes to notice, once it is awake."""
        now, holders = self._site.loop.time(), self._at_work.get(work, {})
        awake = sorted(max(since, machine.stands_until) for machine, since in holders.items() if not machine.is_dead)
        if len(awake) > 1 and now - awake[-1] > self.bound:
            names = ", ".join(machine.name for machine in holders)
            self.violate(f"two servers worked on {work} for {now - awake[-1]:.1f} s: {names}")

    @property
    def bound(self) -> float:
        """Seconds for which two servers may be at one job: the first looks at what it holds so often."""
        return min(self._site.look_seconds, 10.0) + 1.0

    def scored(self, monitor: str, call_id: str) -> None:
        """A call was scored for a monitor."""
        scores = self.scores.setdefault(monitor, {})
        scores[call_id] = scores.get(call_id, 0) + 1

    def committed(self, actor: str, notes: list[tuple[Any, ...]]) -> None:
        """A server's transaction changed rows that matter: (table, key, old state, owner and lease, new ones)."""
        changed, told = 0, 0
        now = int(self._site.wall_clock() * 1e6)
        for table, key, state, owner, until, new_state, new_owner, _ in notes:
            if table == "adapter_names":
                if new_state < self.pointers.get(key, 0):
                    self.violate(f"{key} went back from step {self.pointers[key]} to {new_state}")
                self.pointers[key] = new_state
                self._site.log(f"{key} is step {new_state}")
                continue
            if (state, owner) == (new_state, new_owner):
                continue
            self._site.log(f"{table} {key}: {state} {owner} -> {new_state} {new_owner}")
            if table == "alert_rules":
                changed += state is not None
                self.changes.setdefault(key, []).append(new_state)
            elif table == "alert_deliveries":
                told += state is None
                if new_state == "succeeded" and key not in self._site.receiver.got:
                    self.violate(f"message {key} is taken for delivered, and was not")
            if state in ENDED and state != new_state:
                self.violate(f"{table} {key} had ended ({state}) and is {new_state}")
            if (table, state, new_state) == ("eval_jobs", "running", "running") and owner in self._dead:
                self.died_with[key] += 1
            if owner not in (None, actor) and until is not None and until >= now:
                self.violate(f"{table} {key}: {actor} changed what {owner} held")
        from tests.simulation.site import TARGETS

        if told != changed * TARGETS:
            self.violate(f"{changed} alerts changed, and {told} messages say so")

    def _rows(self, query: sa.Select[Any]) -> list[Any]:
        return self._site.database.run(lambda connection: list(connection.execute(query)))

    def what_is_open(self, clients: "Clients") -> list[str]:
        """What waits or is at work."""
        found = []
        for table in (eval_jobs, train_jobs, alert_deliveries):
            rows = self._rows(sa.select(table.c.id, table.c.state).where(table.c.ended_at.is_(None)))
            found += [f"{table.name} {row.id} is {row.state}" for row in rows]
        for table in (ended_calls, monitor_waiting):
            found += [f"{table.name} {tuple(row)[:4]}" for row in self._rows(sa.select(table))]
        # A client that was stopped leaves a start alone; a half whose call is stored is forgotten after a day.
        waiting = (row for row in self._rows(sa.select(call_halves)) if row.id in clients.calls)
        halves = (row for row in waiting if not self._is_whole(row.project, row.id))
        return found + [f"{call_halves.name} {tuple(row)[:4]}" for row in halves]

    def _is_whole(self, project: str, call_id: str) -> bool:
        row = self._site.columns.rows.get((project, call_id))
        return row is not None and row[_ENDED_AT] is not None

    def finish(self, clients: "Clients") -> None:
        """Look at everything once the servers had the time to end what they began."""
        for failure in self._site.loop.failures:
            self.violate(f"nobody caught: {failure}")
        for server in self._site.servers:
            if not server.is_up:
                self.violate(f"{server.machine.name} does not start again")
        for text in self.what_is_open(clients)[:10]:
            self.violate(f"stuck: {text}")
        self._check_jobs(clients)
        self._check_training(clients)
        self._check_calls(clients)
        self._check_alerts(clients)

    def _check_jobs(self, clients: "Clients") -> None:
        rows = {row.id: row for row in self._rows(sa.select(eval_jobs))}
        for job_id, wish in clients.jobs.items():
            row = rows.get(job_id)
            if row is None:
                self.violate(f"evaluation job {job_id} was acknowledged and is gone")
                continue
            begun = self.begun.get(f"eval {job_id}", 0)
            if (row.error or "").startswith("Given up: the server ended") and self._count_ends(job_id) < 2:
                self.violate(f"evaluation job {job_id} was begun {begun} times: {row.error}")
            if row.state == "failed" and not row.error.startswith(MAY_FAIL):
                self.violate(f"evaluation job {job_id} failed: {row.error}")
            elif row.state == "cancelled" and "cancelled" not in wish.facts and not row.cancel_asked:
                self.violate(f"evaluation job {job_id} was cancelled by nobody")
            elif not self._site.has_faults and begun > 1 and row.state != "cancelled":
                later = row.error is None
                if not later:
                    self.violate(f"evaluation job {job_id} was begun more than once though nothing went wrong")

    def _count_ends(self, job_id: str) -> int:
        """How many servers may have ended with an evaluation job."""
        return max(self.begun.get(f"eval {job_id}", 0), self.died_with[job_id])

    def _check_training(self, clients: "Clients") -> None:
        rows = {row.id: row for row in self._rows(sa.select(train_jobs))}
        listed = self._rows(sa.select(train_checkpoints))
        steps = {row.job_id: row for row in listed}
        events: dict[str, list[Any]] = {}
        for event in self._rows(sa.select(train_events).order_by(train_events.c.job_id, train_events.c.seq)):
            events.setdefault(event.job_id, []).append(event)
        for job_id in clients.training:
            if job_id not in rows:
                self.violate(f"training job {job_id} was acknowledged and is gone")
                continue
            row, told = rows[job_id], events.get(job_id, [])
            if [event.seq for event in told] != list(range(len(told))) and row.state == "succeeded":
                self.violate(f"the events of training job {job_id} have gaps: {[event.seq for event in told]}")
            last = "training_ended" if row.state == "succeeded" else "training_failed"
            if sum(event.type in ("training_ended", "training_failed") for event in told) != 1 or told[-1].type != last:
                self.violate(f"training job {job_id} ({row.state}) told {[event.type for event in told]}")
            if row.state == "failed" and not any(text in row.error for text in MAY_FAIL):
                self.violate(f"training job {job_id} failed: {row.error}")
            if row.state == "succeeded":
                self._check_step(job_id, row, steps.get(job_id))
        for model in self._site.models:
            newest = max(row.step for row in listed if row.model_id == model.id)
            if self.pointers[model.name] != newest:
                self.violate(f"{model.name} means step {self.pointers[model.name]}, and {newest} is the newest")

    def _check_step(self, job_id: str, row: Any, step: Any) -> None:
        if step is None or step.step != row.step:
            self.violate(f"training job {job_id} succeeded without its step: {step}")
            return
        adapter = self._site.folder / step.folder / "adapter_model.safetensors"
        if not adapter.is_file() or adapter.read_text() != job_id:
            self.violate(f"the step of training job {job_id} lacks its files, or has another's")

    def _check_calls(self, clients: "Clients") -> None:
        for row in self._rows(sa.select(eval_jobs).where(eval_jobs.c.kind == "score", eval_jobs.c.state == "failed")):
            if not row.error.startswith(MAY_FAIL) or self._count_ends(row.id) < 2:
                self.violate(f"scoring failed: {row.error}")
            for call_id in row.body["call_ids"]:
                self.scores.setdefault(row.body["monitor"], {}).setdefault(call_id, 0)
        from tests.simulation.site import PROJECT

        for call_id, wish in clients.calls.items():
            if not self._is_whole(PROJECT, call_id):
                self.violate(f"{call_id} was acknowledged and is not stored as a whole")
            for monitor, switches in clients.switches.items():
                is_missed = call_id not in self.scores.get(monitor, {})
                if is_missed and monitor != "traces" and self._was_on(switches, wish):
                    self.violate(f"monitor {monitor} missed {call_id}")
        self._check_traces(clients)

    @staticmethod
    def _was_on(switches: list[tuple[bool, float, float]], wish: Any) -> bool:
        """True for a call that began once a monitor was known to be on, which it stayed for long."""
        before = [switch for switch in switches if switch[1] <= wish.acknowledged + HANDLED_SECONDS]
        if not before or not before[-1][0]:
            return False
        return before[-1][2] <= wish.began

    def _check_traces(self, clients: "Clients") -> None:
        """Of each trace the last call is scored, or one that came at the same time."""
        on_since = clients.switches["traces"][0][2] if "traces" in clients.switches else float("inf")
        traces: dict[str, list[tuple[str, Any]]] = {}
        for call_id, wish in clients.calls.items():
            if wish.began >= on_since:
                traces.setdefault(wish.facts["trace"], []).append((call_id, wish))
        scored = self.scores.get("traces", {})
        for trace, found in traces.items():
            last = max(wish.began for _, wish in found)
            unanswered = {call_id for call_id, of in clients.unanswered.items() if of == trace}
            is_scored = any(call_id in scored and wish.acknowledged >= last for call_id, wish in found)
            if not is_scored and unanswered.isdisjoint(scored):
                self.violate(f"the last call of {trace} was not scored")

    def _check_alerts(self, clients: "Clients") -> None:
        for row in self._rows(sa.select(alert_rules)):
            wanted = "firing" if self._site.signals[row.id] else "quiet"
            if row.state != wanted:
                self.violate(f"{row.id} is {row.state} and should be {wanted}")
            changes = self.changes.get(row.id, ["quiet"])[1:]
            if any(one == other for one, other in itertools.pairwise(changes)):
                self.violate(f"{row.id} told the same twice: {changes}")
            if not self._site.has_faults and len(changes) != len(clients.flips[row.id]):
                self.violate(f"{row.id} changed {len(clients.flips[row.id])} times, and told {len(changes)} changes")
        for row in self._rows(sa.select(alert_deliveries)):
            got = self._site.receiver.got.get(row.id, 0)
            if row.state == "succeeded" and not got:
                self.violate(f"message {row.id} was lost")
            if not self._site.has_faults and got != 1:
                self.violate(f"message {row.id} was delivered {got} times though nothing went wrong")

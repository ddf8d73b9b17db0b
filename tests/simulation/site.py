"""Two to five servers over one database, their clients, and what goes wrong between them; all of it from one seed.

The code of the servers is the product's: control tables, queues, runners, monitors, alerts, training and publishing,
adapters, the writing of calls. Simulated are the clock, the network to the database, ClickHouse, training processes,
receivers of webhooks, and what evaluations do.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import random
import shutil
import sqlite3
import tempfile
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from heddle.auth import LOCAL, Caller
from heddle.errors import HeddleError, Unavailable
from heddle.evals import monitors, scoring
from heddle.evals.jobs import JobRun, Jobs, Later
from heddle.evals.monitors import Monitors
from heddle.inference.adapters import FILES, Adapters, Address
from heddle.inference.policies import Policies
from heddle.jobs import runner
from heddle.jobs.metrics import JobMetrics
from heddle.settings import Settings
from heddle.store import base
from heddle.store.base import ControlGroups
from heddle.store.clickhouse import assembly, call_writes
from heddle.store.clickhouse.call_writes import CallWrites
from heddle.store.control import redaction
from heddle.store.control.coordination import MONITOR_CLASS
from heddle.store.control.eval_jobs import JobRow as EvalJob
from heddle.store.control.inference import AdapterRow
from heddle.store.control.monitors import AlertRow
from heddle.store.control.objects import NewVersion
from heddle.store.control.repository import Instance, metadata
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.control.training import JobRow as TrainJob
from heddle.store.control.training_models import CheckpointRow, ModelRow
from heddle.store.sqlite.database import open_writer
from heddle.trace.alerts import service as alerts
from heddle.trace.alerts.service import AlertService, Measurement
from heddle.training import files
from heddle.training.messages import Answer, Cancel, Finished, Request, Started, Stepped, Stopped, Task
from heddle.training.queue import process
from heddle.training.queue.events import TrainingMetrics
from heddle.training.queue.process import ProcessOptions, TrainingProcess
from heddle.training.queue.supervisor import Supervisor
from heddle.wire import refs, times
from heddle.wire.calls import CallRow, CallsQuery, End, Start
from tests.simulation.checks import Checks
from tests.simulation.loop import MACHINE, Machine, VirtualLoop

T = TypeVar("T")
EPOCH = 1_800_000_000.0
"""The true instant (seconds since 1970) at which a simulation begins."""
PROJECT_ID = "team/p"
PROJECT = refs.internal_project(PROJECT_ID)
BASE = "base"
MODELS = 2
RULES = 3
TARGETS = 2
BUSY_SECONDS, QUIET_SECONDS = 1500.0, 5700.0
"""Clients come in turns; in between servers only look after what they have."""
CALM_SECONDS = 5400.0
"""Once nothing goes wrong any more, everything is done after so long."""
_REGISTRY = CollectorRegistry()
_ENDED = JobMetrics(_REGISTRY)
_TRAINED = TrainingMetrics(_REGISTRY, _ENDED)
_NOTED = {
    "eval_jobs": ("id", "state", "lease_owner", "lease_until"),
    "train_jobs": ("id", "state", "lease_owner", "lease_until"),
    "alert_deliveries": ("id", "state", "lease_owner", "lease_until"),
    "leases": ("name", "'held'", "owner", "lease_until"),
    "alert_rules": ("id", "state", "NULL", "NULL"),
    "adapter_names": ("name", "latest", "NULL", "NULL"),
}


class Database:
    """The control tables that all servers share: each transaction happens at one instant, by its own (true) clock."""

    _kept: "Database | None" = None

    def __init__(self) -> None:
        session = open_writer(Path(":memory:"), "normal", 0)
        self._raw, self._connection = session.raw, session.control
        self.clock: Callable[[], float] = lambda: EPOCH
        self._notes: list[tuple[Any, ...]] = []
        self.on_commit: Callable[[str, list[tuple[Any, ...]]], None] = lambda actor, notes: None
        self._raw.create_function("julianday", 1, lambda _: 2440587.5 + self.clock() / 86_400)
        self._raw.create_function("note", -1, lambda *row: self._notes.append(row))
        metadata.create_all(self._connection)
        for table, (key, state, owner, until) in _NOTED.items():
            old, new = (
                ", ".join(name if name in ("NULL", "'held'") else f"{side}.{name}" for name in (state, owner, until))
                for side in ("OLD", "NEW")
            )
            for event, values in (("UPDATE", f"{old}, {new}"), ("INSERT", f"NULL, NULL, NULL, {new}")):
                self._raw.execute(
                    f"CREATE TRIGGER noted_{event}_{table} AFTER {event} ON {table} "
                    f"BEGIN SELECT note('{table}', NEW.{key}, {values}); END"
                )
        self._empty = sqlite3.connect(":memory:")
        self._raw.backup(self._empty)

    @classmethod
    def empty(cls) -> "Database":
        """The one database of this process, emptied: what was compiled for it is kept."""
        if cls._kept is None:
            cls._kept = cls()
        cls._kept._empty.backup(cls._kept._raw)
        return cls._kept

    def run(self, work: Callable[[sa.Connection], T], actor: str = "") -> T:
        """One transaction of a server."""
        self._notes = []
        self._raw.execute("BEGIN")
        try:
            result = work(self._connection)
        except BaseException:
            self._raw.execute("ROLLBACK")
            raise
        self._raw.execute("COMMIT")
        if self._notes:
            self.on_commit(actor, self._notes)
        return result


class Line:
    """An executor of one server: work takes its time to the database, and so does the answer; both may get lost."""

    def __init__(self, site: "Site", server: "Server") -> None:
        self._site = site
        self._server = server

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        return await self._run(work)

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        return await self._run(work)

    async def _run(self, work: Callable[[sa.Connection], T]) -> T:
        site, loop = self._site, self._site.loop
        there, back, is_lost = site.draw_trip(self._server)
        answer: asyncio.Future[T] = loop.create_future()
        context, actor = copy_context(), self._server.machine.name

        def arrive() -> None:
            try:
                result, error = site.database.run(lambda connection: context.run(work, connection), actor), None
            except Exception as problem:
                result, error = None, problem
            loop.call_later(back, reply, result, error, context=site.outside)

        def reply(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None or is_lost:
                answer.set_exception(error or Unavailable("the answer of the database was lost"))
            else:
                answer.set_result(result)

        if there is None:
            loop.call_later(back, reply, None, Unavailable("the database does not answer"), context=site.outside)
        else:
            loop.call_later(there, arrive, context=site.outside)
        return await answer


class Columns:
    """The rows of calls, as ClickHouse keeps them: of one call the one with the greatest version counts."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self.rows: dict[tuple[str, str], Any] = {}

    async def insert(self, server: "Server", rows: Any) -> None:
        """Keep rows; as the control tables, ClickHouse may be slow, and what it says may get lost."""
        there, back, is_lost = self._site.draw_trip(server)
        if there is not None:
            await asyncio.sleep(there)
            for row in rows:
                key = row[0], row[1]
                if key not in self.rows or self.rows[key][4] <= row[4]:
                    self.rows[key] = row
        await asyncio.sleep(back)
        if there is None or is_lost:
            raise Unavailable("ClickHouse does not answer")

    async def find(self, server: "Server", keys: Any) -> dict[Any, Any]:
        """What is stored of calls."""
        there, back, is_lost = self._site.draw_trip(server)
        await asyncio.sleep(there or 0.0)
        found = dict(assembly.stored(self.rows[key]) for key in keys if key in self.rows)
        await asyncio.sleep(back)
        if there is None or is_lost:
            raise Unavailable("ClickHouse does not answer")
        return {key: [row] for key, row in found.items()}


class SiteCalls(CallWrites):
    """The calls of one server."""

    def __init__(self, site: "Site", server: "Server", line: Line) -> None:
        async def insert(_table: str, _columns: Any, rows: Any) -> None:
            await site.columns.insert(server, rows)

        super().__init__(SimpleNamespace(insert=insert, server=server), line, 1 << 20)  # type: ignore[arg-type]
        self._site = site
        self._server = server

    async def stream(self, query: CallsQuery) -> Any:
        """The calls with some ids."""
        ids = query.filter.call_ids or ()
        found = await self._site.columns.find(self._server, [(query.project, call_id) for call_id in ids])
        rows = []
        for (_, call_id), (kept,) in found.items():
            given = dict(zip(assembly._STARTED, kept.start.values, strict=True))
            rows.append(
                CallRow(
                    0, 0, call_id, given["trace_id"], given["started_at"], None, given["op_name"], None, None,
                    None, None, None, None, "", 1, 0, None, None, attributes="{}",
                )
            )  # fmt: skip
        yield rows


class SimulatedProcess(TrainingProcess):
    """A training process: it outlives its server for a moment, and may die or fall silent at any time itself."""

    def __init__(self, site: "Site", options: ProcessOptions) -> None:
        child: Any = SimpleNamespace(
            pid=next(site.pids), has_ended=False, last_lines=(), kill=self._kill, end=lambda: None,
            how_it_ended=lambda: "the training process died",
        )  # fmt: skip
        super().__init__(child, options)
        self._site = site
        self._is_cancelled = False
        self._machine = MACHINE.get()
        self._work: asyncio.Task[None] | None = None
        self._holding = ""

    @property
    def has_ended(self) -> bool:
        return bool(self._child.has_ended)

    def send(self, message: Request) -> None:
        if isinstance(message, Cancel):
            self._is_cancelled = True
        elif isinstance(message, Task):
            self._is_cancelled = False
            self._holding = message.job_id
            self._site.checks.begin(f"train {message.job_id}", self._machine)
            self._work = self._site.loop.create_task(self._train(message), context=self._site.outside.copy())

    def abort(self) -> None:
        self._kill()

    def _kill(self) -> None:
        self._child.has_ended = True
        self._say_no_more()
        if self._work is not None:
            self._work.cancel()

    def _say_no_more(self) -> None:
        if self._holding:
            self._site.checks.end(f"train {self._holding}", self._machine)
            self._holding = ""

    def orphan(self) -> None:
        """Its server is dead; it notices a little later."""
        self._say_no_more()
        self._site.loop.call_later(self._site.random.uniform(0, 4), self._kill, context=self._site.outside)

    def _tell(self, message: Answer) -> None:
        if isinstance(message, Finished | Stopped):
            self._say_no_more()
        self.handle_message(message)

    async def _train(self, task: Task) -> None:
        site, job_id = self._site, task.job_id
        total = int(hashlib.sha256(job_id.encode()).hexdigest(), 16) % 4 + 1
        await asyncio.sleep(site.random.uniform(0.1, 10))
        self._tell(Started(total, {"num_trainable_tokens": 1.0}))
        for index in range(site.saved.get(job_id, 0)):
            self._tell(Stepped(index, {"loss/train": 1.0}))
        for index in range(site.saved.get(job_id, 0), total):
            await asyncio.sleep(site.random.uniform(0.5, 20))
            if self._is_cancelled:
                self._tell(Stopped())
                return
            if site.goes_wrong(0.03):
                self._child.has_ended = True
                self._say_no_more()
                self.handle_end(None)
                return
            if site.goes_wrong(0.02):
                await asyncio.Event().wait()
            self._tell(Stepped(index, {"loss/train": 1.0}))
            if site.random.random() < 0.5:
                site.saved[job_id] = index + 1

        def fill(folder: Path) -> None:
            for name in FILES:
                (folder / name).write_text(job_id)

        files.make_whole(Path(task.target), fill)
        await asyncio.sleep(site.random.uniform(0, 2))
        self._tell(Finished("", len(job_id), {"loss/train": 1.0}))


class Receiver:
    """Takes the messages of alerts."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self.got: dict[str, int] = {}
        self.is_out = False

    async def send(self, _settings: Settings, _row: AlertRow, _target: Any, delivery: Any) -> str | None:
        """As `heddle.trace.alerts.targets.send`."""
        site = self._site
        await asyncio.sleep(site.random.uniform(0.01, 1))
        if self.is_out or site.goes_wrong(0.1):
            return "returned 503"
        self.got[delivery.id] = self.got.get(delivery.id, 0) + 1
        await asyncio.sleep(site.random.uniform(0.01, 1))
        if site.goes_wrong(0.05):
            return "gave no answer within 20 s"
        return None


@dataclass
class Wish:
    """Something that clients were told is stored."""

    began: float
    acknowledged: float
    facts: dict[str, Any] = field(default_factory=dict)


class Server:
    """One server, which is started again after its death."""

    def __init__(self, site: "Site", number: int) -> None:
        self._site = site
        self.number = number
        self.skew = site.random.uniform(-60, 60) if site.has_skew else 0.0
        self.cut_until = 0.0
        self.machine = Machine("")
        self.machine.is_dead = True
        self.is_up = False
        self._starts = 0
        self._processes: list[SimulatedProcess] = []

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.machine.is_dead:
            return
        self._starts += 1
        self.machine = Machine(f"s{self.number}.{self._starts}")
        self.machine.on_death = self._ended
        self.machine.server = self  # type: ignore[attr-defined]
        self.spawn(self._run())

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run something on it."""
        context = self._site.outside.copy()
        context.run(MACHINE.set, self.machine)
        task: asyncio.Task[None] = self._site.loop.create_task(work, context=context)
        return task

    def _ended(self) -> None:
        site = self._site
        site.log(f"{self.machine.name} dies")
        self.is_up = False
        site.checks.machine_died(self.machine)
        for child in self._processes:
            child.orphan()
        self._processes.clear()
        pause = site.random.uniform(0.5, 45 if site.is_stormy else 2)
        site.loop.call_later(pause, self.start, context=site.outside)

    async def _run(self) -> None:
        site = self._site
        site.log(f"{self.machine.name} starts")
        line = Line(site, self)
        try:
            with patch.object(base, "Instance", lambda is_shared: Instance(is_shared, self.machine.name)):
                store: Any = ControlGroups(line, line, line, ControlRowTexts(line), is_shared=True)
            store.calls = self.calls = SiteCalls(site, self, line)
            self.store = store
            self.adapters = Adapters(store.adapters, site.folder, store.changes)
            await self.adapters.open(BASE)
            self.supervisor = self._make_supervisor(store)
            self.jobs = Jobs(site.settings, store.eval_jobs, _ENDED)
            self.jobs.register("work", self._work)
            self.jobs.register("score", self._score)
            self.monitors = Monitors(store, self._submit)
            self.alerts = AlertService(site.settings, store, lambda outcome: None)
            for service in (self.supervisor, self.jobs, self.monitors, self.alerts):
                await service.start()
        except HeddleError as error:
            site.log(f"{self.machine.name} cannot start: {error}")
            self.machine.die()
            return
        self.is_up = True
        site.log(f"{self.machine.name} is up")

    async def stop(self) -> None:
        """Stop as on SIGTERM."""
        self.is_up = False
        self._site.log(f"{self.machine.name} stops")
        for service in (self.alerts, self.monitors, self.jobs, self.supervisor):
            await service.stop()
        with contextlib.suppress(HeddleError):
            await self.store.leases.give_back()
        self.machine.die()

    def _make_supervisor(self, store: ControlGroups) -> Supervisor:
        site = self._site

        async def load(_ref: Any, start: bool) -> None:
            await asyncio.sleep(site.random.uniform(0, 1))

        info = SimpleNamespace(vocab_size=10, max_model_len=128)
        source = SimpleNamespace(name=BASE, folder=site.folder, digest="", config={})
        model = SimpleNamespace(source=source, info=info, engine=SimpleNamespace(load_adapter=load))

        async def get_model() -> Any:
            return model

        async def unload(_versions: Any) -> None:
            return None

        inference: Any = SimpleNamespace(is_off=False, model=get_model, adapters=self.adapters, unload=unload)
        options = ProcessOptions(silence=site.settings.training_lease)
        return Supervisor(
            site.settings, store.train_models, store.train_jobs, Policies(inference),
            lambda _: site.folder / "payload", _TRAINED, options,
        )  # fmt: skip

    def make_process(self, options: ProcessOptions) -> SimulatedProcess:
        """A training process on this server."""
        made = SimulatedProcess(self._site, options)
        self._processes.append(made)
        return made

    async def _work(self, job: EvalJob, run: JobRun) -> dict[str, Any]:
        site, machine = self._site, self.machine
        site.checks.begin(f"eval {job.id}", machine)
        try:
            for part in range(site.random.randrange(1, 4)):
                await asyncio.sleep(site.random.uniform(0.05, 25))
                if site.random.random() < 0.5:
                    await run.progress({"parts": part})
                if site.goes_wrong(0.03):
                    raise Unavailable("a provider does not answer")
                if site.random.random() < 0.02:
                    raise Later(site.random.uniform(1, 30))
            return {"by": machine.name}
        finally:
            site.checks.end(f"eval {job.id}", machine)

    async def _score(self, job: EvalJob, run: JobRun) -> dict[str, Any]:
        site, machine = self._site, self.machine
        site.checks.begin(f"eval {job.id}", machine)
        try:
            for call_id in job.body["call_ids"]:
                await asyncio.sleep(site.random.uniform(0.01, 0.5))
                site.checks.scored(job.body["monitor"], call_id)
            await run.progress({"calls": len(job.body["call_ids"])})
            return {}
        finally:
            site.checks.end(f"eval {job.id}", machine)

    async def _submit(self, caller: Caller, project_id: str, call_ids: list[str], _scorers: Any, **given: Any) -> Any:
        parsed = given["trigger_ref"].rpartition("/")[2].partition(":")[0]
        body = {"call_ids": list(call_ids), "monitor": parsed}
        return await self.jobs.submit("score", caller, project_id, body, job_id=given["job_id"])


class Site:
    """Everything of one simulation."""

    def __init__(self, seed: int, hours: float) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.loop = VirtualLoop()
        self.outside = copy_context()
        self.outside.run(MACHINE.set, None)
        self.hours = hours
        self.is_stormy = False
        self.has_faults = self.random.random() < 0.9
        self.has_skew = self.random.random() < 0.7
        self.rudeness = self.random.choice((0.0, 0.002, 0.02))
        """The share of trips to the database that fail by themselves."""
        self.look_seconds = self.random.choice((10.0, 30.0, 60.0, 120.0, 300.0, 300.0))
        self.lines: deque[str] = deque(maxlen=300)
        self.digest = hashlib.sha256()
        self.count = 0
        self.folder = Path(
            tempfile.mkdtemp(prefix="heddle-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self.settings = Settings(
            data=str(self.folder),
            evaluation_queue=self.random.choice((8, 1000)),
            alert_interval=self.random.choice((60.0, 180.0)),
            training_workers=self.random.choice((1, 2)),
            evaluation_workers=self.random.choice((1, 4)),
        )
        self.database = Database.empty()
        self.columns = Columns(self)
        self.checks = Checks(self)
        self.receiver = Receiver(self)
        self.saved: dict[str, int] = {}
        self.pids = itertools.count(1)
        self.signals = dict.fromkeys((f"rule{number}" for number in range(RULES)), False)
        self.servers = [Server(self, number) for number in range(self.random.choice((2, 2, 2, 3, 3, 4, 5)))]
        self.models: list[ModelRow] = []

    def log(self, text: str) -> None:
        """Note what happens; the same seed notes the same."""
        line = f"{self.loop.time():.6f} {text}"
        self.lines.append(line)
        self.digest.update(line.encode() + b"\n")
        self.count += 1

    def goes_wrong(self, share: float) -> bool:
        """Whether something that may go wrong does."""
        return self.is_stormy and self.random.random() < share

    def draw_trip(self, server: Server) -> tuple[float | None, float, bool]:
        """Seconds to the database (None: it never comes there) and back, and whether the answer is lost."""
        draw = self.random.random
        if not self.is_stormy:
            return 0.0005 + 0.004 * draw(), 0.0005, False
        is_cut = server.cut_until > self.loop.time()
        if is_cut or draw() < self.rudeness:
            # PostgreSQL's own limits: a connection that acknowledges nothing ends after 30 s, a statement after 60.
            kind, wait = draw(), draw() * draw() * 60
            if is_cut or kind < 0.4:
                return None, wait, True
            return (wait, 0.001, True) if kind < 0.6 else (0.001, wait, True) if kind < 0.8 else (wait, 0.001, False)
        return 0.0005 + 0.02 * draw() ** 4, 0.0005 + 0.02 * draw() ** 4, False

    def wall_clock(self) -> float:
        """The true instant."""
        return EPOCH + self.loop.time()

    def _time_ns(self) -> int:
        machine = MACHINE.get()
        skew = 0.0 if machine is None else machine.server.skew  # type: ignore[attr-defined]
        return int((self.wall_clock() + skew) * 1e9)

    async def _measure(self, _store: Any, _project: str, rule: Any, _now: int) -> Measurement:
        return Measurement(2.0 if self.signals[rule.filter.op_names[0]] else 0.0, 5)

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        clock = SimpleNamespace(time_ns=self._time_ns, monotonic=self.loop.time)

        async def start(options: ProcessOptions) -> TrainingProcess:
            await asyncio.sleep(self.random.uniform(0.1, 5))
            machine: Any = MACHINE.get()
            made: TrainingProcess = machine.server.make_process(options)
            return made

        async def find_stored(clickhouse: Any, keys: Any) -> Any:
            return await self.columns.find(clickhouse.server, list(keys))

        with contextlib.ExitStack() as stack:
            for owner, name, value in (
                (times, "time", clock),
                (redaction, "time", clock),
                (scoring, "time", clock),
                (times, "os", SimpleNamespace(urandom=self.random.randbytes)),
                (times, "_last_ticks", 0),
                (times, "_random_bytes", b""),
                (times, "_taken_bytes", 0),
                (runner, "LOOK_SECONDS", self.look_seconds),
                (monitors, "_LOOK_SECONDS", self.look_seconds),
                (alerts, "measure", self._measure),
                (alerts, "send", self.receiver.send),
                (alerts, "targets_of", lambda rule: {target["id"]: target for target in rule["targets"]}),
                (process.TrainingProcess, "start", staticmethod(start)),
                (call_writes, "find_stored", find_stored),
            ):
                stack.enter_context(patch.object(owner, name, value))
            self.database.clock = self.wall_clock
            self.database.on_commit = self.checks.committed
            yield

    def run(self) -> None:
        """Simulate; raises AssertionError with the seed where a promise was broken."""
        heddle = logging.getLogger("heddle")
        kept = heddle.handlers[:], heddle.propagate, heddle.level
        heddle.handlers, heddle.propagate = [self.checks.handler], False
        heddle.setLevel(logging.WARNING)
        try:
            with self._patched():
                self.loop.run(self._main())
        finally:
            heddle.handlers, heddle.propagate = kept[:2]
            heddle.setLevel(kept[2])
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _main(self) -> None:
        await self._prepare()
        for server in self.servers:
            server.start()
        self.is_stormy = self.has_faults
        clients = Clients(self)
        tasks = [asyncio.create_task(work) for work in clients.all()]
        if self.has_faults:
            tasks.append(asyncio.create_task(self._disturb()))
        until = self.loop.time() + self.hours * 3600
        while self.loop.time() < until and not self.checks.violations:
            await asyncio.sleep(10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.log("calm")
        self._calm()
        until = self.loop.time() + CALM_SECONDS
        while self.loop.time() < until and not self.checks.violations:
            await asyncio.sleep(30)
            if not self.checks.what_is_open(clients):
                break
        # Rules are judged, and endings handled, after the last job: seen after up to 300 s, traces scored 90 s later.
        await asyncio.sleep(500)
        self.checks.finish(clients)

    def _calm(self) -> None:
        """From now on nothing goes wrong; who stands still wakes up in time."""
        self.is_stormy = self.receiver.is_out = False
        for server in self.servers:
            server.cut_until = 0.0
            server.machine.dies_at = None

    async def _prepare(self) -> None:
        """Models and alert rules."""
        (self.folder / "payload").write_bytes(b"")
        groups = ControlGroups(*(Line(self, self.servers[0]) for _ in range(3)), ControlRowTexts(None), is_shared=True)  # type: ignore[arg-type, misc]
        for number in range(MODELS):
            own = str(uuid.UUID(int=number + 1))
            row = ModelRow(own, "team", "p", f"policy{number}", BASE, None, {}, times.now(), "me")
            folder = files.checkpoint_folder(own, 0)
            (self.folder / folder).mkdir(parents=True)
            for name in FILES:
                (self.folder / folder / name).write_text("")
            first = CheckpointRow(f"{own}/0", own, 0, None, None, folder, "", 0, {}, times.now())
            await groups.train_models.create(row, first)
            await groups.adapters.add(AdapterRow("team", "p", row.name, 0, BASE, folder, times.now(), "me"))
            await groups.adapters.point(("team", "p", row.name), 0)
            self.models.append(row)
        for name in self.signals:
            rule = {
                "metric": "count", "operator": ">", "threshold": 1.0, "window_seconds": 60,
                "filter": {"op_names": [name]},
                "targets": [{"id": f"t{n}", "kind": "webhook", "url": "https://x"} for n in range(TARGETS)],
            }  # fmt: skip
            await groups.alerts.create(
                AlertRow(
                    id=name, project=PROJECT, name=name, is_enabled=True, rule=rule, secret="", created_at=times.now(),
                    created_by="me",
                ),
                10,
            )  # fmt: skip

    async def _disturb(self) -> None:
        """What goes wrong: deaths at any step, standstills, cut lines, clocks that jump, restarts, outages."""
        draw = self.random
        pause = draw.choice((60, 240, 900))
        while True:
            await asyncio.sleep(draw.expovariate(1 / pause))
            await self.pause(1.0)
            server = draw.choice(self.servers)
            kind = draw.choice(("die", "die", "stand", "cut", "cut all", "jump", "restart", "receiver"))
            if kind == "die":
                server.machine.dies_at = server.machine.steps + draw.randrange(1, 300)
            elif kind == "stand":
                server.machine.stand(self.loop.time() + draw.choice((1, 12, 40, 120)) * draw.random())
            elif kind == "cut":
                server.cut_until = self.loop.time() + draw.choice((2, 20, 90)) * draw.random()
            elif kind == "cut all":
                for each in self.servers:
                    each.cut_until = self.loop.time() + draw.choice((2, 40)) * draw.random()
            elif kind == "jump" and self.has_skew:
                server.skew = draw.uniform(-60, 60)
            elif kind == "restart" and server.is_up:
                server.spawn(server.stop())
            elif kind == "receiver":
                self.receiver.is_out = not self.receiver.is_out
            self.log(f"{kind} {server.machine.name}")

    async def ask(self, ask: Callable[[Server], Awaitable[T]], seconds: float = 70.0) -> T:
        """Let some server answer a request. Raises Unavailable where none does in time, and what the server raises."""
        server = self.random.choice(self.servers)
        if not server.is_up:
            await asyncio.sleep(0.1)
            raise Unavailable("connection refused")
        answer: asyncio.Future[T] = self.loop.create_future()

        async def run() -> None:
            try:
                result = await ask(server)
            except HeddleError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        server.spawn(run())
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise Unavailable("no answer") from None

    async def pause(self, seconds: float) -> None:
        """Let a client rest for about so long, or until there is work again."""
        await asyncio.sleep(self.random.expovariate(1 / seconds))
        passed = self.loop.time() % (BUSY_SECONDS + QUIET_SECONDS)
        if passed > BUSY_SECONDS:
            await asyncio.sleep(BUSY_SECONDS + QUIET_SECONDS - passed)

    async def insist(self, ask: Callable[[Server], Awaitable[T]]) -> T:
        """Ask until it is done."""
        while True:
            try:
                return await self.ask(ask)
            except HeddleError:
                await asyncio.sleep(self.random.uniform(0.5, 5))


class Clients:
    """What people do with the servers; each remembers what it was told."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.jobs: dict[str, Wish] = {}
        self.training: dict[str, Wish] = {}
        self.calls: dict[str, Wish] = {}
        self.unanswered: dict[str, str] = {}
        """The traces of calls that were sent, by id, until each is acknowledged."""
        self.switches: dict[str, list[tuple[bool, float, float]]] = {}
        """By monitor: on or off, when it was asked for, and when that was acknowledged."""
        self.flips: dict[str, list[float]] = {name: [] for name in site.signals}

    def all(self) -> list[Coroutine[Any, Any, None]]:
        """What runs side by side."""
        return [
            self._run_jobs(), self._train(), self._write_calls(), self._switch_monitors(), self._flip_signals(),
            self._read_policies(),
        ]  # fmt: skip

    def _own_id(self) -> str:
        return str(uuid.UUID(int=self._site.random.getrandbits(128), version=4))

    async def _run_jobs(self) -> None:
        site = self._site
        while True:
            await site.pause(60)
            job_id, began = self._own_id(), site.loop.time()
            with contextlib.suppress(HeddleError):
                await site.ask(lambda server, own=job_id: server.jobs.submit("work", LOCAL, PROJECT_ID, {}, job_id=own))  # type: ignore[misc]
                self.jobs[job_id] = Wish(began, site.loop.time())
            if job_id in self.jobs and site.random.random() < 0.1:
                await asyncio.sleep(site.random.uniform(0, 20))
                with contextlib.suppress(HeddleError):
                    await site.ask(lambda server, own=job_id: server.jobs.cancel(PROJECT_ID, own))  # type: ignore[misc]
                    self.jobs[job_id].facts["cancelled"] = site.loop.time()

    async def _train(self) -> None:
        site = self._site
        while True:
            await site.pause(200)
            job_id, began, model = self._own_id(), site.loop.time(), site.random.choice(site.models)
            config = {"settings": {}, "threads": 1, "dtype": "float32", "device": "cpu", "sequence": 64}

            async def add(server: Server, own: str = job_id, of: str = model.id, config: Any = config) -> None:
                row = TrainJob(
                    id=own, model_id=of, kind="sft", config=config, payload="x", created_at=times.now(), created_by="me"
                )
                if await server.store.train_jobs.find(own) is None:
                    await server.store.train_jobs.add(row, 64)
                server.supervisor.wake()

            with contextlib.suppress(HeddleError):
                await site.ask(add)
                self.training[job_id] = Wish(began, site.loop.time(), {"model": model.id})
            if job_id in self.training and site.random.random() < 0.15:
                await asyncio.sleep(site.random.uniform(0, 60))
                with contextlib.suppress(HeddleError):
                    await site.ask(lambda server, own=job_id: server.supervisor.cancel(own))  # type: ignore[misc]
                    self.training[job_id].facts["cancelled"] = site.loop.time()

    async def _write_calls(self) -> None:
        """Calls whole, or as two halves at two servers; each is sent until it is acknowledged."""
        site = self._site
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await site.pause(30)
                trace = f"trace{number // site.random.choice((1, 3, 3))}"
                group.create_task(self._write_call(f"call{number}", trace))

    async def _write_call(self, call_id: str, trace: str) -> None:
        site = self._site
        began = site.loop.time()
        self.unanswered[call_id] = trace
        now = int(site.wall_clock() * 1e6)
        start = Start(PROJECT, call_id, trace, "op", now, "{}", "{}", "me")
        end = End(PROJECT, call_id, now + 1, "{}", "{}", 1)
        if site.random.random() < 0.5:
            await site.insist(lambda server: server.calls.write([start], [end]))
        else:
            halves: list[tuple[list[Start], list[End]]] = [([start], []), ([], [end])]
            site.random.shuffle(halves)
            together = [site.insist(lambda server, half=half: server.calls.write(*half)) for half in halves]  # type: ignore[misc]
            if site.random.random() < 0.5:
                await asyncio.gather(*together)
            else:
                for half in together:
                    await half
        del self.unanswered[call_id]
        self.calls[call_id] = Wish(began, site.loop.time(), {"trace": trace})

    async def _switch_monitors(self) -> None:
        site = self._site
        for number in itertools.count():
            name = ("each", "traces", "sometimes")[number % 3] if number < 3 else "sometimes"
            is_on = number < 3 or not self.switches[name][-1][0]
            debounce = {"aggregation_field": "trace_id", "timeout_seconds": 90}
            value = {
                "active": is_on, "scorers": [refs.object_ref(PROJECT, "object", "scorer", "d")],
                "scorer_debounce_config": debounce if name == "traces" else None,
            }  # fmt: skip
            text = json.dumps(value)
            new = NewVersion(PROJECT, "object", name, f"digest{number}", text, len(text), MONITOR_CLASS, None, "me")
            began = site.loop.time()
            await site.insist(lambda server, new=new: server.store.objects.create(new))  # type: ignore[misc]
            self.switches.setdefault(name, []).append((is_on, began, site.loop.time()))
            site.log(f"monitor {name} is {'on' if is_on else 'off'}")
            if number >= 2:
                await asyncio.sleep(site.random.uniform(1500, 3000))

    async def _flip_signals(self) -> None:
        site = self._site
        while True:
            await asyncio.sleep(site.random.uniform(600, 1800))
            name = site.random.choice(list(site.signals))
            site.signals[name] = not site.signals[name]
            self.flips[name].append(site.loop.time())
            site.log(f"signal {name} is {site.signals[name]}")

    async def _read_policies(self) -> None:
        """Whoever asks for a policy by its name gets what it meant when he asked, or what is newer."""
        site = self._site
        while True:
            await site.pause(30)
            name = site.random.choice(site.models).name
            before = site.checks.pointers[name]

            async def resolve(server: Server, name: str = name) -> Any:
                await server.adapters.look()
                return server.adapters.find(Address(name, None, "team", "p"), LOCAL)

            with contextlib.suppress(HeddleError):
                found = await site.ask(resolve)
                if found is None or found.row.step < before:
                    site.checks.violate(f"{name} meant step {before} when it was asked for, and answered as {found}")

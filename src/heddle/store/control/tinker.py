"""What clients of Tinker's protocol make: sessions, training runs, samplers, checkpoints, and their requests in order.

A request is a job of its run or sampler. Requests of a run are done in the order of their `seq`; what a run has become
is what the requests before made of it, so that they are kept until the trainer has stored what came of them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from heddle.errors import Busy, InvalidRequest
from heddle.store.control.audit import audit
from heddle.store.control.coordination import FAILED, NO_LEASE, QUEUED, RUNNING, SUCCEEDED, JobQueue
from heddle.store.control.repository import Indexed, Integer, Key, Mapped, Repository, Unique, set_values, writes
from heddle.store.control.training import EventRow, JobRow, add_step, end_runs, train_jobs
from heddle.store.control.training_models import train_models
from heddle.wire import times
from heddle.wire.jsontypes import Json

MOST_WAITING = 2000
"""Requests of one run or sampler that may wait."""
SAMPLE, TRAINING = "sample", "training"
"""The two kinds of work: what inference draws, what a trainer does to a run."""
REFUSED = "refused"
"""A request of a run that was refused: it has its turn, and ends with the refusal."""
CHANGING = ("forward_backward", "optim_step", "load_weights")
"""Kinds of requests that change what a run is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One client program. Times are microseconds."""

    id: Key[str]
    entity: str
    project: str
    key_id: str | None
    """The key that is charged for its samples."""
    about: Json
    """What the client says of itself: tags, user_metadata, display_name, sdk_version."""
    ending: Json | None = None
    """How the client finished it."""
    created_at: int
    created_by: str
    seen_at: int

    @property
    def project_id(self) -> str:
        """`entity/project`."""
        return f"{self.entity}/{self.project}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One model in training; its weights are those of a trainable model."""

    id: Key[str]
    model_id: Unique[str]
    session_id: Indexed[str]
    lora: Json
    """rank, and what is trained: train_attn, train_mlp."""
    user_metadata: Json | None
    next_seq: int = 1
    """The request that is done next."""
    applied: int = 0
    """The last request that changed the weights, the gradient or the optimizer."""
    kept: int = 0
    """The trainer can begin with what the requests up to this one made."""
    is_ended: bool = False
    created_at: int
    seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """What samples are drawn from."""

    id: Key[str]
    session_id: Indexed[str]
    base_model: str
    path: str | None
    """A checkpoint; None is the base model."""
    follows: str | None = None
    """A run: the newest of its weights that were saved as `inflight`."""
    clients: Integer = 0
    """Copies of the client that asked for a number of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRow:
    """A checkpoint as clients of the protocol call it; its files are those of a step of the run's model."""

    path: Key[str]
    run_id: Indexed[str]
    kind: str
    """`training`, `sampler`, `external`, or `ephemeral` and `inflight` for a sampler's weights without a name."""
    step: int
    bytes: int
    is_public: bool = False
    user_metadata: Json | None
    expires_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request; `number` orders the queue."""

    number: Key[Integer] = 0
    id: Unique[str]
    target: Indexed[str]
    """The run or sampler that it is for."""
    seq: int
    kind: str
    state: Indexed[str] = QUEUED
    body: bytes
    result: bytes | None = None
    error: str | None = None
    is_users_fault: bool = False
    attempts: Integer = 0
    cancel_asked: bool = False
    lease_owner: str | None = None
    lease_until: int | None = None
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None


_sessions, _runs = Mapped(SessionRow, "tinker_sessions"), Mapped(RunRow, "tinker_runs")
_samplers, _saved = Mapped(SamplerRow, "tinker_samplers"), Mapped(SavedRow, "tinker_checkpoints")
_requests = Mapped(RequestRow, "tinker_requests", sa.UniqueConstraint("target", "seq"))
TINKER_TABLES = tuple(mapped.table for mapped in (_sessions, _runs, _samplers, _saved, _requests))
_s, _r, _q, _c = _sessions.c, _runs.c, _requests.c, _saved.c


class TinkerRows(Repository):
    """The tables of sessions, runs, samplers and checkpoints."""

    @writes
    def add_session(self, connection: sa.Connection, row: SessionRow) -> None:
        """Make a session known, once."""
        _sessions.insert_new(connection, row)

    async def session(self, session_id: str) -> SessionRow | None:
        """The session with an id."""
        return await self._first(_sessions, _s.id == session_id)

    async def sessions(self, projects: Collection[tuple[str, str]] | None = None) -> list[SessionRow]:
        """The sessions (of some projects), newest first."""
        chosen = [] if projects is None else [sa.tuple_(_s.entity, _s.project).in_(list(projects))]
        return await self._all(_sessions, _sessions.select(*chosen).order_by(_s.created_at.desc(), _s.id))

    async def change_session(self, session_id: str, **changes: Any) -> None:
        """Set columns of a session."""
        await self._execute(_sessions.table.update().where(_s.id == session_id).values(changes))

    @writes
    def add_run(self, connection: sa.Connection, row: RunRow, request: RequestRow) -> None:
        """Make a run known with the request that made it, once; raises NotFound."""
        _sessions.require(connection, row.session_id)
        _runs.insert_new(connection, row)
        _requests.insert_new(connection, request)

    async def run(self, run_id: str) -> RunRow | None:
        """The run with an id."""
        return await self._first(_runs, _r.id == run_id)

    async def is_run(self, model_id: str) -> bool:
        """True for a trainable model that is a run's."""
        return await self._first(_runs, _r.model_id == model_id) is not None

    async def runs(self, session_ids: Collection[str] | None = None) -> list[RunRow]:
        """The runs (of some sessions), newest first."""
        chosen = [] if session_ids is None else [_r.session_id.in_(list(session_ids))]
        return await self._all(_runs, _runs.select(*chosen).order_by(_r.created_at.desc(), _r.id))

    @writes
    def end_run(self, connection: sa.Connection, run_id: str) -> None:
        """Take no more requests for a run, and forget those that wait and the bodies of those that are done."""
        connection.execute(_runs.table.update().where(_r.id == run_id).values(is_ended=True))
        mine = _requests.table.update().where(_q.target == run_id)
        connection.execute(mine.where(_q.state != RUNNING).values(body=b""))
        unloaded = {"state": FAILED, "error": "the model was unloaded", "is_users_fault": True}
        connection.execute(mine.where(_q.state == QUEUED).values(unloaded))

    @writes
    def end_jobs(self, connection: sa.Connection, at: int, unseen_since: int) -> None:
        """End jobs of runs that take no more requests, whose model is gone, or whose client was not heard of since."""
        is_over = sa.or_(_r.is_ended == 1, _s.ending.is_not(None), _s.seen_at < unseen_since)
        waits = sa.exists().where(_q.target == _r.id, _q.state.in_((QUEUED, RUNNING)))
        models = sa.select(_r.model_id).join(_sessions.table, _s.id == _r.session_id).where(is_over, ~waits)
        model, known = train_jobs.c.model_id, sa.select(train_models.c.id)
        end_runs(connection, sa.or_(model.in_(models), model.not_in(known)), at)

    @writes
    def add_sampler(self, connection: sa.Connection, row: SamplerRow) -> None:
        """Make a sampler known, once; raises NotFound."""
        _sessions.require(connection, row.session_id)
        _samplers.insert_new(connection, row)

    async def sampler(self, sampler_id: str) -> SamplerRow | None:
        """The sampler with an id."""
        return await self._first(_samplers, _samplers.c.id == sampler_id)

    async def samplers(self, session_id: str) -> list[SamplerRow]:
        """The samplers of a session."""
        return await self._all(_samplers, _samplers.select(_samplers.c.session_id == session_id))

    @writes
    def join_sampler(self, connection: sa.Connection, sampler_id: str) -> int:
        """A number for one more client of a sampler, from 1."""
        c = _samplers.c
        connection.execute(_samplers.table.update().where(c.id == sampler_id).values(clients=c.clients + 1))
        return int(connection.execute(sa.select(c.clients).where(c.id == sampler_id)).scalar_one())

    @writes
    def add_saved(self, connection: sa.Connection, row: SavedRow) -> None:
        """List a checkpoint in place of the one with its path; raises NotFound."""
        _runs.require(connection, row.run_id)
        connection.execute(_saved.table.delete().where(_c.path == row.path))
        _saved.insert(connection, row)

    async def saved(self, path: str) -> SavedRow | None:
        """The checkpoint with a path."""
        return await self._first(_saved, _c.path == path)

    async def saved_of(self, run_ids: Collection[str]) -> list[SavedRow]:
        """The checkpoints of runs, oldest first."""
        chosen = _saved.select(_c.run_id.in_(list(run_ids)))
        return await self._all(_saved, chosen.order_by(_c.created_at, _c.step))

    async def expired(self, now: int) -> list[SavedRow]:
        """The checkpoints whose time is over."""
        return await self._all(_saved, _saved.select(_c.expires_at <= now))

    async def change_saved(self, path: str, **changes: Any) -> None:
        """Set columns of a checkpoint."""
        await self._execute(_saved.table.update().where(_c.path == path).values(changes))

    @writes
    def publish_saved(self, connection: sa.Connection, path: str, is_public: bool, user: str, project: str) -> None:
        """Let every key read a checkpoint, or only those of its project (internal id)."""
        connection.execute(_saved.table.update().where(_c.path == path).values(is_public=is_public))
        action = "checkpoint.publish" if is_public else "checkpoint.unpublish"
        audit(connection, times.now(), user, action, project, {"path": path})

    async def remove_saved(self, path: str) -> None:
        """Forget a checkpoint."""
        await self._execute(_saved.table.delete().where(_c.path == path))


class TinkerRequests(JobQueue[RequestRow]):
    """The queue of requests."""

    jobs = _requests

    @writes
    def add(self, connection: sa.Connection, row: RequestRow) -> RequestRow:
        """Queue a request; the same one again (a client repeats it when it heard no answer) is the one that is there.

        Raises InvalidRequest for another request of that number, or one whose turn is over; NotFound, Busy.
        """
        found = _requests.first(connection, _requests.select(_q.target == row.target, _q.seq == row.seq))
        if found is not None:
            if (found.kind, found.body) != (row.kind, row.body) and found.body:
                raise InvalidRequest(f"seq_id {row.seq} was used by a different request", param="seq_id")
            return found
        if row.kind == SAMPLE:
            _samplers.require(connection, row.target)
        else:
            turn = _runs.require(connection, row.target)
            if turn.is_ended:
                raise InvalidRequest("The model was unloaded", param="model_id")
            if row.seq < turn.next_seq:
                raise InvalidRequest(
                    f"seq_id {row.seq} is already complete; the next one is {turn.next_seq}", param="seq_id"
                )
        waiting = sa.select(sa.func.count()).where(_q.target == row.target, _q.state == QUEUED)
        if connection.execute(waiting).scalar_one() >= MOST_WAITING:
            raise Busy(f"{MOST_WAITING} requests of {row.target} are already waiting")
        _requests.insert(connection, row)
        return row

    @writes
    def keep(self, connection: sa.Connection, row: RequestRow) -> RequestRow:
        """Store a request that was done at once; a repetition changes nothing."""
        _requests.insert_new(connection, row)
        return row

    async def find(self, request_id: str) -> RequestRow | None:
        """The request with an id."""
        return await self._first(_requests, _q.id == request_id)

    async def lease(self, now: int, seconds: float, held: Collection[str], *, samples: bool) -> RequestRow | None:
        """Take the oldest sample that waits, or the oldest request whose turn it is in its run."""
        chosen = self._next_sample if samples else self._next
        return await self._executor.write(
            lambda connection: self._take(connection, chosen, now, seconds, held=list(held))
        )

    @cached_property
    def _next_sample(self) -> sa.Select[Any]:
        return self._select_free(_q.kind == SAMPLE, order_by=[_q.number])

    @cached_property
    def _next(self) -> sa.Select[Any]:
        turn = sa.exists().where(_r.id == _q.target, _r.next_seq == _q.seq)
        return self._select_free(_q.kind != SAMPLE, turn, order_by=[_q.number])

    async def has_loaded(self, run_id: str, after: int) -> bool:
        """True where a run took other weights behind a request."""
        loads = (_q.target == run_id, _q.kind == "load_weights", _q.state == SUCCEEDED, _q.seq > after)
        return await self._scalar(sa.select(_q.id).where(*loads).limit(1)) is not None

    async def samples_of(self, run: RunRow, since: int) -> list[tuple[bytes, bytes, int]]:
        """What was drawn from weights of a run since an instant: requests, results, and the request that saved them.

        Samplers that follow a run draw from weights that nobody wrote down.
        """
        c, d = _samplers.c, _requests.c
        mine = (c.session_id == run.session_id, c.follows.is_(None), _c.run_id == run.id)
        drawn = (d.kind == SAMPLE, d.state == SUCCEEDED, d.ended_at >= since)
        joined = _samplers.table.join(_saved.table, _c.path == c.path).join(_requests.table, d.target == c.id)
        query = sa.select(d.body, d.result, _c.step).select_from(joined).where(*mine, *drawn).order_by(d.number)
        return [tuple(found) for found in await self._tuples(query)]

    async def changes_between(self, run_id: str, first: int, last: int) -> list[RequestRow]:
        """The requests behind `first` and before `last` that changed a run, in order."""
        chosen = _requests.select(
            _q.target == run_id, _q.seq > first, _q.seq < last, _q.kind.in_(CHANGING), _q.state == SUCCEEDED
        )
        return await self._all(_requests, chosen.order_by(_q.seq))

    @writes
    def finish(
        self,
        connection: sa.Connection,
        row: RequestRow,
        at: int,
        result: bytes | None,
        error: str | None = None,
        is_users_fault: bool = False,
        kept: int | None = None,
        step: tuple[JobRow, EventRow] | None = None,
    ) -> bool:
        """End a request of this server and let the next one of its run have its turn, with the `step` that it took.

        False (and no change) when another server has it.
        """
        values: dict[str, Any] = {"state": SUCCEEDED if error is None else FAILED, "result": result, "error": error}
        values |= {"is_users_fault": is_users_fault, "ended_at": at, **NO_LEASE}
        if not set_values(connection, self._update_mine, values, self._mine([row.id])):
            return False
        if row.kind != SAMPLE:
            changes: dict[str, Any] = {"next_seq": row.seq + 1, "seen_at": at}
            changes |= {"applied": row.seq} if error is None and row.kind in CHANGING else {}
            changes |= {} if kept is None else {"kept": kept}
            connection.execute(_runs.table.update().where(_r.id == row.target).values(changes))
        if step is not None:
            add_step(connection, *step)
        return True

    async def count_attempt(self, row: RequestRow) -> None:
        """Note that an attempt at a request ended without a result."""
        await self._set([row.id], {"attempts": row.attempts + 1})

    async def forget(self, before: int) -> None:
        """Remove what ended before an instant and is not needed to bring a run back."""
        kept = sa.select(_r.kept).where(_r.id == _q.target).scalar_subquery()
        is_needed = sa.and_(_q.kind.in_(CHANGING), _q.state == SUCCEEDED, _q.seq > kept)
        await self._execute(_requests.table.delete().where(_q.ended_at < before, sa.not_(is_needed)))

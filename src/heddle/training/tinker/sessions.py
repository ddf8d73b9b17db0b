"""Sessions of Tinker's protocol: one client program each, in a project that its key reaches."""

import secrets

from heddle.auth import Caller
from heddle.errors import Conflict, Gone, InvalidRequest, NotFound
from heddle.store.control.keys import Keys
from heddle.store.control.redaction import Redaction
from heddle.store.control.tinker import SessionRow, TinkerRows
from heddle.training.tinker.schemas import CreateSession
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.keys import Authority

DEFAULT_PROJECT = "tinker"
_SEEN_AGAIN = 60 * times.SECOND


class Sessions:
    """What clients ask for about their sessions."""

    def __init__(self, rows: TinkerRows, redaction: Redaction, keys: Keys) -> None:
        self._rows = rows
        self._redaction = redaction
        self._keys = keys

    async def create(self, wanted: CreateSession, caller: Caller, session_id: str | None = None) -> SessionRow:
        """A session in `project_id` (`entity/project`, or of the caller's own); raises Forbidden, Conflict."""
        project_id = name_project(wanted.project_id or caller.project or DEFAULT_PROJECT, caller)
        await self._check_redaction(project_id)
        entity, _, project = project_id.partition("/")
        about = wanted.model_dump(include={"tags", "user_metadata", "sdk_version", "display_name"})
        now = times.now()
        row = SessionRow(
            id=session_id or secrets.token_hex(12),
            entity=entity,
            project=project,
            key_id=caller.key_id,
            about=about,
            created_at=now,
            created_by=caller.user,
            seen_at=now,
        )
        await self._rows.add_session(row)
        return row

    async def find(self, session_id: str, caller: Caller) -> SessionRow:
        """A session that the caller's key reaches; raises NotFound for any other."""
        row = await self._rows.session(session_id)
        if row is None or not caller.reaches(row.project_id):
            raise NotFound(f"Session {session_id!r} not found")
        caller.open(row.project_id)
        return row

    async def open(self, session_id: str, caller: Caller) -> SessionRow:
        """A session that is not over, to store something in; raises NotFound, Gone, Conflict."""
        row = await self.find(session_id, caller)
        await self._check_redaction(row.project_id)
        if row.ending is not None:
            raise Gone(f"The session {session_id} has ended")
        return row

    async def _check_redaction(self, project_id: str) -> None:
        """Raise Conflict where something is redacted: what tokens say cannot be taken out."""
        if await self._redaction.of([refs.internal_project(project_id)]):
            raise Conflict(
                f"The project {project_id} has redaction rules, which cannot be applied to the tokens of the "
                "Tinker protocol; use /v1/preview/training-jobs, or a project without rules"
            )

    async def see(self, session_id: str, caller: Caller) -> None:
        """Note that a client lives; raises NotFound, Gone."""
        row = await self.open(session_id, caller)
        if times.now() - row.seen_at > _SEEN_AGAIN:
            await self._rows.change_session(session_id, seen_at=times.now())

    async def finish(self, session_id: str, ending: Json, caller: Caller) -> None:
        """End a session; how it ended first stays. Raises NotFound."""
        row = await self.find(session_id, caller)
        if row.ending is None:
            ending = await self._redaction.value(refs.internal_project(row.project_id), ending)
            await self._rows.change_session(session_id, ending=ending)
            await self._rows.end_jobs(times.now(), 0)

    async def find_problem(self, row: SessionRow) -> str | None:
        """Why requests of a session must not be done any more: the key that it was started with has ended."""
        if row.key_id is None:
            return None
        authority = Authority(row.key_id)
        return (await self._keys.problems([authority])).get(authority)

    async def list_reached(self, caller: Caller) -> list[SessionRow]:
        """The sessions that the caller's key reaches, newest first."""
        return [row for row in await self._rows.sessions() if caller.reaches(row.project_id)]

    async def move(self, session_id: str, project_id: str, caller: Caller) -> None:
        """Put a session into another project; raises InvalidRequest for one whose models stay where they are."""
        session = await self.find(session_id, caller)
        entity, _, project = name_project(project_id, caller).partition("/")
        await self._check_redaction(f"{entity}/{project}")
        if (entity, project) != (session.entity, session.project) and await self._rows.runs([session.id]):
            raise InvalidRequest(
                f"The session {session.id} has models, which stay in {session.project_id}; copy_weights puts their "
                "checkpoints into another project"
            )
        await self._rows.change_session(session.id, entity=entity, project=project)


def name_project(name: str, caller: Caller) -> str:
    """`entity/project`, also for a project of the caller's own; raises InvalidRequest, Forbidden."""
    project_id = name if "/" in name else f"{caller.default_entity}/{name}"
    caller.open(project_id)
    return project_id

"""What clients look up across sessions: sessions by a filter, and what checkpoints take."""

from collections import defaultdict

from heddle.auth import Caller
from heddle.store.control.tinker import SavedRow, SessionRow
from heddle.training.tinker.schemas import SearchSessions
from heddle.training.tinker.service import Tinker
from heddle.training.tinker.sessions import name_project
from heddle.wire import times
from heddle.wire.jsontypes import Json

ALIVE = 180 * times.SECOND
"""Since a client was last seen; it says that it lives every few seconds."""
_GIGABYTE = 10**9


async def find_sessions(tinker: Tinker, wanted: SearchSessions, caller: Caller) -> Json:
    """A page of sessions, newest first, and where the next one begins; raises Forbidden."""
    projects = None if wanted.project_ids is None else {name_project(name, caller) for name in wanted.project_ids}
    rows = [
        row
        for row in await tinker.sessions.list_reached(caller)
        if (projects is None or row.project_id in projects) and _is_wanted(row, wanted, caller)
    ]
    page = rows[: wanted.limit]
    saved = await _saved_of(tinker, page)
    last = page[-1] if len(rows) > len(page) else None
    cursor = last and {"last_created_at": times.to_iso(last.created_at), "last_session_id": last.id}
    return {"sessions": [_show(row, saved[row.id]) for row in page], "next_cursor": cursor}


def _is_wanted(row: SessionRow, wanted: SearchSessions, caller: Caller) -> bool:
    about, owner = row.about, wanted.owner
    owners = {"own": [caller.user], "user": owner.owner_urns}.get(owner.type)
    if owners is not None and row.created_by not in owners:
        return False
    if wanted.cursor is not None:
        last = (-times.to_micros(wanted.cursor.last_created_at), wanted.cursor.last_session_id)
        if (-row.created_at, row.id) <= last:
            return False
    if not wanted.user_metadata.items() <= (about.get("user_metadata") or {}).items():
        return False
    if wanted.session_id is not None or wanted.display_name is not None:
        name = (about.get("display_name") or "").lower()
        words = (wanted.display_name or "").lower().split()
        if row.id != wanted.session_id and not (words and all(word in name for word in words)):
            return False
    status = _status(row) or {}
    return wanted.statuses is None or any(
        status.get("type") == one.type and (one.reasons is None or status["reason"].get("type") in one.reasons)
        for one in wanted.statuses
    )


def _status(row: SessionRow) -> Json | None:
    if row.ending is not None:
        return {"type": "client_finished", **row.ending}
    return {"type": "active"} if times.now() - row.seen_at < ALIVE else None


def _show(row: SessionRow, saved: list[SavedRow]) -> Json:
    return {
        "session_id": row.id,
        "created_at": times.to_iso(row.created_at),
        "owner": row.created_by,
        "project_id": row.project_id,
        "status": _status(row),
        "checkpoints_count": len(saved),
        "display_name": row.about.get("display_name"),
        "user_metadata": row.about.get("user_metadata"),
        "checkpoint_storage_bytes": sum(one.bytes for one in saved),
    }


async def sum_storage(tinker: Tinker, project_id: str | None, caller: Caller) -> list[Json]:
    """Checkpoints and their bytes by project and user (of one project); raises Forbidden."""
    project = None if project_id is None else name_project(project_id, caller)
    rows = [row for row in await tinker.sessions.list_reached(caller) if project in (None, row.project_id)]
    sums: dict[tuple[str, str], list[int]] = defaultdict(list)
    saved = await _saved_of(tinker, rows)
    for row in rows:
        sums[row.project_id, row.created_by] += [one.bytes for one in saved[row.id]]
    return [
        {
            "project_id": project,
            "user_name": user,
            "checkpoint_count": len(sizes),
            "size_bytes": sum(sizes),
            "size_gigabytes": sum(sizes) / _GIGABYTE,
        }
        for (project, user), sizes in sorted(sums.items())
        if sizes
    ]


async def _saved_of(tinker: Tinker, sessions: list[SessionRow]) -> dict[str, list[SavedRow]]:
    """The checkpoints of each session."""
    owners = {run.id: run.session_id for run in await tinker.rows.runs([row.id for row in sessions])}
    found: dict[str, list[SavedRow]] = defaultdict(list)
    for saved in await tinker.rows.saved_of(list(owners)):
        found[owners[saved.run_id]].append(saved)
    return found

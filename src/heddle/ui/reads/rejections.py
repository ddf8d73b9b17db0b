"""What exports held that was not stored, as pages tell it."""

from heddle.store.base import Store
from heddle.wire import times
from heddle.wire.jsontypes import Json


async def describe_rejections(store: Store, project: str, since: int) -> list[Json]:
    """Counts by signal and cause, of a project (internal id; empty: of none) since an instant, the newest first."""
    rows = await store.rejections.of_project(project, since)
    return [
        {
            "signal": row.signal,
            "cause": row.cause,
            "count": row.count,
            "last_at": times.to_iso(row.last_at),
            "message": row.message,
        }
        for row in rows
    ]

"""What happened in each project, in sums that a list of projects shows; bodies are never read."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from heddle.store.clickhouse.breakdowns import SUMS, piece
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.usage_repeats import EACH_MODEL, around, counted
from heddle.store.control.object_rows import object_versions
from heddle.store.control.projects import projects
from heddle.store.control.schema import Executor
from heddle.store.kept import Kept
from heddle.wire import times
from heddle.wire.calls import ERROR, ModelUsage, ProjectActivity
from heddle.wire.inference import PriceChanges

_BLOCK = 600 * times.SECOND
_CALLS = f"""SELECT project, countIf(deleted_at = 0), maxOrNullIf(started_at, deleted_at = 0),
    countIf(deleted_at = 0 AND started_at >= {{since:Int64}}),
    countIf(deleted_at = 0 AND started_at >= {{since:Int64}} AND status = {ERROR})
    FROM {CALLS} FINAL GROUP BY project"""


class ProjectActivities:
    """The projects of the store with their sums; sums that took long are kept for a while."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self._clickhouse = clickhouse
        self._control = control
        self._kept: Kept[list[ProjectActivity]] = Kept()

    async def all(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        """Every project that holds a call or an object, or was made known; lately means since an instant."""
        return await self._kept.get(lambda: self._read(since, changes))

    def forget(self) -> None:
        """Look again when asked the next time."""
        self._kept.forget()

    async def _read(self, since: int, changes: PriceChanges) -> list[ProjectActivity]:
        # Whole blocks of ten minutes, as the embedded store counts them.
        rows = await self._clickhouse.rows(_CALLS, {"since": since // _BLOCK * _BLOCK})
        usage = await self._usage([row[0] for row in rows], since, changes)
        found = [
            ProjectActivity(project, calls, last, lately, errors, tuple(usage.get(project, ())))
            for project, calls, last, lately, errors in rows
        ]
        seen = {activity.project for activity in found}
        known = sorted(await self._control.read(_known) - seen)
        return [*found, *(ProjectActivity(project, 0, None, 0, 0, ()) for project in known)]

    async def _usage(self, names: Iterable[str], since: int, changes: PriceChanges) -> dict[str, list[ModelUsage]]:
        """What projects used since an instant; those whose prices change at the same times are read at once."""
        alike: dict[tuple[int, ...], list[str]] = {}
        for project in names:
            alike.setdefault(tuple(cut for cut in await changes(project) if cut > since), []).append(project)
        found: dict[str, list[ModelUsage]] = {}
        for cuts, group in alike.items():
            for project, *sums in await self._clickhouse.rows(_usage_sql(group, since, cuts)):
                found.setdefault(project, []).append(ModelUsage(*sums))
        return found


def _usage_sql(group: Sequence[str], since: int, cuts: Sequence[int]) -> str:
    own = f"project IN {listed(group)}"
    return f"""SELECT c.project, model, {SUMS} FROM {CALLS} AS c FINAL {EACH_MODEL}
        WHERE c.{own} AND c.deleted_at = 0 AND c.started_at >= {since} AND {counted(around(own, since))}
        GROUP BY c.project, model, {piece([since, *cuts])}"""


def _known(connection: sa.Connection) -> set[str]:
    named = sa.select(object_versions.c.project).where(object_versions.c.deleted_at.is_(None)).distinct()
    return set(connection.scalars(sa.select(projects.c.project).union(named)))

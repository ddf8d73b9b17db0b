"""Deletes the calls that are older than their project keeps them."""

import logging

from heddle.loops import Loop
from heddle.store.base import Store
from heddle.wire import times

logger = logging.getLogger("heddle.retention")
_PURGING = "retention"


class Retention(Loop):
    """Looks every `interval` seconds, on one of several servers, and at once when it is woken."""

    def __init__(self, store: Store, interval: float) -> None:
        super().__init__(self._look, logger, "old calls could not be deleted now", interval)
        self._store = store
        self._interval = interval

    async def _look(self) -> float:
        if await self._store.leases.take(_PURGING, self._interval) or self.was_woken:
            await self.purge()
        return self._interval

    async def purge(self) -> int:
        """Delete what is too old in every project; returns how many calls that were."""
        total = 0
        for project, days in await self._store.projects.with_retention():
            before = times.now() - days * times.DAY
            deleted = await self._store.calls.purge_older(project, before)
            if deleted:
                details = {"calls": deleted, "before": times.to_iso(before), "retention_days": days}
                await self._store.projects.note("heddle", "retention.purge", project, details)
                logger.info("deleted %d calls that were older than %d days", deleted, days)
            total += deleted
        if total:
            await self._store.collect_files()
        return total

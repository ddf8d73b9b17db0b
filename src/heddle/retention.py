"""Deletes the calls that are older than their project keeps them."""

import asyncio
import contextlib
import logging

from heddle.errors import HeddleError
from heddle.store.base import Store
from heddle.wire import times

logger = logging.getLogger("heddle.retention")
_PURGING = "retention"


class Retention:
    """Looks every `interval` seconds, on one of several servers, and at once when it is woken."""

    def __init__(self, store: Store, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            is_asked = self._wake.is_set()
            self._wake.clear()
            try:
                if await self._store.leases.take(_PURGING, self._interval) or is_asked:
                    await self.purge()
            except Exception as error:  # whatever it is, the next look may go well
                is_ours = not isinstance(error, HeddleError)
                logger.warning("old calls could not be deleted now: %s", error, exc_info=is_ours)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval)

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

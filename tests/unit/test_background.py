"""What a server does beside its requests goes on after a fault of ours, which would otherwise end it silently."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from heddle.evals import monitors
from heddle.evals.monitors import Monitors
from heddle.settings import Settings
from heddle.store.control.monitors import AlertRow, DeliveryRow
from heddle.store.sqlite.store import open_store
from heddle.trace.alerts import service
from heddle.trace.alerts.service import AlertService
from heddle.trace.project import Retention
from heddle.wire.calls import CallsQuery, Start
from tests.support.patience import strain

INTERVAL = 0.01


async def _submit(*_given: Any, **_named: Any) -> str:
    raise AssertionError("nothing is to be scored here")


def test_loops_go_on_after_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        settings = Settings(data=str(tmp_path), alert_interval=INTERVAL)
        monkeypatch.setattr(monitors, "PAUSE_SECONDS", INTERVAL)
        store = await open_store(settings)
        asked: Counter[str] = Counter()
        have_gone_on = asyncio.Event()

        async def take(name: str, _seconds: float) -> bool:
            asked[name] += 1
            if asked[name] == 1:
                raise RuntimeError("a fault of ours")
            if set(asked) == {"retention", "alerts", "monitors"} and min(asked.values()) > 1:
                have_gone_on.set()
            return False

        monkeypatch.setattr(store.leases, "take", take)
        alerts, watching = AlertService(settings, store, lambda _: None), Monitors(store, _submit)
        purging = asyncio.create_task(Retention(store, INTERVAL, 0).run())
        await alerts.start()
        await watching.start()
        try:
            await asyncio.wait_for(have_gone_on.wait(), 30 * strain())
        finally:
            purging.cancel()
            await asyncio.gather(purging, return_exceptions=True)
            await watching.stop()
            await alerts.stop()
            await store.close()

    asyncio.run(main())


def test_a_message_that_cannot_be_made_counts_its_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried every five seconds for ever, and nobody who asked was told."""

    async def main() -> None:
        settings = Settings(data=str(tmp_path), alert_interval=60)
        store = await open_store(settings)
        told, outcomes = asyncio.Event(), list[str]()

        async def send(*_given: Any) -> str:
            raise RuntimeError("a fault of ours")

        def count(outcome: str) -> None:
            outcomes.append(outcome)
            told.set()

        monkeypatch.setattr(service, "send", send)
        alerts = AlertService(settings, store, count)
        rule = {"webhook_url": "http://x"}
        row = AlertRow(
            id="a", project="p", name="n", is_enabled=False, rule=rule, secret="s", created_at=1, created_by="u"
        )
        assert await store.alerts.create(row, 1)
        await alerts.start()
        try:
            await alerts.test(row)
            await asyncio.wait_for(told.wait(), 30 * strain())
            [message] = await store.alert_deliveries.query("p", "a", 10, 0)
            assert (outcomes, message.attempts, message.error) == (["put_off"], 1, "Internal server error")
        finally:
            await alerts.stop()
            await store.close()

    asyncio.run(main())


def test_a_receiver_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        store = await open_store(Settings(data=str(tmp_path)))
        waiting = [("loud", "a", "dead")] * 3 + [("loud", "a", "live"), ("quiet", "b", "")]
        try:
            for alert, project in (("a", "loud"), ("b", "quiet")):
                row = AlertRow(
                    id=alert, project=project, name="n", is_enabled=False, rule={}, secret="s", created_at=1,
                    created_by="u",
                )  # fmt: skip
                assert await store.alerts.create(row, 1)
            for at, (project, alert, target) in enumerate(waiting, 1):
                message = DeliveryRow(
                    id=f"m{at}", alert_id=alert, project=project, event="alert.test", body="{}", created_at=at,
                    next_at=at, target=target,
                )  # fmt: skip
                assert await store.alert_deliveries.add([message])
            taken = [await store.alert_deliveries.take(100) for _ in waiting]
            assert [row.id for row in taken if row] == ["m1", "m5", "m4", "m2", "m3"]
        finally:
            await store.close()

    asyncio.run(main())


def test_a_retention_that_is_taken_back_deletes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was being deleted, and projects whose turn was still to come, lost everything all the same."""
    monkeypatch.setattr("heddle.store.sqlite.calls.PURGE_SLICE", 2)

    async def main() -> list[int]:
        store = await open_store(Settings(data=str(tmp_path)))
        try:
            for project in ("one", "two"):
                starts = [Start(project, f"{n}", "t", "op", n, "{}", "{}", "user") for n in range(5)]
                await store.calls.write(starts, [])
                await store.projects.set_retention(project, 1, "ada")
            asked = iter([1])

            async def retention(_project: str) -> int | None:
                return next(asked, None)

            monkeypatch.setattr(store.projects, "retention", retention)
            removed = await Retention(store, 60, 0).purge()
            return [removed, *[await store.calls.count(CallsQuery(project)) for project in ("one", "two")]]
        finally:
            await store.close()

    assert asyncio.run(main()) == [2, 3, 5]

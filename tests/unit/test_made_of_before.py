"""What is made of what was there: versions behind the newest one, chains of responses; and purges that wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.settings import Settings
from heddle.store.base import ControlGroups
from heddle.store.control import object_labels
from heddle.store.control.erasure import PURGE_JOB, Counts
from heddle.store.control.eval_jobs import JobRow
from heddle.store.control.objects import NewVersion, ObjectFilter
from heddle.store.control.responses import ResponseRow
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.control.tinker import RequestRow, RunRow, SamplerRow, SavedRow
from heddle.store.control.training import JobRow as TrainJob
from heddle.store.control.training_models import CheckpointRow, LogRow
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteControl, open_file
from heddle.wire import refs
from heddle.wire.records import VersionLabels

PROJECT = refs.internal_project("team/one")


def run(folder: Path, work: Callable[[ControlGroups], Awaitable[None]]) -> None:
    """Do something with the control tables of a new folder."""

    async def opened() -> None:
        settings = Settings(data=str(folder))
        control = SqliteControl(settings, folder / DATABASE, open_file(settings, folder / DATABASE))
        try:
            await work(ControlGroups(control.executor, control.keys, control.spans, ControlRowTexts(control.executor)))
        finally:
            await control.close()

    asyncio.run(opened())


def version(digit: int, after: str | None = None, base: str | None = None) -> NewVersion:
    """A version whose digest is one digit, many times."""
    return NewVersion(PROJECT, "object", "o", str(digit) * 43, f'{{"n":{digit}}}', 7, base, None, "me", after)


def test_a_version_comes_behind_the_one_that_it_was_made_of_or_not_at_all(tmp_path: Path) -> None:
    async def work(store: ControlGroups) -> None:
        await store.objects.create(version(0, after=""))
        await store.objects.create(version(1, after="0" * 43))
        for stale in ("0" * 43, ""):
            for digit in (0, 2):  # one that is there would become the latest
                with pytest.raises(Conflict):
                    await store.objects.create(version(digit, after=stale))
        with pytest.raises(InvalidRequest):
            await store.objects.create(version(3, after="", base="Model"))
        (found,) = [page async for page in store.objects.pages(PROJECT, ObjectFilter())]
        assert [(row.val, row.is_latest) for row in found] == [('{"n":0}', False), ('{"n":1}', True)]

    run(tmp_path, work)


def test_all_versions_have_the_same_tags(tmp_path: Path) -> None:
    async def work(store: ControlGroups) -> None:
        async def tags() -> list[list[str] | None]:
            return [row.tags for row in await store.objects.query(PROJECT, ObjectFilter(), with_labels=True)]

        async def create(digit: int, wanted: list[str] | None) -> None:
            await store.objects.create(replace(version(digit), labels=VersionLabels(["best"], wanted)))

        await store.objects.create(version(0))
        await store.objects.add_tags(PROJECT, "o", "0" * 43, ["a"], "me")
        await store.objects.add_tags(PROJECT, "o", "0" * 43, ["a", "b"], "me")
        await create(1, None)
        assert await tags() == [["a", "b"], ["a", "b"]]
        await create(2, ["c", "b"])
        assert await tags() == [["b", "c"]] * 3
        await create(3, [])
        assert await tags() == [[]] * 4
        found = await store.objects.read(PROJECT, "o", "best")
        assert found is not None and found.version_index == 3

    run(tmp_path, work)


def test_a_version_is_there_with_its_labels_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Conflict("no tags")

    async def work(store: ControlGroups) -> None:
        monkeypatch.setattr(object_labels, "set_tags", fail)
        with pytest.raises(Conflict):
            await store.objects.create(replace(version(0), labels=VersionLabels(["best"], ["a"])))
        assert await store.objects.query(PROJECT, ObjectFilter()) == []

    run(tmp_path, work)


def test_a_purge_of_a_project_leaves_the_jobs_that_are_open(tmp_path: Path) -> None:
    async def work(store: ControlGroups) -> None:
        for name, kind, state in (
            ("own", PURGE_JOB, "running"),
            ("waits", PURGE_JOB, "queued"),
            ("done", PURGE_JOB, "succeeded"),
            ("other", "replay", "cancelled"),
            ("came", "replay", "queued"),
        ):
            row = JobRow(id=name, kind=kind, project_id="team/one", body={}, caller={}, created_at=0, state=state)
            await store.eval_jobs.add(row, 9)
        await store.erasure.project(PROJECT, Counts())
        found = [
            name for name in ("own", "waits", "done", "other", "came") if await store.eval_jobs.find("team/one", name)
        ]
        assert found == ["own", "waits", "came"]

    run(tmp_path, work)


def test_of_jobs_that_come_at_once_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    """Two improvements of one model, both of which had found no other, were queued."""

    def refuse_second(open_jobs: Sequence[JobRow]) -> None:
        if open_jobs:
            raise Conflict(open_jobs[0].id)

    async def work(store: ControlGroups) -> None:
        def job(name: str, kind: str, project: str) -> JobRow:
            return JobRow(id=name, kind=kind, project_id=project, body={}, caller={}, created_at=0)

        for other in (job("kind", "replay", "team/one"), job("project", "improve", "team/two")):
            await store.eval_jobs.add(other, 9)
        rows = [job(name, "improve", "team/one") for name in ("first", "second")]
        found = await asyncio.gather(
            *(store.eval_jobs.add(row, 9, refuse_second) for row in rows), return_exceptions=True
        )
        assert isinstance(found[0], JobRow) and isinstance(found[1], Conflict) and str(found[1]) == "first"
        assert await store.eval_jobs.add(rows[0], 9, refuse_second) == found[0]
        assert await store.eval_jobs.find("team/one", "second") is None

    run(tmp_path, work)


def test_nothing_is_stored_below_what_was_removed(tmp_path: Path) -> None:
    """A purge came between the look and the write: the rows stayed, and an optimizer step was a 500.

    So did responses that were being made of what was removed.
    """

    async def work(store: ControlGroups) -> None:
        tinker, queue, models = store.tinker, store.tinker_requests, store.train_models
        asked = RequestRow(id="r", target="gone", seq=1, kind="optim_step", body=b"", created_at=1)
        made = RunRow(id="r", model_id="gone", session_id="gone", lora={}, user_metadata=None, created_at=1, seen_at=1)
        job = TrainJob(id="r", model_id="gone", kind="rl", config={}, payload="p", created_at=1, created_by="me")
        saved = SavedRow(
            path="p", run_id="gone", kind="sampler", step=1, bytes=1, user_metadata=None, expires_at=None, created_at=1
        )
        answer = ResponseRow(
            id="r", owner=PROJECT, thread_id="t", status="completed", body={"output": []}, input=[], created_at=1
        )
        for stored in (
            store.responses.store(replace(answer, previous_id="gone"), None),
            store.responses.store(answer, "gone"),
            store.responses.add(replace(answer, previous_id="gone"), 9),
            tinker.add_run(made, asked),
            tinker.add_sampler(SamplerRow(id="s", session_id="gone", base_model="base", path=None)),
            tinker.add_saved(saved),
            queue.add(asked),
            queue.add(replace(asked, kind="sample")),
            models.add_log(LogRow("l", "gone", 0, "train", {}, "", 1, 1, 1, "me")),
            store.train_jobs.add(job, 9),
            models.add_checkpoint(CheckpointRow("c", "gone", 1, 0, None, "training/gone/1", "d", 1, {}, 1)),
        ):
            with pytest.raises(NotFound):
                await stored
        left = (
            await tinker.runs(),
            await tinker.samplers("gone"),
            await tinker.saved_of(["gone"]),
            await queue.find("r"),
            await store.train_jobs.find("r"),
            await store.responses.find(PROJECT, "r"),
        )
        assert not any((*left, await models.checkpoints("gone"), await models.logs("gone")))

    run(tmp_path, work)


def test_the_length_of_a_chain_is_that_of_all_that_it_continues(tmp_path: Path) -> None:
    async def work(store: ControlGroups) -> None:
        rows = [
            ResponseRow(
                id=f"r{number}",
                owner="me",
                previous_id=f"r{number - 1}" if number else None,
                thread_id="t",
                status="completed",
                body={"output": [{"n": number}]},
                input=[{"text": "x" * 100}],
                created_at=number,
            )
            for number in range(3)
        ]
        for row in rows:
            await store.responses.add(row, 9)
        each = [len(orjson.dumps(row.input)) + len(orjson.dumps(row.body)) for row in rows]
        assert [await store.responses.chain_chars("me", row.id) for row in rows] == [each[0] * n for n in (1, 2, 3)]
        assert await store.responses.chain_chars("other", "r2") == await store.conversations.chars("none") == 0

    run(tmp_path, work)

"""A purge leaves no byte of its subject in any file, and everything of others as it was, whatever happens meanwhile."""

import asyncio
import contextlib
import errno
import math
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import sqlalchemy as sa

from heddle.auth import LOCAL
from heddle.inference.adapters import FILES, Address
from heddle.paths import model_folder
from heddle.settings import Settings
from heddle.store.blobs.open import open_blobs
from heddle.store.control.erasure import SUBJECTS
from heddle.store.control.inference import AdapterRow
from heddle.store.integrity import SqliteIntegrity
from heddle.store.sqlite.database import DATABASE
from heddle.transfer.export import export
from heddle.transfer.validation import ArchiveCheck
from tests.conftest import Wire
from tests.support import planted, scale
from tests.support.clickhouse import clickhouse_process
from tests.support.evaluations import Lab
from tests.support.inprocess import running_services
from tests.support.patience import strain
from tests.support.postgres import postgres_server
from tests.support.provider import FakeProvider
from tests.support.s3 import BUCKET, S3Server
from tests.support.server import HeddleProcess

OWN, OTHER = "team/own", "team/other"
MARKER, NEIGHBOUR = "plantedZebra77", "plantedOkapi88"


def purge(client: httpx.Client, subject: str, name: str = "", project: str = OWN) -> str:
    """Ask for a purge; the id of its job."""
    body = {"project_id": project, "subject": subject, "id": name}
    return str(planted.send(client, "/project/purge", body)["job_id"])


def find_job(client: httpx.Client, job_id: str, project: str = OWN) -> dict[str, Any]:
    found = planted.send(client, "/evaluations/jobs/query", {"project_id": project})["jobs"]
    return next(job for job in found if job["id"] == job_id)


def wait_for(client: httpx.Client, job_id: str, project: str = OWN) -> dict[str, Any]:
    """The job once it has ended, which must be well."""
    deadline = time.monotonic() + 120 * strain()
    while (job := find_job(client, job_id, project))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    assert job["state"] == "succeeded", job
    return job


def make_old(data: Path) -> None:
    """Let the blobs be older than what a purge waits for."""
    for path in data.glob("**/??/*"):
        os.utime(path, (1, 1))


def contents(client: httpx.Client, project: str) -> list[Any]:
    """What a project shows of its calls, feedback and objects."""
    calls = client.post("/calls/stream_query", json={"project_id": project, "include_feedback": True}).text
    objects = planted.send(client, "/objs/query", {"project_id": project})
    return [calls, objects, planted.send(client, "/project/stats", {"project_id": project})]


def call_ids(client: httpx.Client, project: str) -> set[str]:
    found = client.post("/calls/stream_query", json={"project_id": project, "columns": ["id"]}).text
    return {orjson.loads(line)["id"] for line in found.splitlines()}


@contextlib.contextmanager
def writing(url: str) -> Iterator[list[str]]:
    """Another client that stores calls meanwhile, until the server is gone; the ids of those that were stored."""
    stopping = threading.Event()
    written: list[str] = []
    run = uuid.uuid4().hex

    def write() -> None:
        with httpx.Client(base_url=url, timeout=60) as other:
            while not stopping.is_set():
                name = f"{run}-{len(written)}"
                one = planted.call(OTHER, name, name, inputs={"text": NEIGHBOUR})
                try:
                    planted.send(other, "/v2/team/other/calls/complete", {"batch": [one]})
                except httpx.HTTPError:
                    return
                written.append(name)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        stopping.set()
        writer.join()


@scale.on_sqlite
@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_byte_of_the_subject_is_left(tmp_path: Path, subject: str) -> None:
    data = tmp_path / "data"
    with HeddleProcess(data) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        kept = "keptGiraffe99"
        planted.plant(client, OTHER, NEIGHBOUR, "other", user="ada")
        planted.publish(client, OTHER, NEIGHBOUR, "words")
        staying = planted.plant(client, OWN, kept, "staying", user="grace") if subject != "project" else {}
        if subject == "object":
            planted.publish(client, OWN, kept, "kept-words")
        going = planted.plant(client, OWN, MARKER, "going", user="ada") if subject != "object" else {}
        if subject in ("object", "project"):
            planted.publish(client, OWN, MARKER, "words")
        if subject in ("call", "trace"):
            planted.send(client, "/calls/delete", {"project_id": OWN, "call_ids": [going["call"]]})
        before = contents(client, OTHER)
        (data / f"{DATABASE}.before-3").write_text(MARKER)
        make_old(data)
        assert planted.files_with(data, MARKER), "nothing was planted"
        name = {"object": "words", "project": ""}.get(subject) if subject in ("object", "project") else going[subject]
        job = wait_for(client, purge(client, subject, name or ""))
        removed = job["result"]["removed"]
        assert removed.get("calls", 0) == (0 if subject == "object" else 2), removed
        assert planted.files_with(data, MARKER) == []
        assert planted.rows_with(data / DATABASE, MARKER) == []
        assert contents(client, OTHER) == before
        if subject not in ("project", "object"):
            assert removed["feedback"] == 1 and removed["files"] == 3
            found = planted.send(client, "/calls/query_stats", {"project_id": OWN})["count"]
            assert found == 2
        if staying:
            assert planted.files_with(data, kept)
    assert planted.files_with(data, MARKER) == []


@scale.on_sqlite
def test_what_scores_and_replays_copied_goes_with_the_call(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with FakeProvider() as provider, HeddleProcess(data, providers=f"fake={provider.url}") as server:
        wire = Wire(server.url, OWN)
        lab = Lab(wire)
        scorer = lab.scorer("ValidJSONScorer")
        for user, text in (("ada", MARKER), ("grace", NEIGHBOUR)):
            inputs = {"messages": [{"role": "user", "content": text}]}
            one = planted.call(OWN, f"{user}-1", f"{user}-1", inputs=inputs, output=text, attributes={"user": user})
            planted.send(wire.client, "/v2/team/own/calls/complete", {"batch": [one]})
        wire.post("/calls/score", call_ids=["ada-1", "grace-1"], scorer_refs=[scorer])
        wire.post("/replays/create", filter={"op_names": ["ask"]}, model="fake/m", scorer_refs=[scorer])
        kinds = [job["kind"] for job in lab.jobs_done()]
        assert sorted(kinds) == ["replay", "score_calls", "score_calls"]
        assert len(wire.calls()) == 11, "two calls, two answers, six scores, and the replay"
        make_old(data)
        removed = wait_for(wire.client, purge(wire.client, "user", "ada"))["result"]["removed"]
        assert (removed["calls"], removed["replay_items"]) == (5, 1)
        assert len(wire.calls()) == 6
        # The provider answers in capitals.
        left = [planted.files_with(data, text) for text in (MARKER, MARKER.upper(), NEIGHBOUR, NEIGHBOUR.upper())]
        assert [bool(files) for files in left] == [False, False, True, True]
        wire.close()


def test_every_table_says_how_it_is_erased() -> None:
    assert planted.tables_without_line() == set()


@scale.on_sqlite
def test_every_table_is_emptied_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses a removal once, and the job is tried again."""
    monkeypatch.setattr("heddle.store.base.SETTLE_SECONDS", -1.0)
    remove, refused = shutil.rmtree, list[Path]()

    def refuse_once(folder: Path) -> None:
        if not refused:
            refused.append(folder)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        remove(folder)

    monkeypatch.setattr("heddle.training.files.shutil.rmtree", refuse_once)

    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            store = services.store
            keep = store.blobs.put_bytes
            await store.control.write(lambda c: planted.fill(c, OWN, MARKER, keep))
            others = await store.control.write(lambda c: planted.fill(c, OTHER, NEIGHBOUR, keep))
            assert set(others.values()) == {1}
            folder = tmp_path / model_folder(MARKER)
            folder.mkdir(parents=True)
            (folder / "weights").write_text(MARKER)
            asked = await client.post("/project/purge", json={"project_id": OWN, "subject": "project"})
            job = await services.jobs.wait(OWN, asked.json()["job_id"])
            assert job.state == "succeeded", job.error
            assert await store.control.read(lambda c: planted.count(c, OTHER)) == others
            left = await store.control.read(lambda c: planted.count(c, OWN))
            assert {name: found for name, found in left.items() if found} == {"eval_jobs": 1}
            assert planted.rows_with(tmp_path / DATABASE, MARKER) == []
            assert planted.files_with(tmp_path, MARKER) == []
            assert planted.files_with(tmp_path, NEIGHBOUR) and refused == [folder]

    asyncio.run(run())


def test_an_adapter_is_unknown_before_its_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats got a 503 that told of files which all servers must share. After a crash the job knows the folder."""
    address, folder = Address("tuned", 0, *OWN.split("/")), "adapters/tuned"
    found: list[Any] = []

    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            offered, loop = services.inference.adapters, asyncio.get_running_loop()
            (tmp_path / folder).mkdir(parents=True)
            for name in FILES:
                (tmp_path / folder / name).touch()
            row = AdapterRow(address.entity, address.project, address.name, 0, "base", folder, 1, "ada")
            await services.store.adapters.add(row)
            await offered.open("base")
            assert offered.find(address, LOCAL) is not None

            async def look() -> None:
                await offered.look()
                found.append((offered.find(address, LOCAL), offered.without_files(address, LOCAL)))
                listed = await client.post("/evaluations/jobs/query", json={"project_id": OWN})
                found.append(listed.json()["jobs"][0]["progress"]["folders"])

            def remove(path: Path) -> None:
                asyncio.run_coroutine_threadsafe(look(), loop).result(60 * strain())
                assert path == tmp_path / folder
                shutil.rmtree(path)

            monkeypatch.setattr("heddle.purge.files.remove", remove)
            asked = await client.post("/project/purge", json={"project_id": OWN, "subject": "project"})
            job = await services.jobs.wait(OWN, asked.json()["job_id"])
            assert job.state == "succeeded", job.error
            assert found == [(None, None), [folder]] and (job.result or {})["removed"]["adapters"] == 1

    asyncio.run(run())


def test_files_of_models_and_adapters_that_came_meanwhile_go_with_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights stayed on the disk, and nothing named them any more."""
    owners = {OWN: MARKER, OTHER: NEIGHBOUR}
    folders = {
        tmp_path / "adapters" / f"{table}-{marker}": project
        for project, marker in owners.items()
        for table in ("adapters", "train_checkpoints")
    }

    async def none(*_: object) -> list[Any]:
        return []

    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            for project, marker in owners.items():
                await services.store.control.write(
                    lambda c, project=project, marker=marker: planted.fill(c, project, marker, lambda _: "")
                )
            for folder in folders:
                (folder / "weights").mkdir(parents=True)
            # As if they had come behind the looks for them.
            monkeypatch.setattr(services.store.train_models, "all", none)
            monkeypatch.setattr(services.store.erasure, "folders", none)
            asked = await client.post("/project/purge", json={"project_id": OWN, "subject": "project"})
            job = await services.jobs.wait(OWN, asked.json()["job_id"])
            assert job.state == "succeeded", job.error
            assert {folder: folder.exists() for folder in folders} == {
                folder: project == OTHER for folder, project in folders.items()
            }

    asyncio.run(run())


@scale.on_sqlite
def test_it_goes_on_after_a_kill_while_others_write(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = HeddleProcess(data)
    with server, httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(30):
            calls = [
                planted.call(OWN, f"c{number}-{one}", f"t{number}", inputs={"text": f"{MARKER} " * 50})
                for one in range(100)
            ]
            planted.send(client, "/v2/team/own/calls/complete", {"batch": calls})
        with writing(server.url) as written:
            job_id = purge(client, "project")
            deadline = time.monotonic() + 60
            while planted.send(client, "/calls/query_stats", {"project_id": OWN})["count"] in (0, 3000):
                if find_job(client, job_id)["state"] not in ("queued", "running"):
                    break
                assert time.monotonic() < deadline
            server.kill()
    with HeddleProcess(data) as again, httpx.Client(base_url=again.url, timeout=60) as client:
        with writing(again.url) as others:
            wait_for(client, job_id)
        assert planted.files_with(data, MARKER) == []
        assert call_ids(client, OTHER) >= {*written, *others}


@scale.on_sqlite
def test_bad_requests_change_nothing(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for body in ({"subject": "planet", "id": "x"}, {"subject": "call"}, {"subject": "project", "id": "x"}):
            assert client.post("/project/purge", json={"project_id": OWN, **body}).status_code in (400, 422)
        assert planted.send(client, "/evaluations/jobs/query", {"project_id": OWN})["jobs"] == []


@pytest.mark.skipif(scale.missing() is not None, reason=str(scale.missing()))
@pytest.mark.thorough
@pytest.mark.parametrize("subject", reversed(SUBJECTS))
def test_no_byte_is_left_on_clickhouse_postgresql_and_s3(tmp_path: Path, s3: S3Server, subject: str) -> None:
    """Neither in parts that ClickHouse has given up, nor in PostgreSQL's files and dump, nor in the bucket's folder."""
    data, marker = tmp_path / "data", f"{MARKER}{subject}"
    settings: dict[str, object] = {**scale.new_databases(), "files": s3.new_prefix()}
    control = str(settings["control"])

    def found() -> list[str]:
        places = (data, s3.bucket.parent, postgres_server().folder, clickhouse_process().folder)
        names = [name for folder in places for name in planted.files_with(folder, marker)]
        # What PostgreSQL writes ahead it uses again by itself.
        names = [name for name in names if "pg_wal" not in name and not name.endswith("log")]
        return names + ["dump"] * (marker in postgres_server().dump(control))

    with HeddleProcess(data, None, **settings) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        planted.plant(client, OTHER, NEIGHBOUR, "other", user="ada")
        planted.publish(client, OTHER, NEIGHBOUR, "words")
        staying = planted.plant(client, OWN, NEIGHBOUR, "staying", user="grace") if subject != "project" else {}
        going: dict[str, Any] = {"object": "words"}
        if subject != "object":
            going = planted.plant(client, OWN, marker, "going", user="ada")
        if subject in ("object", "project"):
            planted.publish(client, OWN, marker, "words")
        if subject == "project":
            blobs = open_blobs(Settings(data=str(data), files=str(settings["files"])))
            with sa.create_engine(control.replace("postgresql", "postgresql+psycopg")).begin() as connection:
                planted.fill(connection, OWN, marker, blobs.put_bytes)
        make_old(s3.bucket)
        clickhouse_process().remove_old_parts_soon(settings["store"])
        assert {"dump", BUCKET} <= {name.partition("/")[0] for name in found()}, "nothing was planted"
        job_id = purge(client, subject, going.get(subject, ""))
        deadline = time.monotonic() + 120 * strain()
        with writing(server.url) as written:
            while find_job(client, job_id)["state"] == "queued" or not written:
                assert time.monotonic() < deadline
            server.kill()
    with HeddleProcess(data, None, **settings) as again, httpx.Client(base_url=again.url, timeout=120) as client:
        with writing(again.url) as others:
            wait_for(client, job_id)
        left = found()
        assert left == []
        assert call_ids(client, OWN) == {staying[key] for key in ("call", "below") if key in staying}
        assert call_ids(client, OTHER) >= {*written, *others}


@scale.on_sqlite
@pytest.mark.parametrize(("subject", "name"), [("project", ""), ("call", f"call-of-{OWN}")])
def test_an_import_stores_nothing_after_the_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: str, name: str
) -> None:
    """The job of an archive of several projects is the first one's."""
    checked, going_on = threading.Event(), threading.Event()
    check = ArchiveCheck.run

    def hold(self: ArchiveCheck) -> None:
        check(self)
        checked.set()
        going_on.wait()

    async def run() -> None:
        async with running_services(tmp_path / "source") as (services, client):
            for project in (OTHER, OWN):
                one = planted.call(project, f"call-of-{project}", f"trace-of-{project}", inputs={"text": MARKER})
                stored = await client.post(f"/v2/{project}/calls/complete", json={"batch": [one]})
                assert stored.status_code == 200, stored.text
            await export(services.settings, tmp_path / "a", [], True)
        monkeypatch.setattr("heddle.archives.ArchiveCheck.run", hold)
        async with running_services(tmp_path / "target") as (services, client):
            try:
                sent = await client.post("/archives/import", files={"file": (tmp_path / "a").read_bytes()})
                importing = sent.json()
                assert importing["project_id"] == OTHER
                assert await asyncio.to_thread(checked.wait, 60 * strain())
                asked = await client.post("/project/purge", json={"project_id": OWN, "subject": subject, "id": name})
                job = await services.jobs.wait(OWN, asked.json()["job_id"])
                assert job.state == "succeeded", job.error
            finally:
                going_on.set()
            ended = await services.jobs.wait(OTHER, importing["job_id"])
            assert ended.state == "cancelled", ended
            counted = await client.post("/calls/query_stats", json={"project_id": OWN})
            assert counted.json()["count"] == 0
            assert list((tmp_path / "target" / "imports").iterdir()) == []

    asyncio.run(run())


@scale.on_sqlite
def test_rows_have_checksums_after_the_database_was_written_anew(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            asked = await client.post("/project/purge", json={"project_id": OWN, "subject": "user", "id": "ada"})
            job = await services.jobs.wait(OWN, asked.json()["job_id"])
            assert job.state == "succeeded", job.error
            costs = {"costs": {"priced": {"prompt_token_cost": 1, "completion_token_cost": 1}}}
            made = await client.post("/cost/create", json={"project_id": OWN, **costs})
            assert made.status_code == 200, made.text

    asyncio.run(run())
    assert SqliteIntegrity(tmp_path / DATABASE).check_rows(math.inf).problems == []
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as raw:
        for table in ("eval_jobs", "costs"):
            assert raw.execute(f"SELECT count(*), count(crc) FROM {table}").fetchone() == (1, 1)

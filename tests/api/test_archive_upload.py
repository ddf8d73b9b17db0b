"""An archive into a running server: stored by a job, again without a change, never beyond what the key reaches."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.errors import HeddleError, StorageFull
from heddle.inference.served_model import TINY, TINY_FOLDER
from heddle.remote import Remote
from heddle.store.control.eval_jobs import EvalJobs
from heddle.transfer.archive import ArchiveReader, Manifest
from heddle.transfer.target import send_archive
from tests.support import planted, scale
from tests.support.archives import archive_of
from tests.support.chat import until
from tests.support.cli import heddle, make_key
from tests.support.inprocess import running_services
from tests.support.server import HeddleProcess

OLD, NEW = "team/before", "other/after"
ANY_KEY = {"authorization": "Bearer any"}
MODELS = f"wandb-artifact:///{OLD}"
CALLS = 300
SECONDS = 180.0


def call(number: int) -> dict[str, Any]:
    """A call with a large input and a ref to its project."""
    named = {"project_id": OLD, "id": f"c{number}", "trace_id": "t", "op_name": f"weave:///{OLD}/op/ask:abc"}
    inputs = {"text": "x" * 2000, "see": f"weave:///{OLD}/object/words:abc", "number": number}
    return {**named, "started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": inputs}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server exported."""
    folder = tmp_path_factory.mktemp("exported")
    with HeddleProcess(folder / "data", large_field_bytes="1KiB", model="none") as process:
        batch = [{"mode": "start", "req": {"start": call(number)}} for number in range(CALLS)]
        assert httpx.post(f"{process.url}/call/upsert_batch", json={"batch": batch}, timeout=60).status_code == 200
        form = {"data": {"project_id": OLD}, "files": {"file": ("f", b"content")}}
        assert httpx.post(f"{process.url}/file/create", **form).status_code == 200  # type: ignore[arg-type]
        settings = scale.settings_of(scale.EVERYWHERE, folder / "data")
        done = heddle("export", folder / "a.heddle", "--data", folder / "data", **settings)
        assert done.returncode == 0, done.stderr
    return folder / "a.heddle"


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=[pytest.mark.thorough, scale.on_sqlite])])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that asks for keys, with one process and with several."""
    data = tmp_path_factory.mktemp("target") / "data"
    workers = {"workers": 2} if request.param == 2 else {}
    with HeddleProcess(data, auth="on", model="none", **workers) as process:
        yield process


def stored(process: HeddleProcess, key: str, project: str) -> list[dict[str, Any]]:
    """The calls of a project."""
    asked = {"project_id": project, "sort_by": [{"field": "id", "direction": "asc"}]}
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{process.url}/calls/stream_query", json=asked, headers=headers, timeout=60)
    return [json.loads(line) for line in answer.text.splitlines()]


def test_it_is_stored_once_under_another_name(archive: Path, target: HeddleProcess) -> None:
    key = make_key(target.data, "admin", "--scope", "admin")
    words = ("import", "archive", archive, "--to", target.url, "--to-key", key, "--project", f"{OLD}={NEW}")
    done = heddle(*words)
    assert done.returncode == 0 and f"calls: {CALLS} stored" in done.stdout, done.stdout + done.stderr
    calls = stored(target, key, NEW)
    assert len(calls) == CALLS and stored(target, key, OLD) == []
    for found in calls:
        number = int(found["id"][1:])
        assert found["op_name"] == f"weave:///{NEW}/op/ask:abc" and found["inputs"]["number"] == number
        assert found["inputs"]["see"] == f"weave:///{NEW}/object/words:abc" and found["inputs"]["text"] == "x" * 2000
    again = heddle(*words)
    assert again.returncode == 0 and f"calls: 0 stored, {CALLS} already there" in again.stdout, again.stdout
    assert stored(target, key, NEW) == calls
    assert list((target.data / "imports").iterdir()) == []


def test_of_two_at_once_each_row_is_new_in_one(archive: Path, target: HeddleProcess) -> None:
    """Both counted rows as new that neither had found."""
    headers = {"authorization": f"Bearer {make_key(target.data, 'twice', '--scope', 'admin')}"}
    project = "other/twice"

    def upload(_: int) -> str:
        files, renamed = {"file": archive.read_bytes()}, {"project": f"{OLD}={project}"}
        answer = httpx.post(f"{target.url}/archives/import", files=files, params=renamed, headers=headers, timeout=60)
        return str(answer.json()["job_id"])

    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(upload, range(4)))
    found: list[dict[str, Any]] = []

    def have_ended() -> bool:
        asked = {"project_id": project}
        answer = httpx.post(f"{target.url}/evaluations/jobs/query", json=asked, headers=headers, timeout=60)
        found[:] = answer.json()["jobs"]
        return all(job["ended_at"] for job in found)

    until(have_ended, "the ends of all imports", SECONDS)
    assert {job["id"] for job in found} == made and {job["state"] for job in found} == {"succeeded"}, found
    assert sorted(job["result"]["new"]["calls"] for job in found) == [0, 0, 0, CALLS]
    assert sorted(job["result"]["new"]["files"] for job in found) == [0, 0, 0, 1]


def test_a_key_stays_within_its_reach(archive: Path, target: HeddleProcess) -> None:
    bound = make_key(target.data, "bound", "--scope", "admin", "--project", "own/project")
    writer = make_key(target.data, "writer", "--scope", "read", "--scope", "write")
    for key, renamed in ((bound, f"{OLD}={NEW}"), (writer, f"{OLD}=own/project")):
        done = heddle("import", "archive", archive, "--to", target.url, "--to-key", key, "--project", renamed)
        assert done.returncode == 1 and "returned 403" in done.stderr, done.stderr
    headers = {"authorization": f"Bearer {bound}"}
    several = {"file": archive_of("own/project", "other/project")}
    assert httpx.post(f"{target.url}/archives/import", files=several, headers=headers).status_code == 403
    done = heddle(
        "import", "archive", archive, "--to", target.url, "--to-key", bound, "--project", f"{OLD}=own/project"
    )
    assert done.returncode == 0, done.stderr
    assert len(stored(target, bound, "own/project")) == CALLS
    assert list((target.data / "imports").iterdir()) == []


def test_what_is_no_archive_is_refused(archive: Path, target: HeddleProcess) -> None:
    headers = {"authorization": f"Bearer {make_key(target.data, 'admin', '--scope', 'admin')}"}
    whole = archive.read_bytes()
    for content, renamed, reason in (
        (b"hello", [], "is not a complete archive"),
        (whole[: len(whole) // 2], [], "is no"),
        (whole[:512], [], "is not a complete archive"),
        (whole[:600], [], "is not a complete archive"),
        (whole, ["unknown/project=a/b"], "has no project"),
        (whole, [f"{OLD}=nothing"], "nothing"),
        (archive_of(), [], "has no projects"),
    ):
        answer = httpx.post(
            f"{target.url}/archives/import", params={"project": renamed}, files={"file": content}, headers=headers
        )
        assert answer.status_code == 400 and reason in answer.json()["reason"], answer.text
    answer = httpx.post(f"{target.url}/archives/import", json={}, headers=headers)
    assert answer.status_code == 422
    assert list((target.data / "imports").iterdir()) == []


def wait_for_end(url: str, headers: dict[str, str]) -> dict[str, Any]:
    """The import of the archive once it has ended."""
    asked, deadline = {"project_id": OLD, "kinds": ["import_archive"]}, time.monotonic() + SECONDS
    while True:
        [job] = httpx.post(f"{url}/evaluations/jobs/query", json=asked, headers=headers, timeout=60).json()["jobs"]
        if job["ended_at"] is not None:
            return dict(job)
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.thorough
def test_it_goes_on_after_kill_9(archive: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "data", "admin", "--scope", "admin")
    headers = {"authorization": f"Bearer {key}"}
    process = HeddleProcess(tmp_path / "data", auth="on", model="none").start()
    try:
        with archive.open("rb") as file:
            answer = httpx.post(f"{process.url}/archives/import", files={"file": file}, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        process.kill()
        process.start()
        job = wait_for_end(process.url, headers)
        assert job["state"] == "succeeded", job
        assert len(stored(process, key, OLD)) == CALLS
    finally:
        process.kill()


@pytest.mark.thorough
def test_a_cancelled_import_leaves_no_file(archive: Path, tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", model="none") as process, httpx.Client(base_url=process.url) as client:
        job = client.post("/archives/import", files={"file": archive.read_bytes()}, timeout=60).json()
        named = {"project_id": OLD, "call_id": job["job_id"]}
        assert client.post("/evaluations/cancel", json=named).status_code == 200
        found = wait_for_end(process.url, {})
    # It may have been faster.
    assert found["state"] in ("cancelled", "succeeded")
    assert list((tmp_path / "data" / "imports").iterdir()) == []


@pytest.mark.thorough
def test_one_too_large_is_refused(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", model="none", max_archive="64KiB") as process:
        answer = httpx.post(f"{process.url}/archives/import", files={"file": os.urandom(1 << 20)})
        assert answer.status_code == 413 and "max_archive" in answer.json()["reason"]
        assert list((tmp_path / "data" / "imports").glob("*")) == []


@scale.on_sqlite
def test_it_has_no_name_before_it_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a crash leaves of it is removed then, as of every upload that was cut off."""
    found: list[str] = []
    verify = ArchiveReader.verify

    def note(self: ArchiveReader) -> Manifest:
        found.extend(path.name[0] for path in (tmp_path / "imports").iterdir())
        return verify(self)

    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            sent = await client.post("/archives/import", files={"file": archive_of(OLD)})
            assert sent.status_code == 200, sent.text
            job = await services.jobs.wait(OLD, sent.json()["job_id"])
            assert job.state == "succeeded", job.error

    monkeypatch.setattr(ArchiveReader, "verify", note)
    asyncio.run(run())
    assert found == ["."] and list((tmp_path / "imports").iterdir()) == []


@scale.on_sqlite
def test_its_end_is_stored_before_its_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that the database refuses is stored by another attempt, which needs the archive; old leftovers go."""
    refusals = [StorageFull("The database is full")]
    finish = EvalJobs.finish

    async def refuse_once(self: EvalJobs, *given: Any, **named: Any) -> bool:
        if refusals:
            raise refusals.pop()
        return await finish(self, *given, **named)

    async def run() -> None:
        async with running_services(tmp_path) as (services, client):
            imports = tmp_path / "imports"
            imports.mkdir()
            for name in (".cut-off", "ended"):
                (imports / name).write_bytes(b"left")
                os.utime(imports / name, (0, 0))
            sent = await client.post("/archives/import", files={"file": archive_of(OLD)})
            job = await services.jobs.wait(OLD, sent.json()["job_id"])
            assert (job.state, job.error) == ("succeeded", None)

    monkeypatch.setattr("heddle.evals.jobs.FIRST_PAUSE", 0)
    monkeypatch.setattr(EvalJobs, "finish", refuse_once)
    asyncio.run(run())
    assert refusals == [] and list((tmp_path / "imports").iterdir()) == []


def test_who_waits_hears_that_the_project_was_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")
    monkeypatch.setattr(Remote, "upload", lambda *_, **__: {"job_id": "gone", "project_id": OLD})
    monkeypatch.setattr(Remote, "post", lambda *_: {"jobs": []})
    with pytest.raises(HeddleError, match="its project was erased"):
        send_archive("http://localhost", None, tmp_path / "a", [])


def fill(client: httpx.Client, folder: Path) -> None:
    """A model, an adapter, rules, a price and a monitor."""
    from tests.support.models import make_adapter  # it imports torch

    named = {"project_id": OLD}
    entity, project = OLD.split("/")
    scorer = {"_type": "RegexMatchScorer", "_class_name": "RegexMatchScorer", "_bases": ["Scorer", "Object"]}
    scorer |= {"name": "matches", "pattern": "a"}
    made = planted.send(client, "/obj/create", {"obj": {**named, "object_id": "matches", "val": scorer}})
    monitor = {"_type": "Monitor", "_class_name": "Monitor", "_bases": ["Object", "BaseModel"], "name": "monitor"}
    monitor |= {"sampling_rate": 1.0, "op_names": ["ask"], "query": None, "active": True, "description": None}
    monitor |= {"scorers": [f"weave:///{OLD}/object/matches:{made['digest']}"]}
    adapter = str(make_adapter(folder / "adapter", TINY_FOLDER))
    loaded = client.post("/v1/load_lora_adapter", json={"lora_name": f"{MODELS}/tuned", "lora_path": adapter})
    assert loaded.status_code == 200, loaded.text
    for path, body in (
        ("/obj/create", {"obj": {**named, "object_id": "monitor", "val": monitor}}),
        ("/cost/create", {**named, "costs": {"priced": {"prompt_token_cost": 1, "completion_token_cost": 1}}}),
        ("/project/redaction/update", {**named, "kinds": ["email"], "paths": []}),
        ("/v1/preview/models", {"entity": entity, "project": project, "name": "learner", "base_model": TINY}),
    ):
        planted.send(client, path, body)


def show(client: httpx.Client, call_id: str) -> tuple[Any, bool, int]:
    """What a new call holds, whether it has a price, and how many models of the project are served."""
    usage = {"usage": {"priced": {"prompt_tokens": 3, "completion_tokens": 1, "requests": 1}}}
    one = planted.call(OLD, call_id, call_id, inputs={"who": "ada@example.com"}, output="a", summary=usage)
    planted.send(client, f"/v2/{OLD}/calls/complete", {"batch": [one]})
    asked = {"project_id": OLD, "include_costs": True, "filter": {"call_ids": [call_id]}}
    found = json.loads(client.post("/calls/stream_query", json=asked).text)
    models = [model["id"] for model in client.get("/v1/models").json()["data"]]
    return found["inputs"], "costs" in found["summary"]["weave"], sum(model.startswith(MODELS) for model in models)


@scale.on_sqlite
def test_what_it_brings_holds_at_once_until_it_is_purged(tmp_path: Path) -> None:
    """Models, rules, prices and monitors are remembered by a server."""
    with HeddleProcess(tmp_path / "source", training="on") as source:
        with httpx.Client(base_url=source.url, timeout=60, headers=ANY_KEY) as client:
            fill(client, tmp_path)
        done = heddle("export", tmp_path / "a", "--data", source.data)
        assert done.returncode == 0, done.stderr
    with (
        HeddleProcess(tmp_path / "target", training="on") as target,
        httpx.Client(base_url=target.url, timeout=60, headers=ANY_KEY) as client,
    ):
        client.get(f"/v1/models/{TINY}").raise_for_status()
        assert show(client, "before") == ({"who": "ada@example.com"}, False, 0)
        done = heddle("import", "archive", tmp_path / "a", "--to", target.url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert show(client, "after") == ({"who": "[redacted email]"}, True, 2)
        scored = {"project_id": OLD, "fields": ["weave_ref"]}
        deadline = time.monotonic() + SECONDS
        while not planted.send(client, "/feedback/query", scored)["result"]:
            assert time.monotonic() < deadline, "no monitor scored the call"
            time.sleep(0.1)
        planted.send(client, "/project/purge", {"project_id": OLD, "subject": "project"})
        while client.get(f"/v1/models/{MODELS}/tuned").status_code != 404:
            assert time.monotonic() < deadline, "the adapter is served still"
            time.sleep(0.1)


@scale.on_sqlite
def test_it_waits_for_a_purge_of_its_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came while everything was being removed was told as stored, and parts of it were gone."""

    async def run() -> None:
        removing, may_go_on = asyncio.Event(), asyncio.Event()

        async with running_services(tmp_path) as (services, client):
            purge_files = services.store.purge_files

            async def purge_later() -> int:
                removing.set()
                await may_go_on.wait()
                return await purge_files()

            monkeypatch.setattr(services.store, "purge_files", purge_later)
            asked = await client.post("/project/purge", json={"project_id": OLD, "subject": "project"})
            await removing.wait()
            job_id = (await client.post("/archives/import", files={"file": archive_of("a/b", OLD)})).json()["job_id"]
            why = "Something is being purged from the project"
            while (job := await services.jobs.read("a/b", job_id)) is None or job.error != why:
                assert job is None or job.ended_at is None, job
                await asyncio.sleep(0)
            may_go_on.set()
            assert (await services.jobs.wait(OLD, asked.json()["job_id"])).state == "succeeded"
            assert (await services.jobs.wait("a/b", job_id)).state == "succeeded"

    asyncio.run(run())


@scale.on_sqlite
def test_what_a_killed_server_had_received_goes_at_its_start(tmp_path: Path) -> None:
    """Up to `max_archive` of each upload lay there for a day, and then until the next import."""
    (tmp_path / "imports").mkdir()
    for name in (".cut-off", "waits-for-its-job"):
        (tmp_path / "imports" / name).write_bytes(b"left")

    async def run() -> None:
        async with running_services(tmp_path):
            assert [path.name for path in (tmp_path / "imports").iterdir()] == ["waits-for-its-job"]

    asyncio.run(run())

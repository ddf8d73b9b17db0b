"""The read models behind the pages of projects, overview, training and inference: figures, and who may see them."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from heddle.ui.reads.overview import span_of
from heddle.wire import times
from tests.support.cli import make_key
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire

NOW = datetime.now(UTC)


def call(project: str, hours: float, **fields: Any) -> dict[str, Any]:
    """A call that started so many hours ago and took a second."""
    at = NOW - timedelta(hours=hours)
    return {
        "project_id": project,
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": "answer",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=1)).isoformat(),
        "attributes": {},
        "inputs": {},
        "output": None,
        "exception": None,
        "summary": {},
        **fields,
    }


def store(client: httpx.Client, project: str, calls: list[dict[str, Any]]) -> None:
    """Write whole calls."""
    answer = client.post(f"/v2/{project}/calls/complete", json={"batch": calls})
    assert answer.status_code == 200, answer.text


@pytest.fixture
def client(server: HeddleProcess) -> Iterator[httpx.Client]:
    """Plain HTTP."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def overview(client: httpx.Client, project: str, **query: Any) -> dict[str, Any]:
    """The overview of a project."""
    answer = client.get("/_ui/api/overview", params={"project": project, **query})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("hours", [0.5, 20, 150, 900, None])
def test_buckets_hold_what_started_in_them(client: httpx.Client, project: str, hours: float | None) -> None:
    usage = {"usage": {"gpt-4o": {"prompt_tokens": 1000, "completion_tokens": 100, "requests": 1}}}
    ages = [0.2, 0.21, 0.4, 0.9, 3, 19, 21, 100, 101, 160, 500, 1000]
    failed = {"exception": "ValueError: no"}
    store(client, project, [call(project, age, summary=usage, **(failed if age > 100 else {})) for age in ages])
    start = {} if hours is None else {"start": (NOW - timedelta(hours=hours)).timestamp()}
    found = overview(client, project, **start)
    first = found["start"]
    inside = [age for age in ages if (NOW - timedelta(hours=age)).timestamp() >= first]
    assert found["totals"]["calls"] == len(inside) == sum(bucket["calls"] for bucket in found["buckets"])
    assert found["totals"]["errors"] == sum(age > 100 for age in inside)
    assert found["totals"]["p50"] == pytest.approx(1.0)
    assert found["totals"]["prompt_tokens"] == 1000 * len(inside)
    assert found["totals"]["cost"] == pytest.approx(len(inside) * (1000 * 2.5e-6 + 100 * 1e-5))
    for bucket in found["buckets"]:
        lower = first + bucket["bucket"] * found["step"]
        count = sum(lower <= (NOW - timedelta(hours=age)).timestamp() < lower + found["step"] for age in ages)
        assert bucket["calls"] == count
    assert sum(len(model["buckets"]) for model in found["models"]) == len(found["buckets"])


def test_deleted_calls_and_other_projects_do_not_count(client: httpx.Client, project: str) -> None:
    calls = [call(project, 1), call(project, 2)]
    store(client, project, calls)
    body = {"project_id": project, "call_ids": [calls[0]["id"]]}
    assert client.post("/calls/delete", json=body).status_code == 200
    assert overview(client, project)["totals"]["calls"] == 1
    assert not overview(client, f"{project}-other")["has_calls"]


def test_days_begin_at_the_readers_midnight() -> None:
    day = times.DAY
    span = span_of(40 * day + 5, 100 * day, zone=-330)
    assert span.width == day
    assert (span.start + 330 * 60 * times.SECOND) % day == 0
    assert span.start <= 40 * day + 5 < span.start + day


class TestKeys:
    """A key that is bound to a project sees only that."""

    @pytest.fixture(scope="class")
    def guarded(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
        """A server with two projects, a model in each, and a key bound to one."""
        data = tmp_path_factory.mktemp("reads") / "data"
        admin = make_key(data, "ann", "--scope", "admin")
        bound = make_key(data, "bob", "--scope", "read", "--project", "team/own")
        with HeddleProcess(data, auth="on") as process:
            with httpx.Client(base_url=process.url, headers={"authorization": f"Bearer {admin}"}, timeout=60) as client:
                for project in ("team/own", "team/other"):
                    store(client, project, [call(project, 1)])
            models = {}
            with TrainingWire(process.url, admin, "team") as wire:
                for project in ("own", "other"):
                    models[project] = wire.model(project=project)
                    wire.train(models[project])
            yield {"url": process.url, "bound": bound, "models": models}

    @pytest.fixture
    def reader(self, guarded: dict[str, Any]) -> Iterator[httpx.Client]:
        """Requests with the bound key."""
        headers = {"authorization": f"Bearer {guarded['bound']}"}
        with httpx.Client(base_url=guarded["url"], headers=headers, timeout=60) as client:
            yield client

    def test_projects(self, reader: httpx.Client) -> None:
        listed = reader.get("/_ui/api/projects").json()["projects"]
        assert [project["id"] for project in listed] == ["team/own"]
        assert reader.post("/_ui/api/projects", json={"id": "team/own"}).status_code == 403

    def test_overview_and_training(self, reader: httpx.Client) -> None:
        for path in ("/_ui/api/overview", "/_ui/api/training"):
            assert reader.get(path, params={"project": "team/own"}).status_code == 200
            assert reader.get(path, params={"project": "team/other"}).status_code == 403

    def test_runs_and_trajectories(self, reader: httpx.Client, guarded: dict[str, Any]) -> None:
        own, other = (guarded["models"][name]["id"] for name in ("own", "other"))
        (job,) = reader.get(f"/_ui/api/training/runs/{own}").json()["jobs"]
        assert reader.get("/_ui/api/training/events", params={"job": job["id"]}).status_code == 200
        body = {"model": own, "body": f"job:{job['id']}"}
        assert len(reader.get("/_ui/api/trajectories/groups", params=body).json()["groups"]) == 1
        found = reader.get("/_ui/api/trajectories/one", params={**body, "place": 0, "index": 1}).json()
        assert found["advantage"] == pytest.approx(-1, abs=1e-4)
        (sequence,) = found["sequences"]
        assert sum(sequence["mask"]) == sequence["trained"] == 2
        for path in (f"/_ui/api/training/runs/{other}", f"/_ui/api/training/runs/{other}/live"):
            assert reader.get(path).status_code == 404
        query = {"model": other}
        for path, more in (("", {}), ("/groups", {"body": body["body"]}), ("/one", {"place": "0", "index": "0"})):
            query |= more
            assert reader.get(f"/_ui/api/trajectories{path}", params=query).status_code == 404
        query = {"model": own, "body": f"job:{uuid.uuid4()}"}
        assert reader.get("/_ui/api/trajectories/groups", params=query).status_code == 404

    def test_a_page_needs_no_bearer_token_but_a_key(self, guarded: dict[str, Any]) -> None:
        url = f"{guarded['url']}/v1/preview/models"
        assert httpx.get(url, headers={"x-heddle-ui": "1"}).status_code == 401
        headers = {"wandb-api-key": guarded["bound"]}
        assert httpx.get(url, headers=headers).status_code == 401
        assert httpx.get(url, headers={**headers, "x-heddle-ui": "1"}).status_code == 200


def test_a_run_is_followed_from_where_it_was_left(server: HeddleProcess) -> None:
    with TrainingWire(server.url) as wire:
        model = wire.model()
        wire.train(model)
        address = f"{server.url}/_ui/api/training/runs/{model['id']}"
        (job,) = httpx.get(address).json()["jobs"]
        after = job["number"] + 1
        with httpx.stream("GET", f"{address}/live", params={"after": after}, timeout=60) as stream:
            started = wire.job(model)
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    jobs = json.loads(line[5:])["jobs"]
                    assert [one["id"] for one in jobs] == [started]
                    if jobs[0]["state"] == "succeeded":
                        break
                elif line.startswith("id:"):
                    assert int(line[3:]) >= after


def test_a_run_is_followed_until_its_model_is_deleted(server: HeddleProcess) -> None:
    with TrainingWire(server.url) as wire:
        model = wire.model()
        with httpx.stream("GET", f"{server.url}/_ui/api/training/runs/{model['id']}/live", timeout=60) as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": following"
            wire.delete(f"/models/{model['id']}")
            assert [line for line in lines if line] == []


def test_the_engine_is_followed(server: HeddleProcess) -> None:
    with httpx.stream("GET", f"{server.url}/_ui/api/inference/live", timeout=60) as stream:
        data = next(line for line in stream.iter_lines() if line.startswith("data:"))
    (engine,) = json.loads(data[5:])["engines"]
    assert engine["model"] == "heddle-tiny" and engine["context"] > 0

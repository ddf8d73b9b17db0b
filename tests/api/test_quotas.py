"""Quotas on the wire: every group of routes, each unit, exact bounds; what is refused changes nothing."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute

from heddle.app import served_routes
from heddle.http.quotas import UNCOUNTED
from heddle.inference.served_model import TINY
from tests.support import scale
from tests.support.chat import until
from tests.support.cli import heddle, make_key
from tests.support.server import HeddleProcess

Json = dict[str, Any]
BUSY, TOO_LARGE, FULL = 429, 413, 507
BEARER = {"authorization": "Bearer local"}
ROUTES = {route.group: route for route in reversed(served_routes())}
GROUPS = sorted(ROUTES.keys() - UNCOUNTED)

pytestmark = pytest.mark.usefixtures("within_a_day")


class Caller:
    """Somebody who asks a server, and sets its limits."""

    def __init__(self, url: str, **headers: str) -> None:
        self.client = httpx.Client(base_url=url, headers=BEARER | headers, timeout=120)

    def set(self, kind: str, name: str, quotas: str | None) -> Json:
        """Give a project or key quotas, or (None) those of the settings."""
        answer = self.client.put("/v1/limits", json={"kind": kind, "name": name, "quotas": quotas})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def uses(self, kind: str, name: str) -> list[tuple[str, int]]:
        """What a project or key has used of each of its quotas."""
        rows = self.client.get("/v1/limits").json()["data"]
        return [
            (use["quota"], use["used"])
            for row in rows
            for use in row["uses"]
            if (row["kind"], row["name"]) == (kind, name)
        ]

    def start(self, project: str, number: int = 0, text: str = "") -> httpx.Response:
        """Store a call."""
        times = {"started_at": "2026-01-20T00:00:00Z", "attributes": {}, "inputs": {"text": text}}
        named = {"project_id": project, "id": f"{number:032x}", "trace_id": f"{number:032x}", "op_name": "ask"}
        return self.client.post("/call/start", json={"start": named | times})

    def count(self, project: str) -> int:
        """How many calls a project has."""
        return int(self.client.post("/calls/query_stats", json={"project_id": project}).json()["count"])

    def upload(self, project: str, content: bytes) -> httpx.Response:
        """Store a file."""
        return self.client.post("/file/create", data={"project_id": project}, files={"file": ("a.txt", content)})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server without quotas in its settings."""
    with HeddleProcess(tmp_path_factory.mktemp("quotas") / "data", model="none") as process:
        yield process


@pytest.fixture
def caller(served: HeddleProcess) -> Iterator[Caller]:
    """A caller of that server, whose key has no quotas afterwards."""
    found = Caller(served.url)
    yield found
    found.set("key", "local", None)
    found.client.close()


def test_every_group_of_routes_has_a_quota_of_requests(tmp_path: Path) -> None:
    assert len(GROUPS) > 40
    # A server of its own: what other tests sent today counts for the same key.
    with HeddleProcess(tmp_path / "data", model="none") as process:
        check_every_group(Caller(process.url))


def check_every_group(caller: Caller) -> None:
    for group in GROUPS:
        route = ROUTES[group]
        assert isinstance(route, APIRoute)
        method, path = min(route.methods), re.sub(r"\{[^}]*\}", "x", route.path)
        caller.set("key", "local", f"{group} requests 1/day")
        first = caller.client.request(method, path)
        assert first.status_code != BUSY, (group, first.text)
        refused = caller.client.request(method, path)
        assert refused.status_code == BUSY, (group, refused.text)
        assert f"Quota reached: key 'local' may send {group} requests 1/day" in refused.text
        assert 1 <= int(refused.headers["retry-after"]) <= 86_400
        assert caller.uses("key", "local") == [(f"{group} requests 1/day", 1)]
    caller.set("key", "local", "all requests 1/day, feedback requests 5/day")
    assert caller.client.post("/objs/query", json={}).status_code != BUSY
    assert caller.client.post("/feedback/query", json={}).status_code == BUSY
    assert {caller.client.get(path).status_code for path in ("/health", "/metrics", "/v1/limits")} == {200}


@pytest.mark.parametrize(
    ("path", "quota", "read"),
    [
        ("/call/start", "calls bytes 10/hour", lambda body: body["reason"]),
        ("/v1/chat/completions", "inference bytes 10/hour", lambda body: body["error"]["message"]),
        ("/v1/messages", "inference bytes 10/day", lambda body: body["error"]["message"]),
        ("/v1/preview/training-jobs", "training bytes 10/day", lambda body: body["detail"]),
        ("/api/public/scores", "langfuse bytes 10/day", lambda body: body["message"]),
        ("/api/v1/create_session", "tinker bytes 10/day", lambda body: body["reason"]),
        ("/otel/v1/traces", "opentelemetry bytes 10/day", lambda body: body["message"]),
    ],
)
def test_each_interface_says_it_in_its_own_words(caller: Caller, path: str, quota: str, read: Any) -> None:
    caller.set("key", "local", quota)
    sent = caller.client.post(path, json={"a": 1})
    assert sent.status_code != BUSY
    refused = caller.client.post(path, json={"b": 2})
    assert refused.status_code == BUSY and int(refused.headers["retry-after"]) >= 1
    assert f"Quota reached: key 'local' may send {quota}" in read(refused.json())


def test_bytes_end_exactly_and_what_can_never_fit_is_413(caller: Caller) -> None:
    caller.set("key", "local", "objects bytes 100/day")
    post = caller.client.post
    assert post("/objs/query", content=b"x" * 60).status_code == 422
    assert post("/objs/query", content=b"x" * 41).status_code == BUSY
    assert post("/objs/query", content=b"x" * 101).status_code == TOO_LARGE
    parts = (b"x" * 10, b"y" * 10)
    assert post("/objs/query", content=iter(parts)).status_code == 422, "a body that does not say its length"
    assert caller.uses("key", "local") == [("objects bytes 100/day", 80)]
    assert post("/objs/query", content=iter((b"x" * 15, b"y" * 6))).status_code == BUSY
    assert caller.uses("key", "local") == [("objects bytes 100/day", 80)]
    assert post("/objs/query", content=b"x" * 20).status_code == 422
    assert post("/objs/query", content=b"x").status_code == BUSY
    assert post("/objs/query", content=b"").status_code == 422
    assert post("/feedback/query", content=b"x" * 200).status_code == 422


def test_files_are_counted_and_a_refused_one_is_not_kept(caller: Caller, project: str) -> None:
    caller.set("project", project, "all files 2/day, files bytes 10KiB/day")
    first, second, third = (caller.upload(project, content) for content in (b"one", b"two", b"three"))
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, BUSY)
    assert "all files 2/day" in third.text
    assert caller.upload(f"{project}-2", b"three").status_code == 200
    assert dict(caller.uses("project", project))["all files 2/day"] == 2
    caller.set("project", project, "all files 3/day")
    assert caller.upload(project, b"three").status_code == 200


def test_a_project_is_refused_and_let_in_after_its_period(caller: Caller, project: str) -> None:
    caller.set("key", "local", "calls requests 1000/day")
    caller.set("project", project, "calls requests 2/second")
    statuses = [caller.start(project, number).status_code for number in range(12)]
    until(
        lambda: statuses[-1] == BUSY or not statuses.append(caller.start(project, len(statuses)).status_code), "refused"
    )
    refused = caller.start(project, 99)
    until(lambda: caller.start(project, 100).status_code == 200, "the next second lets it in")
    if refused.status_code == BUSY:
        assert refused.headers["retry-after"] == "1"
        assert f"project '{project}' may send calls requests 2/second" in refused.json()["reason"]
    assert caller.start(f"{project}-2").status_code == 200
    stored = statuses.count(200) + (refused.status_code == 200) + 1
    until(lambda: caller.client.post("/calls/query_stats", json={"project_id": project}).status_code == 200, "read")
    caller.set("project", project, None)
    assert caller.count(project) == stored


@pytest.mark.parametrize(
    ("group", "path", "header"),
    [
        ("opentelemetry", "/otel/v1/traces", "project_id"),
        ("inference", "/v1/chat/completions", "OpenAI-Project"),
        ("calls", "/v2/{project}/calls/complete", None),
    ],
)
def test_a_project_of_the_address_is_refused_before_the_body(
    served: HeddleProcess, caller: Caller, project: str, group: str, path: str, header: str | None
) -> None:
    caller.set("project", project, f"{group} bytes 100/day")
    named = {} if header is None else {header: project}
    place = urlsplit(served.url)

    def ask(length: int) -> tuple[int, str]:
        """The answer to the head of a request whose body never comes."""
        head = {
            "host": place.netloc,
            "content-type": "application/json",
            "content-length": str(length),
            **BEARER,
            **named,
        }
        lines = [f"POST {path.format(project=project)} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        with socket.create_connection((str(place.hostname), place.port or 80), 60) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = connection.makefile(newline="").read()
        return int(answer.split()[1]), answer

    caller.set("key", "local", f"{group} bytes 1000/day")
    ((_, before),) = caller.uses("key", "local")
    status, text = ask(101)
    assert status == TOO_LARGE and f"project '{project}' may send" in text, text
    assert [used for _, used in (*caller.uses("project", project), *caller.uses("key", "local"))] == [0, before]


def test_a_project_that_only_the_body_names_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    """Its body is read first; nothing of that stays, neither in a table nor as a file that is done or half done."""
    full, data = "team/full", tmp_path / "data"
    with HeddleProcess(data, model=TINY, training="on", large_field_bytes=100_000) as process:
        caller = Caller(process.url)
        made = caller.client.post(
            "/v1/preview/models",
            json={"entity": "team", "project": "full", "name": "learner", "base_model": TINY},
        ).json()

        def files() -> set[Path]:
            return {path for path in data.rglob("*") if path.is_file() and not path.name.startswith("heddle.db")}

        def send(number: int) -> list[int]:
            """The answers to bodies of a megabyte, each with contents of its own; only they name the project."""
            long = f"{number} secret " * 100_000
            start = {
                "project_id": full,
                "id": f"{number:032x}",
                "trace_id": "t",
                "op_name": "ask",
                "inputs": {"a": long},
            }
            start |= {"started_at": "2026-01-20T00:00:00Z", "attributes": {}}
            resource = {"attributes": [_attribute("wandb.entity", "team"), _attribute("wandb.project", "full")]}
            span = {
                "traceId": f"{number + 1:032x}",
                "spanId": "2" * 16,
                "name": "ask",
                "attributes": [_attribute("a", long)],
            }
            span |= {"startTimeUnixNano": "1768867200000000000", "endTimeUnixNano": "1768867200000000000"}
            one = {"messages_and_choices": [{"role": "user", "content": long}, _choice(long)], "reward": 1.0}
            bodies = {
                "/call/start": {"start": start},
                "/call/upsert_batch": {"batch": [{"mode": "start", "req": {"start": start}}]},
                "/obj/create": {"obj": {"project_id": full, "object_id": "o", "val": {"a": long}}},
                "/table/create": {"table": {"project_id": full, "rows": [{"a": long}]}},
                "/otel/v1/traces": {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]},
                "/v1/preview/training-jobs": {
                    "model_id": made["id"],
                    "trajectory_groups": [{"trajectories": [one, {**one, "reward": 0.0}]}],
                },
            }
            answers = [caller.client.post(path, json=body) for path, body in bodies.items()]
            answers.append(caller.upload(full, long.encode()))
            answers.append(caller.upload(full, b"\0\xff" + long.encode()))
            return [answer.status_code for answer in answers]

        for redaction in ([], ["email"]):
            rules = {"project_id": full, "kinds": redaction}
            assert caller.client.post("/project/redaction/update", json=rules).status_code == 200
            caller.set("project", full, "all bytes 1000/day")
            before = files()
            assert send(1) == [TOO_LARGE] * 8
            caller.set("project", full, "disk 1")
            until(lambda: caller.start(full, 0).status_code == FULL, "it is full")
            assert send(2) == [FULL, FULL, FULL, FULL, 503, FULL, FULL, FULL]
            assert files() == before
            assert caller.count(full) == 1
        caller.set("project", full, None)
        assert send(3) == [200] * 8 and len(files() - before) >= 4


def _attribute(key: str, value: str) -> Json:
    return {"key": key, "value": {"stringValue": value}}


def _choice(text: str) -> Json:
    return {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": text}}


def test_of_many_at_once_as_many_pass_as_there_is_room(caller: Caller, project: str) -> None:
    caller.set("project", project, "calls requests 20/day")
    caller.set("key", "local", "calls requests 1000/day")
    ((_, before),) = caller.uses("key", "local")
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda number: caller.start(project, number).status_code, range(60)))
    assert (statuses.count(200), statuses.count(BUSY)) == (20, 40)
    assert caller.uses("project", project) == [("calls requests 20/day", 20)]
    assert caller.uses("key", "local") == [("calls requests 1000/day", before + 20)], "who is refused counts for nobody"
    caller.set("project", project, None)
    assert caller.count(project) == 20


def test_a_batch_into_two_projects_is_stored_wholly_or_not_at_all(caller: Caller, project: str) -> None:
    full = f"{project}-full"
    caller.set("project", full, "all bytes 1/day")

    def resource(name: str) -> Json:
        span = {
            "traceId": "0" * 31 + "1",
            "spanId": "0" * 15 + "1",
            "name": "ask",
            "startTimeUnixNano": "1768867200000000000",
        }
        entity, _, rest = name.partition("/")
        named = [
            {"key": key, "value": {"stringValue": value}}
            for key, value in (("wandb.entity", entity), ("wandb.project", rest))
        ]
        return {"resource": {"attributes": named}, "scopeSpans": [{"spans": [span]}]}

    body = {"resourceSpans": [resource(project), resource(full)]}
    assert caller.client.post("/otel/v1/traces", json=body).status_code == TOO_LARGE
    assert caller.count(project) == 0
    caller.set("project", full, None)
    assert caller.client.post("/otel/v1/traces", json=body).status_code == 200
    assert (caller.count(project), caller.count(full)) == (1, 1)


def test_a_full_project_is_read_and_emptied_and_then_written_again(caller: Caller, project: str) -> None:
    caller.set("project", project, "disk 20KiB")
    numbers = iter(range(100_000))
    until(lambda: caller.start(project, next(numbers), "x" * 4000).status_code == FULL, "it is full")
    refused = caller.start(project, 99_999)
    assert f"project '{project}' may store disk 20KiB" in refused.json()["reason"]
    span = {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "1",
        "name": "ask",
        "startTimeUnixNano": "1768867200000000000",
    }
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    sent = caller.client.post("/otel/v1/traces", json=export, headers={"project_id": project})
    assert (sent.status_code, sent.headers["retry-after"]) == (503, "30"), "exporters try again after 503"
    ((_, used),) = caller.uses("project", project)
    assert used >= 20 * 1024
    ids = [
        row["id"]
        for row in map(
            json.loads, caller.client.post("/calls/stream_query", json={"project_id": project}).text.splitlines()
        )
    ]
    assert len(ids) == caller.count(project) >= 5
    assert caller.client.post("/calls/delete", json={"project_id": project, "call_ids": ids}).status_code == 200
    until(lambda: caller.start(project, next(numbers)).status_code == 200, "there is room again")


def test_counts_and_limits_survive_a_restart(tmp_path: Path) -> None:
    process = HeddleProcess(tmp_path / "data", model="none", key_quotas="calls requests 3/day")
    with process:
        caller = Caller(process.url)
        caller.set("project", "a/p", "objects requests 5/day")
        assert [caller.start("a/p", number).status_code for number in range(2)] == [200, 200]
    with process:
        caller = Caller(process.url)
        assert [caller.start("a/p", number).status_code for number in range(2, 4)] == [200, BUSY]
        until(lambda: caller.uses("key", "local") == [("calls requests 3/day", 3)], "it is told")
        process.kill()
    with process:
        assert Caller(process.url).start("a/p", 9).status_code == BUSY
        shown = Caller(process.url).client.get("/v1/limits").json()
        assert [row["quotas"] for row in shown["defaults"]] == ["none", "calls requests 3/day"]
        assert [(row["name"], row["quotas"], row["own"]) for row in shown["data"]] == [
            ("local", "calls requests 3/day", []),
            ("a/p", "objects requests 5/day", ["quotas"]),
        ]


@pytest.mark.thorough
@scale.on_sqlite
def test_two_workers_count_together(tmp_path: Path) -> None:
    quota, most, burst = "calls requests 40/day", 40, 5
    with HeddleProcess(tmp_path / "data", model="none", workers=2, project_quotas=quota) as process:
        caller = Caller(process.url)

        def send(number: int) -> int:
            # A connection of its own each, so that either worker answers.
            one = Caller(process.url)
            with one.client:
                return one.start("a/p", number).status_code

        statuses: list[int] = []
        while len(statuses) < 3 * most:
            statuses += [send(len(statuses) + number) for number in range(burst)]
            stored = statuses.count(200)
            until(lambda: caller.uses("project", "a/p") == [(quota, stored)], "both have told what they counted")  # noqa: B023
        assert statuses[-most:] == [BUSY] * most
        # A worker learns what the other told when it tells, itself: each may let pass a burst that it has not told.
        assert most <= stored <= most + 2 * burst
        assert statuses[:most] == [200] * most
        caller.set("project", "a/p", "none")
        # One of the workers may know it later than the other, and each request meets either.
        until(lambda: all(send(999) == 200 for _ in range(20)), "the workers know that, too")
        assert caller.count("a/p") == stored + 1


def test_a_key_sees_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    root = make_key(data, "root", "--scope", "admin")
    bound = make_key(data, "ann", "--scope", "read", "--project", "team/p")
    with HeddleProcess(data, auth="on", model="none") as process:
        admin, ann = (Caller(process.url, authorization=f"Bearer {key}") for key in (root, bound))
        ids = {key["user"]: key["id"] for key in json.loads(heddle("keys", "list", "--json", "--data", data).stdout)}
        admin.set("key", ids["ann"], "objects requests 2/day")
        admin.set("project", "team/p", "all requests 100/day")
        admin.set("project", "other/p", "all requests 100/day")
        until(lambda: ann.client.get("/v1/limits/own").json()["data"][0]["quotas"] != "none", "it is known")
        statuses = [ann.client.post("/objs/query", json={"project_id": "team/p"}).status_code for _ in range(3)]
        assert statuses == [200, 200, BUSY]
        own = ann.client.get("/v1/limits/own").json()["data"]
        assert [(row["kind"], row["name"]) for row in own] == [("key", ids["ann"]), ("project", "team/p")]
        assert [[(use["quota"], use["used"]) for use in row["uses"]] for row in own] == [
            [("objects requests 2/day", 2)],
            [("all requests 100/day", 2)],
        ]
        assert own[0]["uses"][0]["ends_at"].endswith("T00:00:00.000000Z")
        assert ann.client.get("/v1/limits/own", params={"project": "other/p"}).status_code == 403
        assert ann.client.get("/v1/limits").status_code == 403
        assert ann.client.put("/v1/limits", json={"kind": "project", "name": "team/p"}).status_code == 403
        log = admin.client.get("/audit_log", params={"action": "limit.update"}).json()
        assert "objects requests 2/day" in json.dumps(log) and ids["ann"] in json.dumps(log)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"kind": "project", "name": "a/p", "quotas": "many"}, "is not a quota"),
        ({"kind": "project", "name": "a/p", "quotas": "planets requests 5/minute"}, "group of routes 'planets'"),
        ({"kind": "key", "name": "local", "quotas": "disk 5GiB"}, "A key cannot have a disk quota"),
        ({"kind": "project", "name": "a/p", "quotas": 5}, "string"),
        ({"kind": "project", "name": "a/p", "quotas": "all requests 5/minute, all requests 6/minute"}, "same group"),
    ],
)
def test_bad_quotas_are_refused_with_the_reason(caller: Caller, body: Json, words: str) -> None:
    answer = caller.client.put("/v1/limits", json=body)
    assert answer.status_code == 422 and "quotas" in answer.text and words in answer.text
    assert caller.client.get("/v1/limits").json()["data"] == [
        row for row in caller.client.get("/v1/limits").json()["data"] if row["name"] not in ("a/p",)
    ]


@pytest.mark.parametrize("quotas", ["planets requests 5/minute", "5"])
def test_a_server_with_bad_quotas_does_not_start(tmp_path: Path, quotas: str) -> None:
    told = heddle("serve", "--port", 0, "--data", tmp_path / "data", key_quotas=quotas)
    assert told.returncode != 0 and "key_quotas" in told.stderr and "Traceback" not in told.stderr


def test_the_command_line_sets_lists_and_clears(served: HeddleProcess, project: str) -> None:
    flags = ("--server", served.url)
    told = heddle("limits", "set", "project", project, "--quotas", "all requests 60/minute", "--concurrency", 2, *flags)
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"project {project}: 0 of 2 completions at the same time, all requests 60/minute (0 used)\n"
    told = heddle("limits", "set", "project", project, "--quotas", "disk 5GiB", *flags)
    assert told.stdout == f"project {project}: 0 of 2 completions at the same time, disk 5GiB (0 used)\n"
    assert f"project {project}: 0 of 2" in heddle("limits", "list", *flags).stdout
    bad = heddle("limits", "set", "project", project, "--quotas", "many", *flags)
    assert bad.returncode == 1 and "is not a quota" in bad.stderr
    assert heddle("limits", "clear", "project", project, *flags).stdout == f"project {project}: no limits\n"
    names = [row["name"] for row in json.loads(heddle("limits", "list", "--json", *flags).stdout)["data"]]
    assert project not in names


def test_the_metrics_show_the_fullest_and_count_refusals(caller: Caller, project: str) -> None:
    caller.set("project", project, "threads requests 4/day")
    caller.set("project", f"{project}-2", "threads requests 2/day")
    for number in range(3):
        for name in (project, f"{project}-2"):
            answer = caller.client.post("/threads/stream_query", json={"project_id": name})
            assert answer.status_code == (BUSY if number == 2 and name != project else 200)
    text = caller.client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{group="threads",kind="project",period="day",unit="requests"}'
    assert values[f"heddle_quota_used{labels}"] == "2.0"
    assert values[f"heddle_quota_limit{labels}"] == "2.0"
    assert values['heddle_quota_refused_total{group="threads",kind="project",unit="requests"}'] == "1.0"
    assert project.partition("/")[0] not in text


def test_a_purged_project_leaves_no_quota(caller: Caller, project: str) -> None:
    caller.set("project", project, "all requests 100/day")
    assert caller.start(project).status_code == 200
    job = caller.client.post("/project/purge", json={"project_id": project, "subject": "project", "id": ""}).json()[
        "job_id"
    ]

    def is_done() -> bool:
        jobs = caller.client.post("/evaluations/jobs/query", json={"project_id": project, "kinds": ["purge"]}).json()[
            "jobs"
        ]
        return [row["state"] for row in jobs if row["id"] == job] == ["succeeded"]

    until(is_done, "it is purged")
    until(lambda: caller.uses("project", project) == [], "nothing holds any more")

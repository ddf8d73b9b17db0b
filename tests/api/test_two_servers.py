"""Two servers on one ClickHouse, PostgreSQL, S3 and shared folder: what one does the other one knows."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.evals.test_monitor_crash import PROJECT, scored, switch_on, wait_until_scored, write
from tests.api.test_costs import call_with, costs_of
from tests.api.test_retention import start, wait_for_count
from tests.api.training.test_swap import QUESTIONS, address_of, chat, greedy, rollouts
from tests.conftest import Wire
from tests.support import scale
from tests.support.chat import Chat
from tests.support.cli import heddle
from tests.support.s3 import S3Server
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire

pytestmark = pytest.mark.skipif(scale.missing() is not None, reason=str(scale.missing()))
Servers = tuple[HeddleProcess, HeddleProcess]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Servers]:
    """Both of them."""
    folder = tmp_path_factory.mktemp("two")
    settings = {**scale.new_databases(), "files": s3_server.new_prefix()}
    first, second = (HeddleProcess(folder / "shared", **settings) for _ in range(2))
    second.log_path = folder / "second.log"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3_server.variables.items():
            patched.setenv(name, value)
        with first, second:
            yield first, second
    assert all("Traceback" not in server.log() for server in (first, second))


@pytest.mark.thorough
def test_a_step_trained_on_one_server_answers_on_the_other_at_once(servers: Servers) -> None:
    """Whoever reads that a job has ended gets its step from any server; jobs given to either go on from the newest."""
    with TrainingWire(servers[0].url) as one, TrainingWire(servers[1].url, entity=one.entity) as other:
        model = one.model()
        address, place = address_of(model), f"{model['entity']}/lab/{model['name']}"
        said = [greedy(other, address)]
        for step, (here, there) in enumerate([(one, other), (other, one), (one, other)], 1):
            here.train(model, rollouts(there, model), experimental_config={"learning_rate": 5e-3})
            answer = chat(there.client, address, QUESTIONS[0], temperature=0)
            assert answer.headers["x-heddle-policy"] == f"{place}@{step}"
            assert there.steps(model) == list(range(step + 1))
            said.append(greedy(there, address))
            assert said[-1][0] != pytest.approx(said[-2][0], abs=1e-3), "each step is another policy"
        for step, expected in enumerate(said):
            for wire in (one, other):
                assert greedy(wire, f"{address}:step{step}") == pytest.approx(expected, abs=1e-6)
        other.post(f"/models/{model['id']}/rollback", step=1)
        assert greedy(one, address) == pytest.approx(said[1], abs=1e-6), "a rollback holds everywhere, too"
        other.delete(f"/models/{model['id']}")
        assert chat(one.client, address, QUESTIONS[0]).status_code == 404


@pytest.mark.thorough
def test_a_server_without_the_shared_folder_says_so(servers: Servers, tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "own", **servers[0].settings) as apart, TrainingWire(servers[0].url) as one:
        address = address_of(one.model())
        with TrainingWire(apart.url) as other:
            answer = chat(other.client, address, QUESTIONS[0])
    assert answer.status_code == 503 and "in this server's data folder" in answer.text, answer.text


@pytest.mark.thorough
def test_check_looks_at_every_store_beside_a_running_server(servers: Servers) -> None:
    server = servers[0]
    settings = {name: str(value) for name, value in server.settings.items()}
    sound = heddle("check", "--data", server.data, "--port", server.port, **settings)
    assert sound.returncode == 0 and "heddle is running" in sound.stdout, sound.stdout
    assert settings["files"] in " ".join(sound.stdout.split())
    wrong = heddle("check", "--data", server.data, "--port", 0, **settings | {"files": "s3://no-such-bucket/x"})
    assert wrong.returncode == 1 and "files" in wrong.stdout and "1 fault" in wrong.stdout, wrong.stdout


@pytest.mark.thorough
def test_the_only_place_is_free_before_the_answer_ends(servers: Servers) -> None:
    """One request after the other, to both servers in turn."""
    headers = {"Compat-Project": "team/narrow"}
    limit = {"kind": "project", "name": "team/narrow", "concurrency": 1}
    chats = [Chat(server.url) for server in servers]
    assert chats[0].client.put("/v1/limits", json=limit).status_code == 200
    for number in range(12):
        chat = chats[number % 2]
        body = chat.body(max_tokens=1, stream=number % 3 == 0)
        answer = chat.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    for chat in chats:
        chat.client.close()


@pytest.mark.usefixtures("within_a_day")
def test_both_count_against_one_quota(servers: Servers) -> None:
    clients = [httpx.Client(base_url=server.url, timeout=60) for server in servers]
    limit = {"kind": "project", "name": "team/counted", "quotas": "threads requests 20/day"}
    assert clients[0].put("/v1/limits", json=limit).status_code == 200
    own = [client.get("/v1/limits/own", params={"project": "team/counted"}).json()["data"][-1] for client in clients]
    assert [row["quotas"] for row in own] == ["threads requests 20/day"] * 2
    asked = [
        clients[number % 2].post("/threads/stream_query", json={"project_id": "team/counted"}).status_code
        for number in range(50)
    ]
    assert asked[:18] == [200] * 18 and asked[-20:] == [429] * 20
    (use,) = clients[1].get("/v1/limits/own", params={"project": "team/counted"}).json()["data"][-1]["uses"]
    assert use["used"] == asked.count(200) <= 20 + 4, "one more each, and what came while they told each other"
    for client in clients:
        client.close()


def test_each_call_is_scored_once_whichever_server_took_it(servers: Servers) -> None:
    clients = [httpx.Client(base_url=server.url) for server in servers]
    switch_on(clients[0])
    written = [call_id for client in clients * 3 for call_id in write(client, 20)]
    for client in clients:
        wait_until_scored(client, 2 * len(written))
        found = scored(client)
        assert set(found.values()) == {1} and {call for call, _ in found} == set(written)
        calls = client.post("/calls/stream_query", json={"project_id": PROJECT}).text.count("\n")
        assert calls == 3 * len(written)
        client.close()


def test_old_calls_are_deleted_whichever_server_was_told(servers: Servers) -> None:
    project = "team/aging"
    with httpx.Client(base_url=servers[0].url) as one, httpx.Client(base_url=servers[1].url) as other:
        for days in (0, 10, 40, 400):
            for client in (one, other):
                body = {"start": start(project, timedelta(days=days, minutes=1))}
                assert client.post("/call/start", json=body).status_code == 200
        update = {"project_id": project, "retention_days": 20}
        assert other.post("/project/ttl_settings/update", json=update).json() == {"retention_days": 20}
        for server in servers:
            wait_for_count(server.url, project, 4)


def test_what_one_is_told_holds_at_once_on_the_other(servers: Servers) -> None:
    """Nothing of these is remembered where another server may change it; `docs/operating.md` lists what is."""
    project = "two/told"
    one, other = (Wire(server.url, project) for server in servers)
    langfuse = "/api/public/v2/prompts"

    def publish(number: int) -> str:
        made = one.post("/obj/create", obj={"project_id": project, "object_id": "o", "val": {"n": number}})
        return str(made["digest"])

    def number_of(version: str) -> object:
        return other.post("/obj/read", object_id="o", digest=version)["obj"]["val"]["n"]

    first, latest = publish(0), publish(1)
    assert number_of("latest") == 1
    for digest, number in ((first, 0), (latest, 1)):
        chosen = {"project_id": project, "digest": digest, "aliases": ["chosen"]}
        assert one.client.put("/objs/o/aliases", json=chosen).status_code == 200
        assert number_of("chosen") == number
    for version in (1, 2):
        prompt = {"name": "p", "type": "text", "prompt": "x", "labels": ["production"]}
        created = one.client.post(langfuse, json=prompt, headers={"project_id": project})
        assert created.status_code == 201, created.text
        found = other.client.get(f"{langfuse}/p", headers={"project_id": project})
        assert found.json()["version"] == version
    for days in (9, None):
        one.post("/project/ttl_settings/update", retention_days=days)
        assert other.post("/project/ttl_settings/read") == {"retention_days": days}
    call_id = call_with(one, {"told-model": {"prompt_tokens": 10, "completion_tokens": 5}})
    assert costs_of(other, call_id) is None
    price = {"prompt_token_cost": 0.5, "completion_token_cost": 1, "effective_date": "2024-01-01T00:00:00Z"}
    one.post("/cost/create", costs={"told-model": price})
    assert costs_of(other, call_id)["told-model"]["prompt_tokens_total_cost"] == 5
    for wire in (one, other):
        wire.close()


def test_items_that_both_append_at_once_are_all_there(servers: Servers) -> None:
    """The next version of a dataset is made of the newest one, whichever server stored that."""
    headers = {"project_id": "two/items"}
    with (
        httpx.Client(base_url=servers[0].url, headers=headers, timeout=120) as one,
        httpx.Client(base_url=servers[1].url, headers=headers, timeout=120) as other,
        ThreadPoolExecutor(6) as threads,
    ):
        assert one.post("/api/public/v2/datasets", json={"name": "shared"}).status_code == 200

        def put(number: int) -> int:
            item = {"datasetName": "shared", "id": f"item-{number}", "input": number}
            return (one, other)[number % 2].post("/api/public/dataset-items", json=item).status_code

        assert set(threads.map(put, range(24))) == {200}
        listed = one.get("/api/public/dataset-items", params={"datasetName": "shared", "limit": 100}).json()["data"]
        assert sorted(item["input"] for item in listed) == list(range(24))


@pytest.mark.thorough
def test_scores_that_both_give_a_row_are_all_in_it(servers: Servers) -> None:
    """The output of a row is made of the calls below it, whichever server stored those."""
    project, base = "two/scores", "/v2/two/scores"
    with (
        httpx.Client(base_url=servers[0].url, timeout=120) as one,
        httpx.Client(base_url=servers[1].url, timeout=120) as other,
        ThreadPoolExecutor(8) as threads,
    ):

        def post(path: str, body: dict[str, Any], client: httpx.Client = one) -> dict[str, Any]:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        def ref(kind: str, name: str, **more: Any) -> str:
            made = post(f"{base}/{kind}", {"name": name, **more})
            return f"weave:///{project}/object/{name}:{made['digest']}"

        model = ref("models", "model", source_code="x")
        scorers = [ref("scorers", f"scorer_{number}", op_source_code="x") for number in range(8)]
        exam = ref("evaluations", "exam", dataset=ref("datasets", "words", rows=[{"a": 1}]), scorers=[])
        run = post(f"{base}/evaluation_runs", {"evaluation": exam, "model": model})["evaluation_run_id"]
        for number in range(4):
            said = {"model": model, "inputs": {"a": number}, "output": 1, "evaluation_run_id": run}
            prediction = post(f"{base}/predictions", said)["prediction_id"]
            post(f"{base}/predictions/{prediction}/finish", {})

            def give(place: int, prediction: str = prediction) -> None:
                score = {"prediction_id": prediction, "scorer": scorers[place], "value": 1.0, "evaluation_run_id": run}
                post(f"{base}/scores", score, (one, other)[place % 2])

            list(threads.map(give, range(8)))
            call = post("/call/read", {"project_id": project, "id": prediction})["call"]
            row = post("/call/read", {"project_id": project, "id": call["parent_id"]})["call"]
            assert len(row["output"]["scores"]) == 8

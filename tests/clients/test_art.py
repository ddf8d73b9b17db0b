"""The unmodified ART client (openpipe-art 0.5.18 and 0.5.23) trains heddle's own model, as its users do."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import API_KEY, RESULT
from tests.support.art import RATIO, VERSIONS, ArtClient, art_client, check_loop, trained_tokens
from tests.support.script_engine import scripted_settings, write_script
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess, free_port

pytestmark = pytest.mark.client


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of this module's own: its jobs do not wait behind those of other tests."""
    with HeddleProcess(tmp_path_factory.mktemp("art") / "data") as process:
        yield process


@pytest.fixture(params=with_breadth(reversed(VERSIONS)))
def version(request: pytest.FixtureRequest) -> str:
    """Each supported version of the client."""
    return str(request.param)


@pytest.fixture
def art(version: str, trained: HeddleProcess, project: str, tmp_path: Path) -> ArtClient:
    """The client in a project of its own."""
    return art_client(trained.url, project, tmp_path, version)


@pytest.mark.thorough
def test_a_whole_loop(art: ArtClient) -> None:
    """Register, 25 times 64 rollouts and a training job, checkpoints, deletion."""
    check_loop(art.run("loop.py", timeout=400), art.project)


@pytest.mark.thorough
def test_every_setting_and_every_end(art: ArtClient) -> None:
    """All settings, jobs without anything to learn, failed and cancelled jobs."""
    seen = art.run("settings.py", timeout=240)
    own = seen["every_setting"]["own"]
    assert own["step"] == 1 and own["metrics"]["loss/learning_rate"] == pytest.approx(1e-3)
    types = [kind for kind, _ in seen["every_setting"]["newer"]]
    assert types[0] == "training_started" and types[-1] == "training_ended"
    assert types[1:-1] == ["gradient_step"] * int(seen["every_setting"]["newer"][0][1]["num_sequences"])
    assert len(types) > 3

    nothing = seen["nothing_to_learn"]
    assert [nothing[name]["step"] for name in ("equal", "exceptions", "empty", "none")] == [1, 2, 3, 4]

    failing = seen["failing"]
    for name, said in {"other": "99999", "outside": "99999", "unreadable": "no such token"}.items():
        assert failing[name]["class"] == "RuntimeError", name
        assert failing[name]["text"].startswith("Training job failed: group 1, trajectory 1, item 1"), failing[name]
        assert said in failing[name]["text"]
    assert failing["steps"] == [0]

    cancelled = seen["cancelled"]
    assert cancelled["running"][0] == "training_failed" and "cancelled" in cancelled["running"][1]["error_message"]
    assert cancelled["waiting"]["class"] == "RuntimeError"
    assert (
        cancelled["waiting"]["text"].startswith("Training job failed: ") and "cancelled" in cancelled["waiting"]["text"]
    )
    assert cancelled["steps"] == [0]
    assert seen["afterwards"]["step"] == 1 and seen["afterwards"]["steps"] == [0, 1]


def test_models_logs_and_errors(art: ArtClient) -> None:
    """Names, what is logged, and the class of each error."""
    seen = art.run("models.py", timeout=120)
    names = seen["names"]
    assert names["same_id"] is True
    assert (names["again"]["class"], names["again"]["status"]) == ("ConflictError", 409)
    assert names["other_base"]["class"] in ("ConflictError", "BadRequestError")
    assert names["unknown_base"]["class"] == "BadRequestError" and "heddle-tiny" in names["unknown_base"]["text"]
    assert names["entity"] and names["fresh_step"] == 0
    assert names["fresh_logprobs"] and all(token.startswith("token_id:") for token in names["fresh_logprobs"])

    log = seen["log"]
    assert log["metrics"]["val/reward"] == 1.0 and log["metrics"]["train/reward"] == 1.0
    assert log["metrics"]["val/exception_rate"] == 0.25 and log["metrics"]["val/length"] == 1.0
    assert log["metrics"]["val/good"] == pytest.approx(1 / 3) and log["metrics"]["val/group_hard"] == 0.5
    assert log["metrics"]["val/reward_std_dev"] == pytest.approx((2 / 3) ** 0.5)
    assert "history.jsonl" in log["files"] and "trajectories/val/0000.parquet" in log["files"]

    found = {name: (error["class"], error["status"]) for name, error in seen["errors"].items() if "class" in error}
    missing, invalid = ("NotFoundError", 404), ("UnprocessableEntityError", 422)
    assert found == {
        "no_model": missing,
        "no_uuid": invalid,
        "no_job": missing,
        "no_log": missing,
        "bad_setting": invalid,
        "bad_level": invalid,
        "no_step": missing,
        "no_data": invalid,
    }
    assert seen["errors"]["not_deleted"] == {"deleted_count": 0, "not_found_steps": [77]}


@pytest.mark.thorough
def test_two_turns_with_a_tool(art: ArtClient, trained: HeddleProcess) -> None:
    """Calls, results and answers: every sampled token is trained as it was sampled, and the reward rises."""
    seen = art.run("tools.py", timeout=300)
    for step in seen["steps"]:
        rows = step["metrics"].get("data/step_num_gradient_steps", 0)
        assert rows * trained_tokens(step["metrics"]) == pytest.approx(step["tokens"])
    assert seen["after"] >= seen["before"] + 0.3, seen
    jobs = events_of_jobs(trained.url, art.project)
    assert len(jobs) == len(seen["steps"])
    for started, *steps in jobs:
        assert not [name for name, value in started["data"].items() if name.startswith("data/dropped") and value]
        if steps[0]["type"] == "gradient_step":
            # Before the first optimizer step the policy is still the one that sampled.
            assert steps[0]["data"][RATIO] == pytest.approx(1, abs=1e-4)


def events_of_jobs(url: str, project: str) -> list[list[dict[str, Any]]]:
    """The events of each job of the project's models."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {API_KEY}"}, timeout=60) as client:

        def listed(path: str, **query: Any) -> list[dict[str, Any]]:
            answer = client.get(f"/v1/preview/{path}", params={"limit": 100, **query})
            return list(answer.raise_for_status().json()["data"])

        entity, name = project.split("/")
        models = listed("models", entity=entity, project=name)
        jobs = [job for model in models for job in listed("training-jobs", model_id=model["id"])]
        return [listed(f"training-jobs/{job['id']}/events") for job in jobs]


@pytest.mark.thorough
def test_streams_and_several_choices(art: ArtClient) -> None:
    """However the tokens were sampled, they are trained as they were sampled, the whole answer and nothing else."""
    seen = art.run("ways.py", timeout=120)
    assert seen["cut"]["ends"] == ["length"]
    for name, way in seen.items():
        assert trained_tokens(way["metrics"]) == way["tokens"] > 0, name
        assert way["metrics"][RATIO] == pytest.approx(1, abs=1e-4), name


@pytest.mark.thorough
def test_a_restarted_server_in_the_middle_of_polling(project: str, tmp_path: Path) -> None:
    """The client's own retries carry it over the kill -9 of the server and its return; the job ends as one step."""
    with HeddleProcess(tmp_path / "data", free_port(), access_log="all") as process:
        art = art_client(process.url, project, tmp_path)
        environment = {**art.environment(), "WANDB_BASE_URL": art.server}
        command = [*art.command, str(art.scripts / "once.py")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, cwd=environment["HOME"], **pipes) as program:
            until_polled(process)
            process.kill()
            process.start()
            output, errors = program.communicate(timeout=180)
        assert program.returncode == 0, output + errors
        assert RESULT in output and '"step": 1' in output and '"steps": [0, 1]' in output
        assert "Traceback" not in process.log()


def until_polled(process: HeddleProcess, timeout: float = 120) -> None:
    """Wait until the client has asked for events: it never repeats a POST, so its job must have been answered."""
    deadline = time.monotonic() + timeout
    while "/events' 200" not in process.log():
        assert time.monotonic() < deadline, "no job was made"
        time.sleep(0.01)


@pytest.mark.thorough
def test_the_vendors_key_in_the_environment(art: ArtClient) -> None:
    """With the key set, the client opens the vendor's experiment logger after each job: offline, nothing breaks."""
    seen = art.run("once.py", timeout=180, WANDB_API_KEY=API_KEY, WANDB_MODE="offline")
    assert seen["step"] == 1 and seen["steps"] == [0, 1]


@pytest.mark.thorough
def test_supervised_training(art: ArtClient) -> None:
    """Rows that heddle keeps are learned; rows that `train_sft` gives to the vendor cannot be found here."""
    seen = art.run("sft.py", timeout=180, WANDB_MODE="disabled")
    assert seen["before"] != seen["lesson"] and seen["after"] == seen["lesson"]
    assert seen["steps"] == [0, 1, 2, 3]
    for events in seen["events"]:
        assert [kind for kind, _ in events] == ["training_started", *["gradient_step"] * 3, "training_ended"]
        rates = [data["loss/learning_rate"] for kind, data in events if kind == "gradient_step"]
        assert rates == pytest.approx([5e-3, 4e-3, 3e-3])
    assert seen["elsewhere"]["class"] == "UnprocessableEntityError"


SCORES = {"scores": [{"trajectory_id": one, "explanation": "said", "score": int(one) / 10} for one in "123"]}
ONE_SCORE = {"scores": [{"trajectory_id": "1", "explanation": "alike", "score": 0.5}]}


@pytest.mark.thorough
def test_the_clients_own_ruler(project: str, tmp_path: Path, version: str) -> None:
    """RULER of the client asks a model of this server for its scores, by a schema; nothing of it is changed."""
    rules = [{"last": 'trajectory id="3"', "say": json.dumps(SCORES)}, {"say": json.dumps(ONE_SCORE)}]
    settings = scripted_settings(write_script(tmp_path, rules), tmp_path)
    art_client("", project, tmp_path, version)  # skips before a server is started in vain
    with HeddleProcess(tmp_path / "data", **settings) as process:
        seen = art_client(process.url, project, tmp_path, version).run("ruler.py", timeout=120)
    assert [one["reward"] for one in seen["all"]] == [0.1, 0.2, 0.3]
    assert seen["all"][1]["metrics"] == {"independent_reward": 0.25, "ruler_score": 0.2}
    assert [one["reward"] for one in seen["equal"]] == [0.5, 0.5]

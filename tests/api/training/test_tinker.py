"""Tinker's protocol over HTTP: crashes, restarts, repeated requests, refusals."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from heddle.training.tinker.messages import Array, read_samples
from tests.support.cli import heddle as heddle_command
from tests.support.server import HeddleProcess, ParentProcess
from tests.support.tinker_messages import random_datum, write_data, write_datum
from tests.support.tinker_run import BASE, TinkerRun, check_kills

KEY = {"x-api-key": "tml-any"}


@pytest.fixture(scope="module")
def heddle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of this module's own."""
    with HeddleProcess(tmp_path_factory.mktemp("tinker") / "data") as process:
        yield process


@pytest.mark.thorough
def test_kills_change_nothing(tmp_path: Path) -> None:
    """`kill -9` of the server and of the trainer in the middle of a loop."""
    check_kills(lambda name: ParentProcess(tmp_path / name), 2, [(1, "trainer"), (4, "server")])


def test_results_wait_over_a_restart(tmp_path: Path) -> None:
    """What was done before is told after, and is not done again."""
    with HeddleProcess(tmp_path / "data") as process:
        run = TinkerRun(process)
        asked = [run.data(), run.request("optim_step", adam_params={})]
        before = [run.result(request_id) for request_id in asked]
        process.terminate()
        process.start()
        assert [run.result(request_id) for request_id in asked] == before
        again = run.send("optim_step", {"model_id": run.id, "seq_id": 2, "adam_params": {}})
        assert again.json()["request_id"] == asked[1]
        other = run.send("optim_step", {"model_id": run.id, "seq_id": 2, "adam_params": {"beta1": 0.5}})
        assert other.status_code == 400 and "seq_id 2" in other.text


def test_a_repeated_save_is_one(heddle: HeddleProcess) -> None:
    """The client gives the sampler another number when it repeats a request whose answer it did not hear."""
    run = TinkerRun(heddle)
    body = {"model_id": run.id, "seq_id": 1, "sampling_session_seq_id": 3}
    first, again = (run.post("save_weights_for_sampler", body | {"sampling_session_seq_id": n}) for n in (3, 4))
    assert first == again and f"{run.session}:sample:3".encode() in run.result(first["request_id"])
    other = run.send("save_weights_for_sampler", {"model_id": run.id, "seq_id": 1, "path": "named"})
    assert other.status_code == 400 and "seq_id 1" in other.text
    run.seq = 1
    run.result(run.data())


def test_files_of_a_checkpoint_are_loaded_in_ranges(heddle: HeddleProcess) -> None:
    run = TinkerRun(heddle)
    run.result(run.request("save_weights_external", path="outside", ttl_seconds=3600))
    path = f"/api/v1/training_runs/{run.id}/checkpoints/external_weights/outside/external_weights_urls"
    urls = httpx.get(heddle.url + path, headers=KEY).json()["urls"]
    url = urls["adapter_config.json"]

    def load(wanted: str) -> httpx.Response:
        return httpx.get(url, headers={"range": wanted})

    whole = httpx.get(url).content
    assert (load("bytes=2-5").status_code, load("bytes=2-5").content) == (206, whole[2:6])
    head = httpx.head(url, headers={"range": "bytes=2-5"})
    assert (head.status_code, head.headers["content-length"], head.content) == (206, "4", b"")
    for wanted, status in (("bytes=x", 400), ("pages=1-2", 400), ("bytes=5-2", 400), ("bytes=999999999-", 416)):
        refused = load(wanted)
        assert (refused.status_code, list(refused.json())) == (status, ["reason"])
    assert refused.headers["content-range"] == f"bytes */{len(whole)}"


@pytest.mark.parametrize("gone", ["all", "optimizer.safetensors"])
def test_a_checkpoint_that_is_deleted_while_it_is_copied(heddle: HeddleProcess, gone: str) -> None:
    """Copies were 500 and left a model behind, or were acknowledged without the optimizer."""
    run = TinkerRun(heddle)
    run.result(run.data())
    run.result(run.request("optim_step", adam_params={"learning_rate": 1e-3}))
    run.result(run.request("save_weights", path="kept"))
    optimizers = heddle.data.glob("training/*/checkpoints/*/optimizer.safetensors")
    folder = max(optimizers, key=lambda path: path.stat().st_mtime_ns).parent
    for path in list(folder.iterdir()):
        if gone in ("all", path.name):
            path.unlink()
    project = f"team/{uuid.uuid4().hex}"
    source = f"tinker://{run.id}/weights/kept"
    refused = run.send("copy_weights", {"source_path": source, "destination_project_id": project})
    assert refused.status_code == 404 and "was deleted" in refused.text
    begun = {"session_id": run.session, "model_seq_id": 7, "path": source, "optimizer": True}
    assert run.send("load_weights", begun).status_code == 404
    listed = httpx.get(f"{heddle.url}/api/v1/training_runs", params={"project_id": project}, headers=KEY, timeout=60)
    assert listed.json()["training_runs"] == []


def test_a_model_that_many_ask_for_at_once_is_one(heddle: HeddleProcess) -> None:
    """Whoever was second took the model of the first away, with a 500."""
    run = TinkerRun(heddle)
    for seq in range(1, 4):
        made = {"session_id": run.session, "model_seq_id": seq, "base_model": BASE, "lora_config": {"rank": 4}}
        together = threading.Barrier(12)

        def ask(_: int, made: dict[str, object] = made, together: threading.Barrier = together) -> tuple[int, str]:
            together.wait()
            answer = httpx.post(f"{heddle.url}/api/v1/create_model", json=made, headers=KEY, timeout=60)
            return answer.status_code, answer.text

        with ThreadPoolExecutor(12) as pool:
            (one,) = set(pool.map(ask, range(12)))
        assert one[0] == 200, one
        model = run.post("get_info", {"model_id": f"{run.session}:train:{seq}"})
        assert model["model_data"]["model_name"] == BASE
    other = {**made, "lora_config": {"rank": 8}}
    assert "model_seq_id 3 is already used by another request" in run.send("create_model", other).text


def test_a_refusal_has_its_turn(heddle: HeddleProcess) -> None:
    """What is refused is told at once; what comes behind it is done."""
    run = TinkerRun(heddle)
    inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
    wrong = {
        "nonsense": write_data(run.id, 1, [write_datum([1, 2], inputs)], "nonsense"),
        "requires loss_fn_inputs": write_data(run.id, 2, [write_datum([1, 2], {"target_tokens": [2, 3]})]),
        "does not support": write_data(run.id, 3, [write_datum([1, 2], {**inputs, "mask": [1.0, 1.0]})]),
        "target_tokens has the shape": write_data(run.id, 4, [write_datum([1, 2, 3], inputs)]),
        "tokens must be from": write_data(run.id, 5, [write_datum([1, 99999], inputs)]),
        "accepts nothing": write_data(run.id, 6, [write_datum([1, 2], inputs)], config={"beta": 1.0}),
        "not a number": write_data(run.id, 7, [write_datum([1, 2], inputs | {"weights": [1.0, float("nan")]})]),
    }
    for said, body in wrong.items():
        answer = run.send("forward_backward", body)
        assert answer.status_code == 400 and said in answer.text, answer.text
    bad_step = {"model_id": run.id, "seq_id": 8, "adam_params": {"learning_rate": -1}}
    assert run.send("optim_step", bad_step).status_code == 422
    dimuon = {"model_id": run.id, "seq_id": 9, "optimizer_params": {"type": "dimuon", "learning_rate": 1}}
    assert run.send("optim_step", dimuon).status_code == 422
    missing = {"model_id": run.id, "seq_id": 10, "path": f"tinker://{run.id}/weights/no", "optimizer": True}
    assert run.send("load_weights", missing).status_code == 404
    run.seq = 10
    run.result(run.data())


def test_what_is_no_message(heddle: HeddleProcess) -> None:
    """Bytes that are no request, and requests about what is not there."""
    run = TinkerRun(heddle)
    for body in (b"\xff", b"\x0a\x05a", write_data(run.id, 1, [b"\x12\x03abc"])):
        answer = run.send("forward_backward", body)
        assert answer.status_code == 400 and "ForwardBackwardRequest" in answer.text
    for path, body in {
        "retrieve_future": {"request_id": "nobody:train:0:1"},
        "get_info": {"model_id": "nobody:train:0"},
        "session_heartbeat": {"session_id": "nobody"},
        "weights_info": {"tinker_path": f"tinker://{run.id}/weights/no"},
    }.items():
        assert run.send(path, body).status_code == 404, path
    assert run.send("get_info", {"model_id": run.id, "more": 1}).status_code == 422


@pytest.mark.parametrize(
    ("name", "number"), [("seed", 2**63), ("seed", -(2**70)), ("seed", 2**64), ("top_k", 2**31), ("max_tokens", 2**31)]
)
def test_numbers_of_samples_that_nothing_can_keep(heddle: HeddleProcess, name: str, number: int) -> None:
    """A seed beyond 64 bits was accepted, and its samples begun again for ever."""
    run = TinkerRun(heddle)
    of = {"session_id": run.session, "sampling_session_seq_id": 9, "base_model": "heddle-tiny"}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}
    body = {"sampling_session_id": run.post("create_sampling_session", of)["sampling_session_id"], "prompt": prompt}
    refused = run.send("asample", body | {"seq_id": 1, "sampling_params": {"max_tokens": 1, name: number}})
    assert refused.status_code == 422
    assert [item["loc"] for item in refused.json()["detail"]] == [["body", "sampling_params", name]]
    least = {"max_tokens": 1, "seed": -(2**63)}
    assert run.result(run.post("asample", body | {"seq_id": 2, "sampling_params": least})["request_id"])


def test_sessions_end_and_models_unload(heddle: HeddleProcess) -> None:
    """A finished session and an unloaded model take nothing more."""
    run = TinkerRun(heddle)
    assert run.post("unload_model", {"model_id": run.id})["request_id"] == f"{run.id}:unload"
    assert b"unload_model" in run.result(f"{run.id}:unload")
    refused = run.send("optim_step", {"model_id": run.id, "seq_id": 1, "adam_params": {}})
    assert refused.status_code == 400 and "unloaded" in refused.text
    other = TinkerRun(heddle)
    assert run.send(f"sessions/{other.session}/finish", {"reason": {"type": "success"}}).status_code == 200
    assert run.send("session_heartbeat", {"session_id": other.session}).status_code == 410
    again = {"session_id": other.session, "model_seq_id": 1, "base_model": "heddle-tiny"}
    assert run.send("create_model", again).status_code == 410


def test_a_run_is_a_job(heddle: HeddleProcess) -> None:
    """Each optimizer step is an event with the metrics of a job; the job ends with the run, and nobody cancels it."""
    run, params = TinkerRun(heddle), {"learning_rate": 1e-3, "beta2": 0.97, "weight_decay": 0.01}
    run.save_sampler(1)
    run.result(run.send_data(run.draw(1, 3), "ppo"))
    run.result(run.request("optim_step", adam_params=params))
    run.result(run.request("save_weights", path="first"))
    data = run.draw(1, 4)
    run.result(run.send_data(data, "ppo"))
    run.result(run.send_data([random_datum(run.random)], "cross_entropy"))
    run.result(run.request("optim_step", adam_params={"learning_rate": 1e-4}))
    run.result(run.request("save_weights", path="second"))
    (_, first), (_, second) = run.events()[1:]
    tokens = sum(len(tokens) for tokens, _ in read_drawn(run, 3))
    assert first["num_trainable_tokens"] == first["agreement/tokens"] == tokens
    assert first["agreement/equal_tokens"] == tokens and first["agreement/largest_difference"] == 0
    assert first["agreement/bits"] == 32
    assert first["loss/train"] * tokens == pytest.approx(first["loss/sum"])
    assert first["offpolicy/ratio_mean"] == first["offpolicy/ratio_max"] == 1 and first["offpolicy/clip_fraction"] == 0
    assert first["offpolicy/lag_max"] == 0 and first["loss/grad_norm"] > 0 < first["loss/entropy"]
    assert first["settings"] == {
        "loss": "ppo",
        "loss_fn_config": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        "eps": 1e-12,
        "beta1": 0.9,
        "grad_clip_norm": 0.0,
        **params,
    }
    # The weights that sampled are one step older by now, so that there is nothing to compare with.
    assert second["offpolicy/lag_mean"] == 1 and "agreement/tokens" not in second
    assert second["offpolicy/ratio_max"] > 1.001 and second["settings"]["loss"] == "cross_entropy, ppo"
    steps = run.read(f"models/{run.model_id()}/checkpoints")["data"]
    rates = [step["recipe"]["settings"] and step["recipe"]["settings"]["learning_rate"] for step in steps]
    assert rates == [None, None, 1e-3, 1e-4] and steps[-1]["metrics"]["loss/train"] == second["loss/train"]
    job = run.job()
    assert (job["kind"], job["state"], job["gradient_steps"]) == ("tinker", "running", 2)
    refused = httpx.post(
        f"{heddle.url}/v1/preview/training-jobs/{job['id']}/cancel", headers={"authorization": "Bearer a"}
    )
    assert refused.status_code == 409 and "unload_model" in refused.text
    heddle.terminate()
    heddle.start()
    assert run.job()["state"] == "running"
    run.post("unload_model", {"model_id": run.id})
    assert run.job()["state"] == "succeeded" and [kind for kind, _ in run.events()][3:] == ["training_ended"]


def test_a_run_is_checked_backed_up_and_moved(tmp_path: Path) -> None:
    """A run and the jobs of a deleted model have no payload."""
    data, archive = tmp_path / "data", tmp_path / "archive"
    with HeddleProcess(data) as process:
        run, deleted = TinkerRun(process), TinkerRun(process)
        for one in (run, deleted):
            one.result(one.data())
            one.result(one.request("optim_step", adam_params={}))
            one.result(one.request("save_weights", path="saved"))
            one.post("unload_model", {"model_id": one.id})
        gone = httpx.delete(
            f"{process.url}/v1/preview/models/{deleted.model_id()}", headers={"authorization": "Bearer a"}
        )
        assert gone.status_code == 200, gone.text
        job = run.job()
    for command in (
        ("check", "--full", "--data", data),
        ("backup", tmp_path / "backup", "--data", data),
        ("export", archive, "--data", data),
        ("import", "archive", archive, "--data", tmp_path / "moved"),
        ("check", "--full", "--data", tmp_path / "moved"),
    ):
        done = heddle_command(*command)
        assert done.returncode == 0 and "missing" not in done.stdout, done.stdout + done.stderr
    with HeddleProcess(tmp_path / "moved") as moved:
        path = f"{moved.url}/v1/preview/training-jobs/{job['id']}"
        found = httpx.get(path, headers={"authorization": "Bearer a"}).json()
    assert (found["kind"], found["state"], found["metrics"]) == ("tinker", "succeeded", job["metrics"])


def read_drawn(run: TinkerRun, seed: int) -> list[tuple[Array, Array]]:
    """What a sampler drew for a request."""
    return read_samples(run.result(f"{run.session}:sample:1:{seed}"))


def test_training_jobs_keep_off(heddle: HeddleProcess) -> None:
    """The model is a trainable one, which answers under its name; jobs of the other protocol are refused."""
    run = TinkerRun(heddle)
    headers = {"authorization": "Bearer any"}
    models = httpx.get(f"{heddle.url}/v1/preview/models", headers=headers, params={"limit": 100}).json()["data"]
    (mine,) = [model for model in models if run.session in model["name"]]
    body = {"model_id": mine["id"], "trajectory_groups": []}
    answer = httpx.post(f"{heddle.url}/v1/preview/training-jobs", headers=headers, json=body)
    assert answer.status_code == 409 and "Tinker" in answer.text

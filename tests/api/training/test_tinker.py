"""Tinker's protocol over HTTP: crashes, restarts, repeated requests, refusals."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server import HeddleProcess
from tests.support.tinker_messages import write_data, write_datum
from tests.support.tinker_run import TinkerRun, check_kills


@pytest.fixture(scope="module")
def heddle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of this module's own."""
    with HeddleProcess(tmp_path_factory.mktemp("tinker") / "data") as process:
        yield process


def test_kills_change_nothing(tmp_path: Path) -> None:
    """`kill -9` of the server and of the trainer in the middle of a loop."""
    check_kills(lambda name: HeddleProcess(tmp_path / name), 2, [(1, "trainer"), (4, "server")])


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


def test_a_refusal_has_its_turn(heddle: HeddleProcess) -> None:
    """What is refused is told at once; what comes behind it is done."""
    run = TinkerRun(heddle)
    inputs = {"target_tokens": [2, 3], "weights": [1.0, 1.0]}
    wrong = {
        "nonsense": write_data(run.id, 1, [write_datum([1, 2], inputs)], "nonsense"),
        "needs": write_data(run.id, 2, [write_datum([1, 2], {"target_tokens": [2, 3]})]),
        "does not take": write_data(run.id, 3, [write_datum([1, 2], {**inputs, "mask": [1.0, 1.0]})]),
        "target_tokens of shape": write_data(run.id, 4, [write_datum([1, 2, 3], inputs)]),
        "tokens are from": write_data(run.id, 5, [write_datum([1, 99999], inputs)]),
        "takes nothing": write_data(run.id, 6, [write_datum([1, 2], inputs)], config={"beta": 1.0}),
        "no number": write_data(run.id, 7, [write_datum([1, 2], inputs | {"weights": [1.0, float("nan")]})]),
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


def test_training_jobs_keep_off(heddle: HeddleProcess) -> None:
    """The model is a trainable one, which answers under its name; jobs of the other protocol are refused."""
    run = TinkerRun(heddle)
    headers = {"authorization": "Bearer any"}
    models = httpx.get(f"{heddle.url}/v1/preview/models", headers=headers, params={"limit": 100}).json()["data"]
    (mine,) = [model for model in models if run.session in model["name"]]
    body = {"model_id": mine["id"], "trajectory_groups": []}
    answer = httpx.post(f"{heddle.url}/v1/preview/training-jobs", headers=headers, json=body)
    assert answer.status_code == 409 and "Tinker" in answer.text

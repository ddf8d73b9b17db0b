"""Whether training is possible: what can be trained, and servers that train nothing and say why."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from heddle.inference.served_model import TINY
from tests.support.bare import bare_server
from tests.support.chat import API_KEY
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire, two_rollouts


def system_check(url: str) -> dict[str, object]:
    """The answer of the check, with its checks by name."""
    answer = httpx.get(f"{url}/v1/system-check", headers={"authorization": f"Bearer {API_KEY}"}).json()
    return {"ok": answer["ok"], **{check["name"]: (check["ok"], check["detail"]) for check in answer["checks"]}}


def test_the_base_models(training: TrainingWire) -> None:
    page = training.get("/base-models")
    (base,) = page["data"]
    assert (base["id"], base["parameters"]) == (TINY, 1_760_704)
    assert base["lora_targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert page["has_more"] is False


def test_all_is_well(server: HeddleProcess) -> None:
    found = system_check(server.url)
    assert found["ok"] is True and found["base model"] == (True, TINY)
    assert httpx.get(f"{server.url}/v1/system-check").status_code == 401


@pytest.mark.thorough
def test_training_off(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with HeddleProcess(data) as process, TrainingWire(process.url) as training:
        model = training.model()
        training.train(model, two_rollouts(equal=True))
    with HeddleProcess(data, training="off") as process, TrainingWire(process.url) as training:
        for path, body in (
            ("/models", training.wanted()),
            ("/training-jobs", {"model_id": model["id"], "trajectory_groups": []}),
            ("/sft-training-jobs", {"model_id": model["id"], "training_data_url": "x"}),
        ):
            assert "--training on" in training.refused(503, "POST", path, body)["detail"]
        assert training.steps(model) == [0, 1]
        assert training.chat(model).status_code == 200
        training.post(f"/models/{model['id']}/log", split="val", trajectory_groups=[])
        assert system_check(process.url)["ok"] is False
        assert training.delete(f"/models/{model['id']}")["deleted_checkpoints"] == 2


def test_no_model_is_served(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", model="none") as process, TrainingWire(process.url) as training:
        assert "--model" in training.refused(503, "POST", "/models", training.wanted())["detail"]
        assert training.get("/base-models")["data"] == []
        assert system_check(process.url)["base model"] == (False, "no model is served; start it with --model")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that cannot import what training needs."""
    process = bare_server(tmp_path_factory.mktemp("bare"))
    yield process
    process.terminate()


def test_without_the_extra(bare: HeddleProcess) -> None:
    with TrainingWire(bare.url) as training:
        refused = training.refused(501, "POST", "/models", training.wanted())
        assert "'.[training]'" in refused["detail"]
        assert training.get("/models")["data"] == []
        ok, detail = system_check(bare.url)["extra"]  # type: ignore[misc]
        assert ok is False and "torch" in detail and "pip install" in detail
    assert "Traceback" not in bare.log()

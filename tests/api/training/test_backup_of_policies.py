"""A backup holds what training made: after a restore every step answers as before."""

import shutil
from pathlib import Path

import pytest

from heddle.paths import SUMS
from tests.support import scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire

pytestmark = scale.on_sqlite


@pytest.mark.thorough
def test_trained_policies_survive_backup_and_restore(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as process, TrainingWire(process.url) as caller:
        model = caller.model()
        caller.train(model, experimental_config={"learning_rate": 0.05})
        digests = {item["step"]: item["digest"] for item in caller.get(f"/models/{model['id']}/checkpoints")["data"]}
        said = {step: caller.chat(model, step).json()["choices"] for step in (None, 0, 1)}
        assert heddle("backup", tmp_path / "copy.tar", "--data", tmp_path / "data").returncode == 0
    shutil.rmtree(tmp_path / "data")
    assert heddle("restore", tmp_path / "copy.tar", "--data", tmp_path / "data").returncode == 0
    with HeddleProcess(tmp_path / "data") as process, TrainingWire(process.url, entity=caller.entity) as again:
        listed = again.get(f"/models/{model['id']}/checkpoints")["data"]
        assert {item["step"]: item["digest"] for item in listed} == digests
        assert {step: again.chat(model, step).json()["choices"] for step in (None, 0, 1)} == said
        again.train(model)
        assert again.steps(model) == [0, 1, 2]


def test_check_names_a_checkpoint_whose_weights_are_gone(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as process, TrainingWire(process.url) as caller:
        caller.model()
    assert "1 of 1 adapters and checkpoints" in heddle("check", "--data", tmp_path / "data", "--port", "0").stdout
    weights = next((tmp_path / "data" / "training").rglob("adapter_model.safetensors"))
    (weights.parent / SUMS).unlink()
    found = heddle("check", "--data", tmp_path / "data", "--port", "0")
    named = weights.parent.relative_to(tmp_path / "data")
    assert (
        found.returncode == 0 and f"1 without SHA256SUMS (from an older version, or damaged): {named}" in found.stdout
    )
    weights.unlink()
    found = heddle("check", "--data", tmp_path / "data", "--port", "0")
    assert found.returncode == 1
    assert "1 wrong: training/" in found.stdout and "has no weights" in found.stdout

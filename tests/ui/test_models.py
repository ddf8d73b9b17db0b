"""Models: those that are served, those that are trained here with their checkpoints, and stored Model objects."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire, two_rollouts
from tests.ui.support import look

CONFIG = {"learning_rate": 0.002, "allow_training_without_logprobs": True}


@pytest.fixture(scope="module")
def trained(server: HeddleProcess) -> Iterator[tuple[Wire, dict[str, Any]]]:
    """A project with a trained model of one step beyond the base, a chat with it, and a Model object."""
    with TrainingWire(server.url) as training:
        project = f"{training.entity}/models"
        wanted = {"entity": training.entity, "project": "models", "name": "support-policy", "base_model": "heddle-tiny"}
        model = training.post("/models", **wanted)
        groups = two_rollouts()
        job = training.post(
            "/training-jobs", model_id=model["id"], trajectory_groups=groups, experimental_config=CONFIG
        )
        _wait(training, job["id"])
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": f"wandb-artifact:///{project}/support-policy", "messages": messages, "max_tokens": 4}
        answer = training.client.post("/v1/chat/completions", json=body, headers={"openai-project": project})
        assert answer.status_code == 200, answer.text
    wire = Wire(server.url, project)
    value = {"_type": "Greeter", "_class_name": "Greeter", "_bases": ["Model", "Object", "BaseModel"], "greeting": "Hi"}
    wire.post("/obj/create", obj={"project_id": project, "object_id": "greeter", "val": value})
    yield wire, model
    wire.client.close()


def _wait(training: TrainingWire, job_id: str) -> None:
    answer = training.client.get(f"/v1/preview/training-jobs/{job_id}/events/stream", timeout=120)
    assert "training_ended" in answer.text, answer.text[-2000:]


def test_served_models_show_state_context_use_and_price(page: Page, trained: tuple[Wire, dict[str, Any]]) -> None:
    wire, _ = trained
    page.goto(f"/{wire.project}/weave/models")
    row = page.get_by_role("table", name="Served models").get_by_role("row", name="support-policy")
    expect(row).to_contain_text("adapter of heddle-tiny, step 1")
    expect(row).to_contain_text("32,768")
    expect(row).to_contain_text("no price")
    model = quote(f"wandb-artifact:///{wire.project}/support-policy", safe="")
    playground = row.get_by_role("link", name="Playground")
    expect(playground).to_have_attribute("href", f"/{wire.project}/weave/playground?model={model}")
    look(page, "models", narrow=True)
    page.get_by_role("tab", name="Model objects").click()
    expect(page.get_by_role("link", name="greeter")).to_be_visible()
    look(page, "model-objects")


def test_a_checkpoint_becomes_current_and_another_is_deleted(page: Page, trained: tuple[Wire, dict[str, Any]]) -> None:
    wire, _ = trained
    page.goto(f"/{wire.project}/weave/models?view=trained")
    checkpoints = page.get_by_role("table", name="Checkpoints")
    expect(checkpoints.get_by_role("row", name="step 1").get_by_text("current", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Delete step 1")).to_be_disabled()
    look(page, "checkpoints", narrow=True)
    page.get_by_role("button", name="Make current").click()
    expect(checkpoints.get_by_role("row", name="step 0").get_by_text("current", exact=True)).to_be_visible()
    page.get_by_role("button", name="Make current").click()
    expect(checkpoints.get_by_role("row", name="step 1").get_by_text("current", exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete step 0").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(checkpoints.get_by_role("row")).to_have_count(2)


@pytest.mark.thorough
def test_no_trained_model_teaches(page: Page, project: str, base_url: str) -> None:
    page.goto(f"/{project}/weave/models?view=trained")
    expect(page.get_by_role("heading", name="No trained models yet")).to_be_visible()
    expect(page.get_by_text(f'base_url="{base_url}/v1"')).to_be_visible()
    look(page, "models-empty")
    page.get_by_role("tab", name="Model objects").click()
    expect(page.get_by_role("heading", name="No Model objects yet")).to_be_visible()

"""Training: the list of models, a run while it runs, its curves beside another's, and its trajectories."""

import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.rl import Trainer
from tests.support.server import HeddleProcess
from tests.support.tinker_run import TinkerRun
from tests.ui.support import Watched, keep_screen, look

LONG = "a-learner-with-a-name-that-goes-on-and-on-and-on-until-the-table-must-cut-it-off"
STEPS = 3


class Asked:
    """One question with three answers of different worth."""

    question = "respond with yes, no or maybe"

    def reward(self, text: str) -> float:
        """What an answer is worth."""
        return {"yes": 0.5, "no": 0.75, "maybe": 1.0}.get(text, 0.0)


def groups_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Two groups, one of which had a rollout that failed, and a third that teaches nothing."""
    groups = trainer.rollouts([Asked(), Asked()], 5)
    groups[0]["exceptions"] = [{"type": "TimeoutError", "message": "the tool did not answer"}]
    same = {**groups[1]["trajectories"][0], "reward": 1.0, "metadata": {"scenario": "مرحبا 👋"}}
    return [*groups, {"trajectories": [same, same]}]


@pytest.fixture(scope="module")
def lab(server: HeddleProcess) -> Iterator[dict[str, Any]]:
    """A project with two models that were trained a few steps: {project, first, second}."""
    project = f"team/lab-{uuid.uuid4().hex[:8]}"
    with Trainer(server.url, project, "learner") as first, Trainer(server.url, project, LONG) as second:
        for step in range(STEPS):
            first.train(groups_of(first), learning_rate=2e-3, kl_penalty_coef=0.01)
            if step % 2 == 0:
                body = {"split": "val", "trajectory_groups": first.rollouts([Asked()], 2)}
                logged = first.client.post(f"/v1/preview/models/{first.model['id']}/log", json=body)
                assert logged.status_code == 200, logged.text
        second.train(
            groups_of(second),
            learning_rate=1e-4,
            loss_fn="sapo",
            loss_fn_config={"temperature_pos": 2.0},
            max_steps_off_policy=4,
        )
        yield {"project": project, "first": first, "second": second}


@pytest.mark.thorough
def test_an_empty_project_teaches(page: Page, project: str, server: HeddleProcess) -> None:
    page.goto(f"/{project}/weave/training")
    expect(page.get_by_role("heading", name="Train a model on rewards")).to_be_visible()
    expect(page.locator("pre").nth(1)).to_contain_text(f'base_url="{server.url}/v1"')
    look(page, "training-empty")
    page.get_by_role("button", name="New job").click()
    expect(page.get_by_label("Base model")).to_contain_text("heddle-tiny")
    look(page, "training-new")


def test_models_are_listed_and_compared(page: Page, lab: dict[str, Any]) -> None:
    page.goto(f"/{lab['project']}/weave/training")
    row = page.get_by_role("row", name=re.compile("^Select row learner "))
    expect(row).to_contain_text("succeeded")
    expect(row.get_by_role("img", name=re.compile("Reward from"))).to_be_visible()
    look(page, "training", narrow=True)
    for box in page.get_by_role("checkbox", name="Select row").all():
        box.check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.get_by_role("img", name="Reward by step")).to_be_visible()
    expect(page.get_by_text(LONG).first).to_be_visible()
    look(page, "training-compare")


def test_a_job_shows_how_it_learned(page: Page, lab: dict[str, Any]) -> None:
    page.goto(f"/{lab['project']}/weave/training/{lab['second'].model['id']}")
    page.get_by_role("tab", name="Job").click()
    expect(page.get_by_text("sapo, temperature_pos 2, temperature_neg 1.05")).to_be_visible()
    expect(page.get_by_text("at most 4 steps old")).to_be_visible()


def test_a_run_whose_events_are_refused_is_read_again_and_its_page_stays(
    page: Page, lab: dict[str, Any], watched: Watched
) -> None:
    watched.allow("429")
    page.route(re.compile("/live"), lambda route: route.fulfill(status=429, json={"reason": "Too many streams"}))
    is_run = re.compile("/_ui/api/training/runs/[^/]+$")
    page.goto(f"/{lab['project']}/weave/training/{lab['second'].model['id']}")
    tab = page.get_by_role("tab", name="Job")
    tab.evaluate("tab => { tab.dataset.kept = 'yes' }")
    for _ in range(2):
        with page.expect_response(is_run):
            pass
    expect(tab).to_have_attribute("data-kept", "yes")


def test_a_run_of_tinkers_protocol_has_its_page(page: Page, project: str, server: HeddleProcess) -> None:
    """Its gradient steps are drawn as those of a job, also while it goes on; a step says how it was optimized."""
    run = TinkerRun(server, project=project)

    def step(number: int) -> None:
        run.save_sampler(number)
        run.result(run.send_data(run.draw(number, number), "ppo"))
        run.result(run.request("optim_step", adam_params={"learning_rate": 1e-3, "weight_decay": 0.01}))

    for number in (1, 2):
        step(number)
    run.result(run.request("save_weights", path="end"))
    page.goto(f"/{project}/weave/training/{run.model_id()}?metrics=all")
    chart = page.get_by_role("img", name="Loss by step")
    expect(chart).to_be_visible()
    for name in ("Mean ratio", "Clipped tokens", "Entropy", "Gradient norm", "Learning rate"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    steps = page.locator(".tile", has_text="Gradient steps")
    expect(steps).to_contain_text("2")
    expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
    look(page, "job-tinker", narrow=True)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(step, 3).result()
    expect(steps).to_contain_text("3")
    page.get_by_role("button", name="How step 7 was made").click()
    card = page.get_by_role("dialog", name="Step 7")
    expect(card).to_contain_text("AdamW, betas 0.9 and 0.95, eps 1e-12, weight decay 0.01, gradient norm as it is")
    expect(card).to_contain_text("ppo, clip_low_threshold 0.8, clip_high_threshold 1.2")
    look(page, "job-tinker-step")
    card.get_by_role("button", name="Close").click()
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("tab", name="Job").click()
    expect(
        page.get_by_text(re.compile("of .* log-probabilities are bitwise equal, largest difference"))
    ).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page is wider than its window"
    keep_screen(page, "job-tinker-phone")
    page.goto(f"/{project}/weave/training")
    expect(page.get_by_role("row", name=re.compile(run.session))).to_contain_text("running")


@pytest.mark.thorough
def test_a_job_on_preferences_has_its_page(page: Page, project: str, server: HeddleProcess) -> None:
    pair = {
        "chosen": [{"role": "user", "content": "yes or no"}, {"role": "assistant", "content": "yes"}],
        "rejected": [{"role": "user", "content": "yes or no"}, {"role": "assistant", "content": "no"}],
    }
    with Trainer(server.url, project, "chooser") as chooser:
        file = {"file": ("pairs.jsonl", json.dumps(pair).encode())}
        made = chooser.client.post("/file/create", data={"project_id": project}, files=file)
        body = {"model_id": chooser.model["id"], "training_data_url": made.json()["digest"]}
        job = chooser.client.post("/v1/preview/dpo-training-jobs", json=body).json()
        page.goto(f"/{project}/weave/training/{job['id']}")
        page.get_by_role("tab", name="Job").click()
        expect(page.get_by_text("dpo, beta 0.1")).to_be_visible()
        expect(page.get_by_text(body["training_data_url"])).to_be_visible()


@pytest.mark.thorough
def test_a_run_grows_while_it_runs(page: Page, lab: dict[str, Any]) -> None:
    trainer: Trainer = lab["first"]
    page.goto(f"/{lab['project']}/weave/training/{trainer.model['id']}")
    expect(page.get_by_role("img", name="Reward by step")).to_be_visible()
    steps = page.get_by_role("table", name="Steps")
    expect(steps.get_by_role("row", name=re.compile(f"{STEPS} latest"))).to_be_visible()
    look(page, "job", narrow=True)
    with ThreadPoolExecutor(1) as pool:
        # In a thread of its own, since the page's events run in this one.
        pool.submit(lambda: trainer.train(groups_of(trainer), learning_rate=2e-3)).result()
    expect(steps.get_by_role("row", name=re.compile(f"{STEPS + 1} latest"))).to_be_visible()


@pytest.mark.thorough
def test_axes_smoothing_and_parts_of_a_run(page: Page, lab: dict[str, Any]) -> None:
    page.goto(f"/{lab['project']}/weave/training/{lab['first'].model['id']}?smooth=0.5")
    expect(page.get_by_role("slider", name="Smoothing")).to_have_value("0.5")
    page.get_by_role("button", name="Time", exact=True).click()
    page.get_by_role("checkbox", name="Log scale").check()
    expect(page).to_have_url(re.compile(r"x=time.*log=1"))
    page.get_by_role("button", name=re.compile("more metrics")).click()
    expect(page.get_by_role("heading", name="Mean ratio")).to_be_visible()
    page.get_by_role("tab", name="Log").click()
    expect(page.get_by_role("list", name="Log")).to_contain_text("training ended")
    page.get_by_role("tab", name="Job").click()
    expect(page.get_by_text("Published in")).to_be_visible()
    expect(page.get_by_text(re.compile("all of .* log-probabilities are bitwise equal"))).to_be_visible()
    page.get_by_role("tab", name="Config").click()
    expect(page.get_by_text("learning_rate:", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Steps").click()
    page.get_by_role("button", name="Make step 1 current").click()
    page.get_by_role("button", name="Use step 1").click()
    expect(page.get_by_role("row", name=re.compile("^Select row 1 latest"))).to_be_visible()


@pytest.mark.thorough
def test_a_waiting_job_is_cancelled(page: Page, lab: dict[str, Any]) -> None:
    trainer: Trainer = lab["second"]
    groups = groups_of(trainer)
    jobs = [trainer.start(groups) for _ in range(8)]
    page.goto(f"/{lab['project']}/weave/training/{jobs[-1]}")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.get_by_role("status").first).to_have_text(re.compile("cancelled|succeeded"))


def test_trajectories_show_advantages_and_trained_tokens(page: Page, lab: dict[str, Any]) -> None:
    page.goto(f"/{lab['project']}/weave/trajectories?model={lab['first'].model['id']}&step=1")
    groups = page.get_by_role("list", name="Groups of trajectories")
    expect(groups.get_by_text("equal", exact=True)).to_be_visible()
    expect(groups.get_by_text("1 failed")).to_be_visible()
    detail = page.get_by_role("region", name="Trajectory")
    expect(detail.get_by_role("article", name="Assistant message")).to_be_visible()
    look(page, "trajectories", narrow=True)
    detail.get_by_role("tab", name="Tokens").click()
    expect(detail.get_by_text(re.compile("tokens trained"))).to_be_visible()
    look(page, "trajectories-tokens")
    page.get_by_role("button", name="As sent").click()
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(r"at=\d+\.\d+"))
    chosen = groups.get_by_role("link").nth(10)
    chosen.click()
    expect(detail.get_by_text("nothing was learned from it")).to_be_visible()
    page.reload()
    expect(detail.get_by_role("heading", name="Group 3, trajectory 1")).to_be_visible()


def test_the_advantages_are_those_that_training_used(page: Page, lab: dict[str, Any]) -> None:
    trainer: Trainer = lab["first"]
    page.goto(f"/{lab['project']}/weave/trajectories?model={trainer.model['id']}&step=1&sort=sent&at=0.0")
    expect(page.get_by_role("heading", name="Group 1, trajectory 1")).to_be_visible()
    (job,) = [
        job
        for job in trainer.get("/v1/preview/training-jobs", model_id=trainer.model["id"], limit=100)["data"]
        if job["step"] == 1
    ]
    body = trainer.get(f"/v1/preview/training-jobs/{job['id']}/trajectories")
    rewards = [member["reward"] for member in body["trajectory_groups"][0]["trajectories"]]
    mean = sum(rewards) / len(rewards)
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    wanted = (rewards[0] - mean) / (deviation + 1e-6) if deviation else 0.0
    shown = "0" if abs(wanted) < 1e-9 else f"{'+' if wanted > 0 else '−'}{abs(wanted):.2f}"
    detail = page.get_by_role("region", name="Trajectory")
    expect(detail.get_by_text(shown, exact=True)).to_be_visible()

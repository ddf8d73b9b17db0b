"""Recipes of tinker-cookbook, unmodified, on the server's own model and on files of the working directory.

A recipe names its model, its renderer and its data set. The names of model and data set are folders here, which
`transformers` and `datasets` take before they ask a hub.
"""

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.inference.served_model import TINY_FOLDER
from tests.clients.test_tinker import BASE, TinkerClient, client, trained  # noqa: F401
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client
WORDS = ["after", "before", "between", "could", "during", "many", "only", "such", "then", "under", "until", "when"]
DISTILLATION = "distillation.on_policy_distillation"
SMALL = {"model_name": BASE, "renderer_name": "role_colon", "behavior_if_log_dir_exists": "delete"}
SHORT = {"group_size": 2, "max_tokens": 8, "eval_every": 0, "save_every": 0, "max_steps": 2}
PAGES = {"task.num_pages_min": 2, "task.num_pages_max": 3, "task.page_chars": 300}
RECIPES: dict[str, tuple[dict[str, Any], str]] = {
    "rl_numerics_check.train": (
        SMALL | SHORT | PAGES | {"renderer_name": "qwen3_disable_thinking", "groups_per_batch": 2},
        "optim/kl_sample_train_v2",
    ),
    "preference.dpo.train": (
        SMALL | {"dataset": "hhh", "batch_size": 8, "max_length": 256, "max_steps": 2, "reference_model_name": BASE},
        "dpo_loss",
    ),
    DISTILLATION: (
        SMALL | SHORT | {"teacher_model": BASE, "dataset": "deepmath", "groups_per_batch": 4, "lora_rank": 8},
        "teacher_kl",
    ),
    "multiplayer_rl.guess_number.train": (SMALL | SHORT | {"batch_size": 2}, "env/all/turns_per_episode"),
}
KNOWN = "Qwen/Qwen3.5-9B-Base"
"""The model that these name, whose renderer they take."""
BASIC: dict[str, tuple[dict[str, Any], str]] = {
    "sl_basic": ({"max_steps": 2}, "train_mean_nll"),
    "sl_loop": ({"batch_size": 8, "max_steps": 2}, "train_mean_nll"),
    "rl_basic": ({"max_tokens": 8}, "env/all/reward/total"),
    "rl_loop": ({"batch_size": 4, "group_size": 2, "max_tokens": 8, "max_steps": 2}, "reward/total"),
}
RECIPES |= BASIC
"""Their arguments, and a metric that only this kind of training has."""


def make_files(folder: Path) -> None:
    """The model's tokenizer, and data sets of a few rows by the names that recipes load."""
    for name in (BASE, KNOWN):
        shutil.copytree(TINY_FOLDER, folder / name)
    source = random.Random(1)
    asked = [f"\n\nHuman: What is {number} plus one?\n\nAssistant: " for number in range(24)]
    pairs = [{"chosen": f"{text}It is {n + 1}.", "rejected": f"{text}No idea."} for n, text in enumerate(asked)]
    pages = [{"text": " ".join(source.choices(WORDS, k=40))} for _ in range(400)]
    sums = [{"question": f"What is {number} plus {number}?", "final_answer": str(2 * number)} for number in range(24)]
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} plus {n}?"},
                {"role": "assistant", "content": str(2 * n)},
            ]
        }
        for n in range(256)
    ]
    riddles = [{"question": f"What is {n} plus {n}?", "answer": f"It is #### {2 * n}"} for n in range(8)]
    for name, rows in {
        "HuggingFaceH4/no_robots/train": chats,
        "HuggingFaceH4/no_robots/test": chats[:8],
        "openai/gsm8k/main/train": riddles,
        "openai/gsm8k/main/test": riddles[:8],
        "Anthropic/hh-rlhf/train": pairs,
        "Anthropic/hh-rlhf/test": pairs[:8],
        "Salesforce/wikitext/wikitext-103-raw-v1/train": pages,
        "zwhe99/DeepMath-103K/train": sums,
    }.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = "{split: train, path: main/train.jsonl}, {split: test, path: main/test.jsonl}"
    (folder / "openai/gsm8k/README.md").write_text(
        f"---\nconfigs: [{{config_name: main, data_files: [{splits}]}}]\n---\n"
    )
    parts = "{config_name: wikitext-103-raw-v1, data_files: [{split: train, path: wikitext-103-raw-v1/train.jsonl}]}"
    (folder / "Salesforce/wikitext/README.md").write_text(f"---\nconfigs: [{parts}]\n---\n")


def run(client: TinkerClient, recipe: str, **more: Any) -> tuple[list[float], str]:  # noqa: F811
    """The metric of each step, and the path of the sampler's weights at the end."""
    folder = client.folder / recipe
    make_files(folder)
    arguments, metric = RECIPES[recipe]
    told = {**client.environment(), "TINKER_BASE_URL": client.server, "TINKER_API_KEY": "tml-any"}
    command = [*client.command, "-m", f"tinker_cookbook.recipes.{recipe}", f"log_path={folder / 'log'}"]
    done = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in (arguments | more).items())],
        env=told,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    rows = [json.loads(line) for line in (folder / "log" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if metric in row]
    # Its batch of 128 questions takes all that there are.
    assert len(steps) == (1 if recipe == "rl_basic" else 2), [sorted(row) for row in rows]
    # Half the mean square of what sampler and trainer make of a token's logprob; a recipe calls 1e-3 healthy.
    assert all(row.get("optim/kl_sample_train_v2", 0.0) == 0 for row in steps), steps
    last = json.loads((folder / "log" / "checkpoints.jsonl").read_text().splitlines()[-1])
    assert re.fullmatch(r"tinker://\w+:train:\d/weights/final", last["state_path"]), last
    return [row[metric] for row in steps], last["sampler_path"]


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in {DISTILLATION, *BASIC}])
def test_a_recipe_runs_unmodified(client: TinkerClient, recipe: str) -> None:  # noqa: F811
    """Two steps of training, and the checkpoint that they end with."""
    run(client, recipe)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that calls its model as the cookbook knows one."""
    with HeddleProcess(tmp_path_factory.mktemp("known") / "data", model_name=KNOWN) as process:
        yield process


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", BASIC)
def test_a_recipe_runs_with_the_name_that_it_knows(
    client: TinkerClient,  # noqa: F811
    known: HeddleProcess,
    recipe: str,
) -> None:
    """Two steps of those whose renderer follows from the model's name, which the server gives its own model."""
    client.server = known.url
    run(client, recipe)


@pytest.mark.thorough
def test_distillation_runs_unmodified(client: TinkerClient) -> None:  # noqa: F811
    """DPO trains a teacher, which the base model then learns from."""
    losses, teacher = run(client, "preference.dpo.train", learning_rate=0.02)
    assert losses[1] < losses[0]
    distances, _ = run(client, DISTILLATION, teacher_checkpoint=teacher, learning_rate=0.01)
    assert distances[1] < distances[0], distances

"""Training and serving at once, on a real server: steps are published under load, and each answers for itself."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.support.chat import API_KEY
from tests.support.server import HeddleProcess
from tests.support.training import Json, TrainingWire

WORTH = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
QUESTIONS = [f"{verb} yes, no or maybe" for verb in ("say", "reply", "answer with", "respond with")]


def address_of(model: Json) -> str:
    """What clients call a model."""
    return f"wandb-artifact:///{model['entity']}/{model['project']}/{model['name']}"


def chat(client: httpx.Client, model: str, question: str, **fields: Any) -> httpx.Response:
    """The raw answer to a question."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 6, **fields}
    return client.post("/v1/chat/completions", json=body)


def rollouts(training: TrainingWire, model: Json) -> list[Json]:
    """A rewarded group of sampled answers to each question."""
    groups = []
    for question in QUESTIONS:
        answer = chat(training.client, address_of(model), question, n=8, temperature=1.0)
        assert answer.status_code == 200, answer.text
        message = {"role": "user", "content": question}
        groups.append(
            {
                "trajectories": [
                    {
                        "messages_and_choices": [message, choice],
                        "reward": WORTH.get(choice["message"]["content"], random.Random(index).random() / 10),
                    }
                    for index, choice in enumerate(answer.json()["choices"])
                ]
            }
        )
    return groups


def greedy(training: TrainingWire, model: str) -> list[float]:
    """The log-probabilities of a greedy answer, and which policy made it stands in its header."""
    answer = chat(training.client, model, QUESTIONS[0], temperature=0)
    assert answer.status_code == 200, answer.text
    return [item["logprob"] for item in answer.json()["choices"][0]["logprobs"]["content"]]


@contextmanager
def hammered(url: str, model: str, connections: int = 8) -> Iterator[tuple[list[str], list[str], Callable[[], None]]]:
    """Clients that never stop asking a model: the failures so far, and the policies that answered, in order."""
    failures: list[str] = []
    policies: list[str] = []
    stop = threading.Event()

    def talk(number: int) -> None:
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {API_KEY}"}, timeout=120) as client:
            while not stop.is_set():
                fields = {"temperature": 1.0, "stream": bool(number % 2)}
                answer = chat(client, model, QUESTIONS[number % len(QUESTIONS)], **fields)
                if answer.status_code != 200 or '"error"' in answer.text:
                    failures.append(answer.text)
                policies.append(answer.headers.get("x-heddle-policy", ""))

    with ThreadPoolExecutor(connections) as pool:
        talking = [pool.submit(talk, number) for number in range(connections)]
        try:
            yield failures, policies, stop.set
        finally:
            stop.set()
    for each in talking:
        each.result()


@pytest.mark.thorough
def test_steps_are_published_under_load_without_a_failure(server: HeddleProcess, training: TrainingWire) -> None:
    model = training.model()
    address, place = address_of(model), f"{model['entity']}/lab/{model['name']}"
    before = greedy(training, address)
    with hammered(server.url, address) as (failures, policies, _):
        for step in range(1, 5):
            training.train(model, rollouts(training, model), experimental_config={"learning_rate": 5e-3})
            answer = chat(training.client, address, QUESTIONS[0], temperature=0)
            assert answer.headers["x-heddle-policy"] == f"{place}@{step}", "who asks after the end asks the new step"
    assert failures == []
    assert set(policies) <= {f"{place}@{step}" for step in range(5)} and f"{place}@0" in policies
    assert len(set(policies)) >= 3, "clients went on while steps came"
    said = [greedy(training, f"{address}:step{step}") for step in range(5)]
    assert said[0] == pytest.approx(before, abs=1e-6) and greedy(training, address) == pytest.approx(said[4], abs=1e-6)
    for older, newer in itertools.pairwise(said):
        assert older[0] != pytest.approx(newer[0], abs=1e-3), "each step is another policy"


def test_on_policy_the_trainer_agrees_with_what_was_served(training: TrainingWire) -> None:
    """The importance ratio of every token is exactly 1, also on an adapter that has been trained."""
    model = training.model()
    for _ in range(2):
        job = training.job(model, rollouts(training, model), experimental_config={"learning_rate": 5e-3})
        (step,) = [event["data"] for event in training.until_ended(job) if event["type"] == "gradient_step"]
        assert step["offpolicy/ratio_max"] == step["offpolicy/ratio_mean"] == 1
        assert step["agreement/equal_tokens"] == step["agreement/tokens"] > 0
        assert (step["agreement/largest_difference"], step["offpolicy/clip_fraction"]) == (0, 0)


def test_a_rollback_is_what_the_name_means_at_once(training: TrainingWire) -> None:
    model = training.model()
    address = address_of(model)
    for _ in range(2):
        training.train(model, rollouts(training, model), experimental_config={"learning_rate": 5e-3})
    first = greedy(training, f"{address}:step1")
    assert greedy(training, address) != pytest.approx(first, abs=1e-3)
    training.post(f"/models/{model['id']}/rollback", step=1)
    assert greedy(training, address) == pytest.approx(first, abs=1e-6)


def test_a_stream_outlives_the_deletion_of_its_model(training: TrainingWire) -> None:
    model = training.model()
    body = {"model": address_of(model), "messages": [{"role": "user", "content": "Say something."}]}
    body |= {"stream": True, "ignore_eos": True, "max_tokens": 400, "temperature": 1.0}
    with training.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        pieces = stream.iter_text()
        text = next(pieces)
        with TrainingWire(str(training.client.base_url)) as other:
            assert other.delete(f"/models/{model['id']}")["deleted_checkpoints"] == 1
        text += "".join(pieces)
    assert text.endswith("data: [DONE]\n\n") and '"error"' not in text and text.count('"token_ids":[') == 400
    assert chat(training.client, address_of(model), QUESTIONS[0]).status_code == 404

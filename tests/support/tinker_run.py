"""A client of Tinker's protocol over plain HTTP, which outlives its server."""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import httpx
import psutil

from heddle.training.tinker.messages import read_samples
from tests.support.server import HeddleProcess
from tests.support.tinker_messages import random_datum, write_data, write_datum

BASE = "heddle-tiny"
PATIENCE = 240.0
WEIGHTS = "adapter_model.safetensors"


class TinkerRun:
    """A model in training, and what is asked of it; equal seeds ask the same."""

    def __init__(self, heddle: HeddleProcess, seed: int = 1, project: str | None = None) -> None:
        self.heddle = heddle
        self.random = Random(seed)
        self.seq = 0
        self.session = self.post("create_session", {"sdk_version": "0.38.0", "project_id": project})["session_id"]
        made = {"session_id": self.session, "model_seq_id": 0, "base_model": BASE}
        made["lora_config"] = {"rank": 4, "seed": seed}
        self.id = self.post("create_model", made)["model_id"]
        sampler = {"session_id": self.session, "sampling_session_seq_id": 900, "base_model": BASE}
        self.sampler = self.post("create_sampling_session", sampler)["sampling_session_id"]
        self.asked: list[tuple[str, Any]] = []
        """What was sent, to be sent again when the answer is lost."""

    def send(self, path: str, body: Any) -> httpx.Response:
        """An answer of the server, however often it has to be asked."""
        deadline = time.monotonic() + PATIENCE
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        while True:
            try:
                url = f"{self.heddle.url}/api/v1/{path}"
                answer = httpx.post(url, headers={"x-api-key": "tml-any"}, timeout=60, **content)
                if answer.status_code < 500:
                    return answer
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, path
            time.sleep(0.05)

    def post(self, path: str, body: Any) -> Any:
        """What is answered to a request that is accepted."""
        answer = self.send(path, body)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def ask(self, path: str, body: Any) -> str:
        """Have a request stored; its id. What is asked twice is one request."""
        first, again = (self.post(path, body)["request_id"] for _ in range(2))
        assert first == again
        return str(first)

    def result(self, request_id: str) -> bytes:
        """What came of a request."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.send("retrieve_future", {"request_id": request_id})
            if answer.status_code == 200:
                assert b'"error"' not in answer.content, answer.text
                return answer.content
            assert answer.status_code == 408 and time.monotonic() < deadline, answer.text

    def data(self) -> str:
        """A gradient."""
        self.seq += 1
        data = [random_datum(self.random) for _ in range(2)]
        return self.ask("forward_backward", write_data(self.id, self.seq, data))

    def request(self, route: str, **fields: Any) -> str:
        """Any other request of the model."""
        self.seq += 1
        return self.ask(route, {"model_id": self.id, "seq_id": self.seq, **fields})

    def sample(self, seq: int) -> str:
        """Two sequences of the base model."""
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7 + seq]}]}
        body = {"sampling_session_id": self.sampler, "seq_id": seq, "num_samples": 2, "prompt": prompt}
        return self.ask("asample", body | {"sampling_params": {"max_tokens": 24, "seed": 11}})

    def ask_all(self, rounds: int) -> list[str]:
        """Rounds of two gradients, a step, a checkpoint and a sample, all at once."""
        asked = []
        for number in range(rounds):
            asked += [self.data(), self.data()]
            asked.append(self.request("optim_step", adam_params={"learning_rate": 1e-2}))
            asked.append(self.request("save_weights", path=f"after-{number}"))
            asked.append(self.sample(number))
        return asked

    def draw(self, sampler: int, seed: int) -> list[bytes]:
        """A gradient's data: four answers of the run's own sampler, every second of which was good."""
        prompt = [5, 6, 7]
        body = {"sampling_session_id": f"{self.session}:sample:{sampler}", "seq_id": seed, "num_samples": 4}
        body |= {"prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}}
        drawn = read_samples(
            self.result(self.ask("asample", body | {"sampling_params": {"max_tokens": 6, "seed": seed}}))
        )
        data, before = [], [0.0] * (len(prompt) - 1)
        for place, (tokens, logprobs) in enumerate(drawn):
            ids = [*prompt, *tokens.tolist()]
            advantages = [*before, *[(-1.0) ** place] * len(tokens)]
            inputs = {"target_tokens": ids[1:], "logprobs": [*before, *logprobs.tolist()], "advantages": advantages}
            data.append(write_datum(ids[:-1], inputs))
        return data

    def send_data(self, data: list[bytes], loss: str) -> str:
        """A gradient of some data."""
        self.seq += 1
        return self.ask("forward_backward", write_data(self.id, self.seq, data, loss))

    def save_sampler(self, number: int) -> None:
        """Make a sampler of the weights as they are."""
        self.result(self.request("save_weights_for_sampler", sampling_session_seq_id=number))

    def job(self) -> Any:
        """The run among the training jobs."""
        return self.read(f"training-jobs?model_id={self.model_id()}")["data"][0]

    def model_id(self) -> str:
        """The trainable model that it trains."""
        found = self.read("models?limit=100")["data"]
        return next(str(model["id"]) for model in found if self.session in model["name"])

    def read(self, path: str) -> Any:
        """What the routes of training jobs answer."""
        headers = {"authorization": "Bearer any"}
        return httpx.get(f"{self.heddle.url}/v1/preview/{path}", headers=headers, timeout=60).raise_for_status().json()

    def events(self) -> list[tuple[str, Any]]:
        """The events of its job, without how fast it was."""
        found = self.read(f"training-jobs/{self.job()['id']}/events?limit=100")["data"]
        return [(one["type"], {n: v for n, v in one["data"].items() if n != "tokens_per_second"}) for one in found]

    def weights(self) -> dict[int, bytes]:
        """The weights of every checkpoint by its request."""
        found = self.heddle.data.glob(f"training/*/checkpoints/*/{WEIGHTS}")
        return {int(path.parent.name): path.read_bytes() for path in sorted(found)}


def trainers(heddle: HeddleProcess) -> list[psutil.Process]:
    """The training processes of a server."""
    assert heddle.process is not None
    children = psutil.Process(heddle.process.pid).children(recursive=True)
    return [child for child in children if "heddle.trainer_process" in child.cmdline()]


def check_kills(make: Callable[[str], HeddleProcess], rounds: int, kills: list[tuple[int, str]]) -> None:
    """Kill the server or the trainer when some results are there: results, weights and their number are as without.

    `kills` has how many results are waited for before each, and who is killed.
    """
    seen = []
    for name in ("quiet", "killed"):
        heddle = make(name)
        with heddle:
            run = TinkerRun(heddle)
            asked = run.ask_all(rounds)
            for count, who in kills if name == "killed" else ():
                for request_id in asked[:count]:
                    run.result(request_id)
                if who == "server":
                    heddle.kill()
                    heddle.start()
                else:
                    for process in trainers(heddle):
                        process.kill()
            results = [run.result(request_id).replace(run.id.encode(), b"RUN") for request_id in asked]
            seen.append((results, run.weights(), run.events()))
    (results, weights, events), (results_again, weights_again, events_again) = seen
    assert [kind for kind, _ in events] == ["training_started", *["gradient_step"] * rounds]
    assert events == events_again
    pairs = zip(results, results_again, strict=True)
    apart = [(number, quiet, killed) for number, (quiet, killed) in enumerate(pairs) if quiet != killed]
    assert not apart, apart
    assert weights.keys() == weights_again.keys() and len(weights) == rounds + 1
    assert [step for step in weights if weights[step] != weights_again[step]] == []

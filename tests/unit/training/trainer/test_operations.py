"""Runs of Tinker's protocol in the trainer: the losses, and the same bytes whatever happens between two requests."""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from heddle.inference.served_model import TINY_FOLDER  # noqa: E402
from heddle.training.losses.tinker import LOSSES  # noqa: E402
from heddle.training.messages import Behind, Failed, Operation, Performed  # noqa: E402
from heddle.training.trainer import operations  # noqa: E402
from heddle.training.trainer.operations import Runs  # noqa: E402
from heddle.training.trainer.run import PolicyCache  # noqa: E402
from tests.support.models import make_adapter  # noqa: E402
from tests.support.tinker_messages import random_datum, write_data, write_datum  # noqa: E402

WEIGHTS, OPTIMIZER = "adapter_model.safetensors", "optimizer.safetensors"
ADAM = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}
CACHE = PolicyCache()


class Requests:
    """A client with the server's memory: it gives a process what that lacks of a run."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self.folder = folder / name
        self.name = name
        self.random = Random(seed)
        self.done: list[Operation] = []
        self.seq = self.applied = 0
        make_adapter(self.folder / "start", TINY_FOLDER, seed=seed)

    def ask(self, runs: Runs, kind: str, body: bytes) -> Performed | Failed:
        """Have one request done."""
        self.seq += 1
        operation = self.make(kind, body, self.seq, self.applied)
        answer = runs.perform(operation)
        if isinstance(answer, Behind):
            at = answer.seq
            for earlier in [one for one in self.done if one.seq > at]:
                again = runs.perform(self.make(earlier.kind, earlier.body, earlier.seq, at))
                assert isinstance(again, Performed)
                at = earlier.seq
            answer = runs.perform(self.make(kind, body, self.seq, at))
        assert isinstance(answer, Performed | Failed), answer
        if isinstance(answer, Performed) and kind in ("forward_backward", "optim_step", "load_weights"):
            self.done.append(operation)
            self.applied = self.seq
        return answer

    def make(self, kind: str, body: bytes, seq: int, after: int) -> Operation:
        """A request as the server gives it to a process."""
        place = str(self.folder / f"saved-{seq}") if kind.startswith("save") else None
        return Operation(
            run=self.name,
            seq=seq,
            after=after,
            kind=kind,
            body=body,
            origin=str(self.folder / "start"),
            work=str(self.folder / "run"),
            place=place,
            base_folder=str(TINY_FOLDER),
            device="cpu",
            dtype="float32",
            threads=1,
        )

    def step(self, runs: Runs) -> None:
        """Two chunks of data, and an optimizer step."""
        for _ in range(2):
            data = [random_datum(self.random) for _ in range(2)]
            assert isinstance(self.ask(runs, "forward_backward", write_data(self.name, 1, data)), Performed)
        assert isinstance(self.ask(runs, "optim_step", json.dumps(ADAM).encode()), Performed)

    def save(self, runs: Runs) -> bytes:
        """The bytes of weights and moments."""
        self.ask(runs, "save_weights", b"{}")
        folder = self.folder / f"saved-{self.seq}"
        return (folder / WEIGHTS).read_bytes() + (folder / OPTIMIZER).read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What two runs come to one after the other, each in one process."""
    folder = tmp_path_factory.mktemp("alone")
    found = []
    for seed in (1, 2):
        client, runs = Requests(folder, f"run{seed}", seed), Runs(CACHE)
        for _ in range(4):
            client.step(runs)
        found.append(client.save(runs))
    assert found[0] != found[1]
    return found


def test_runs_side_by_side_are_as_alone(tmp_path: Path, alone: list[bytes]) -> None:
    """Requests of two runs in turns."""
    runs = Runs(CACHE)
    clients = [Requests(tmp_path, f"run{seed}", seed) for seed in (1, 2)]
    for _ in range(4):
        for client in clients:
            client.step(runs)
    assert [client.save(runs) for client in clients] == alone


@pytest.mark.parametrize("snapshots", ["often", "never"])
def test_a_new_process_brings_a_run_back(
    tmp_path: Path, alone: list[bytes], monkeypatch: pytest.MonkeyPatch, snapshots: str
) -> None:
    """A process of its own for each request, with or without snapshots to begin with."""
    monkeypatch.setattr(operations, "SNAPSHOT_SHARE", 0 if snapshots == "often" else math.inf)

    class Mortal(Runs):
        def perform(self, operation: Operation) -> Performed | Behind | Failed:
            answer = super().perform(operation)
            if operation.seq == client.seq and not isinstance(answer, Behind):
                self._runs.clear()
            return answer

    client, runs = Requests(tmp_path, "run1", 1), Mortal(CACHE)
    for _ in range(4):
        client.step(runs)
    assert client.save(runs) == alone[0]
    kept = list((tmp_path / "run1" / "run").glob("snapshot-*"))
    assert bool(kept) == (snapshots == "often")


def test_a_request_that_was_done_but_not_told(tmp_path: Path, alone: list[bytes]) -> None:
    """A snapshot that holds more than what was told is not begun with: nothing is applied twice."""
    client = Requests(tmp_path, "run1", 1)
    runs = Runs(CACHE)
    for _ in range(4):
        for _ in range(2):
            data = [random_datum(client.random) for _ in range(2)]
            client.ask(runs, "forward_backward", write_data("run1", 1, data))
        runs.perform(client.make("optim_step", json.dumps(ADAM).encode(), client.seq + 1, client.applied))
        runs = Runs(CACHE)
        client.ask(runs, "optim_step", json.dumps(ADAM).encode())
    assert client.save(runs) == alone[0]


def test_what_fails_changes_nothing(tmp_path: Path, alone: list[bytes]) -> None:
    """A loss that is no number, in the middle of the gradient, and a step that is too long."""
    client, runs = Requests(tmp_path, "run1", 1), Runs(CACHE)
    far = {"target_tokens": [2, 3], "logprobs": [-400.0, -1.0], "advantages": [1.0, 1.0]}
    bad = write_data("run1", 1, [random_datum(Random(5), "ppo"), write_datum([1, 2], far)], "importance_sampling")
    for _ in range(4):
        assert isinstance(client.ask(runs, "forward_backward", bad), Failed)
        too_long = client.ask(runs, "optim_step", json.dumps(ADAM | {"learning_rate": 1e9}).encode())
        assert isinstance(too_long, Failed) and "learning_rate" in too_long.message
        client.step(runs)
    assert client.save(runs) == alone[0]


def test_adam_is_torchs(tmp_path: Path) -> None:
    """One step from one gradient, with every parameter."""
    client, runs = Requests(tmp_path, "run", 3), Runs(CACHE)
    client.ask(runs, "forward_backward", write_data("run", 1, [random_datum(client.random)]))
    held = runs._runs["run"]
    before = [tensor.detach().clone() for tensor in held.adapter.parameters()]
    gradients = [tensor.grad.clone() for tensor in held.adapter.parameters()]
    wanted = {"learning_rate": 0.03, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1}
    client.ask(runs, "optim_step", json.dumps(wanted | {"grad_clip_norm": 0.5}).encode())
    after = [tensor.detach().clone() for tensor in runs._runs["run"].adapter.parameters()]
    others = [torch.nn.Parameter(tensor) for tensor in before]
    for other, gradient in zip(others, gradients, strict=True):
        other.grad = gradient
    torch.nn.utils.clip_grad_norm_(others, 0.5)
    torch.optim.AdamW(others, lr=0.03, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1).step()
    for ours, theirs in zip(after, others, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-7)


def plain_loss(name: str, p: np.ndarray[Any, Any], given: dict[str, Any], config: dict[str, float]) -> float:
    """Each formula once more, without tensors."""
    total = 0.0
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    if name == "gspo":
        marked = [i for i, mark in enumerate(given["sequence_ratio_mask"]) if mark]
        whole = math.exp(sum(p[i] - given["logprobs"][i] for i in marked) / len(marked))
    for i, own in enumerate(p):
        if name == "cross_entropy":
            total -= own * given["weights"][i]
            continue
        a, difference = given["advantages"][i], own - given["logprobs"][i]
        ratio = whole if name == "gspo" else math.exp(difference)
        clipped = min(max(ratio, low), high)
        if name == "importance_sampling":
            total -= ratio * a
        elif name in ("ppo", "gspo"):
            total -= min(ratio * a, clipped * a)
        elif name == "cispo":
            total -= clipped * a * own
        elif name == "dro":
            total -= a * own - config.get("beta", 0.05) / 2 * difference**2
        elif name == "stable_reinforce" and abs(a) <= 3:
            ratio = math.exp(min(max(difference, -math.log(1000)), math.log(1000)))
            total -= min(ratio * a, min(max(ratio, low), high) * a)
    return total


CONFIGS = {
    "ppo": {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0},
    "cispo": {"clip_low_threshold": 0.1, "clip_high_threshold": 3.0},
    "dro": {"beta": 0.3},
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("is_set", [False, True])
def test_a_loss_is_its_formula(name: str, is_set: bool) -> None:
    """The value, and for the losses without a stopped gradient its slope as a difference quotient has it."""
    random, config = Random(4), CONFIGS.get(name, {}) if is_set else {}
    p = np.array([-3 * random.random() for _ in range(8)])
    given = {
        "weights": [random.random() for _ in p],
        "logprobs": [-3 * random.random() for _ in p],
        "advantages": [random.choice((-4.0, -1.0, 0.5, 2.0)) for _ in p],
        "sequence_ratio_mask": [0.0, 0.0, *[1.0] * 6],
    }
    given = {key: given[key] for key in LOSSES[name].inputs}
    new = torch.tensor(p, requires_grad=True)
    tensors = {key: torch.tensor(value, dtype=torch.float64) for key, value in given.items()}
    loss = LOSSES[name].compute(new, tensors, config).sum()
    assert loss.item() == pytest.approx(plain_loss(name, p, given, config), rel=1e-9)
    loss.backward()
    if name in ("cispo", "gspo"):
        return
    for place in range(len(p)):
        step = np.eye(len(p))[place] * 1e-6
        slope = (plain_loss(name, p + step, given, config) - plain_loss(name, p - step, given, config)) / 2e-6
        assert float(new.grad[place]) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_stopped_gradients() -> None:
    """CISPO weighs the logprob; GSPO gives each token its own gradient under the ratio of the sequence."""
    p, q, a = np.array([-1.0, -2.0, -0.5]), np.array([-1.2, -1.5, -0.7]), np.array([1.0, -1.0, 2.0])
    given = {"logprobs": torch.tensor(q), "advantages": torch.tensor(a), "sequence_ratio_mask": torch.ones(3)}
    for name, expected in {
        "cispo": -np.clip(np.exp(p - q), 0.8, 1.2) * a,
        "gspo": -np.exp((p - q).mean()) * a,
    }.items():
        new = torch.tensor(p, requires_grad=True)
        LOSSES[name].compute(new, given, {}).sum().backward()
        assert new.grad.numpy() == pytest.approx(expected)


def test_a_sequence_without_marked_tokens_has_the_ratio_1() -> None:
    given = {"logprobs": [-1.0, -2.0], "advantages": [1.0, -2.0], "sequence_ratio_mask": [0.0, 0.0]}
    tensors = {name: torch.tensor(value) for name, value in given.items()}
    assert LOSSES["gspo"].compute(torch.tensor([-3.0, -0.5]), tensors, {}).tolist() == [-1.0, 2.0]


def test_bounds_of_a_token_come_before_those_of_the_request() -> None:
    given = {"logprobs": [0.0] * 3, "advantages": [1.0] * 3, "clip_high_threshold": [1.5, 2.5, 3.5]}
    tensors = {name: torch.tensor(value) for name, value in given.items()}
    new = torch.full((3,), math.log(3.0))
    assert LOSSES["ppo"].compute(new, tensors, {"clip_high_threshold": 2.0}).tolist() == pytest.approx([-1.5, -2.5, -3])


def test_a_datum_may_bring_one_of_the_bounds(tmp_path: Path) -> None:
    client, runs = Requests(tmp_path, "run", 3), Runs(CACHE)
    policy = {"target_tokens": [1, 2], "logprobs": [-9.0, -1.0], "advantages": [1.0, 1.0]}
    for name, bounds in (("clip_low_threshold", [0.1, 0.2]), ("clip_high_threshold", [1.5, 2.0])):
        datum = write_datum([5, 6], policy | {name: bounds})
        assert isinstance(client.ask(runs, "forward_backward", write_data("run", 1, [datum], "ppo")), Performed)


def test_many_targets_for_one_place(tmp_path: Path) -> None:
    """Two targets beside each other are as two data; the gradient is that of both."""
    client, runs = Requests(tmp_path, "run", 3), Runs(CACHE)
    ids = [5, 6, 7]
    wide = write_datum(ids, {"target_tokens": np.array([[1, 2], [3, 4], [5, 6]]), "weights": np.full((3, 2), 0.5)})
    client.ask(runs, "forward_backward", write_data("run", 1, [wide]))
    both = [tensor.grad.clone() for tensor in runs._runs["run"].adapter.parameters()]
    other = Requests(tmp_path, "other", 3)
    one, two = (
        write_datum(ids, {"target_tokens": targets, "weights": [0.5] * 3}) for targets in ([1, 3, 5], [2, 4, 6])
    )
    other.ask(runs, "forward_backward", write_data("other", 1, [one, two]))
    for together, apart in zip(both, runs._runs["other"].adapter.parameters(), strict=True):
        torch.testing.assert_close(together, apart.grad)

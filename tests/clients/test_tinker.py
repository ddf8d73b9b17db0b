"""The unmodified Tinker client (tinker 0.38.0) trains and samples heddle's own model."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, Client
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client
VERSION = "0.38.0"
PROGRAMS = Path(__file__).parent / "tinker"
BASE = "heddle-tiny"


class TinkerClient(Client):
    """The client, without anything of a hub."""

    def environment(self) -> dict[str, str]:
        """What every run gets."""
        return super().environment() | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TINKER_TELEMETRY": "0"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of this module's own."""
    with HeddleProcess(tmp_path_factory.mktemp("tinker") / "data") as process:
        yield process


@pytest.fixture
def client(trained: HeddleProcess, project: str, tmp_path: Path) -> TinkerClient:
    """The client in a project of its own; skips where `make clients` has not installed it."""
    python = ROOT / ".clients" / f"tinker-{VERSION}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"tinker {VERSION} is not installed: run `make clients`")
    return TinkerClient([str(python)], PROGRAMS, trained.url, project, tmp_path)


def test_a_whole_loop(client: TinkerClient) -> None:
    """Train, save, sample, score, load, list, publish, delete."""
    seen = client.run("whole.py", timeout=240)
    assert seen["models"] == [BASE] and seen["info"] == [BASE, 4, True]
    assert seen["losses"][-1] < seen["losses"][0] / 2 and seen["norm"] > 0
    assert seen["outputs"] == [[12, 12]] * 6
    run = seen["run_id"]
    assert seen["paths"] == [f"tinker://{run}/weights/first", f"tinker://{run}/sampler_weights/sharp"]
    tokens = [sequence[0] for sequence in seen["sampled"]]
    assert tokens == seen["sampled_again"] and all(
        len(one) == 8 == len(logprobs) for one, logprobs, _ in seen["sampled"]
    )
    assert len(set(seen["ids"])) == 2
    assert seen["prompt"][0] is None and len(seen["prompt"]) == 4 and seen["best"] == [None, 3, 3, 3]
    assert seen["scored"][0] is None and seen["last"][:-2] == [None] * 10
    assert seen["last"][-2:] == pytest.approx(seen["scored"][-2:], abs=1e-4)
    # What the engine gives the weights is what the trainer gave them.
    assert seen["scored"][1:] == pytest.approx(seen["trained"][:-1], abs=1e-3)
    assert sum(seen["scored"][4:]) > sum(seen["plain"][4:]) + 10
    original, copied, fresh = seen["gone_on"]
    assert original == copied != fresh and seen["back"] == seen["before"]
    assert seen["listed"][0] == run and seen["listed"][1] >= 3 and seen["listed"][2] == 3
    assert seen["weights"] == [BASE, 4, False]
    assert seen["changed"] == [True, True, {"why": "a test"}]
    assert seen["paths"][0] in seen["left"] and seen["paths"][1] not in seen["left"]
    assert seen["session"] == [3, 3]
    assert "nonsense" in seen["refused"]["loss"] and "already" in seen["refused"]["again"]
    assert "deleted" in seen["refused"]["gone"]


def test_sampled_answers_are_recomputed_exactly(client: TinkerClient) -> None:
    """The trainer's logprobs of what the same weights sampled have the sampler's bits: every ratio is 1."""
    seen = client.run("sampled.py", timeout=240)
    assert [(loss, apart) for loss, _, apart in seen["told"]] == [
        (loss, 0.0) for loss in ("importance_sampling", "ppo", "cispo")
    ]
    with httpx.Client(base_url=client.server + "/v1/preview", headers={"authorization": "Bearer any"}) as asked:
        entity, project = client.project.split("/")
        model = asked.get("models", params={"entity": entity, "project": project}).json()["data"][0]
        job = asked.get("training-jobs", params={"model_id": model["id"]}).json()["data"][0]
        events = asked.get(f"training-jobs/{job['id']}/events", params={"limit": 100}).json()["data"]
    steps = [event["data"] for event in events if "agreement/tokens" in event["data"]]
    assert [step["agreement/tokens"] for step in steps] == [count for _, count, _ in seen["told"]]
    for step in steps:
        assert step["agreement/equal_tokens"] == step["agreement/tokens"] == step["num_trainable_tokens"] > 20
        assert step["agreement/largest_difference"] == 0
        assert step["offpolicy/ratio_mean"] == step["offpolicy/ratio_max"] == 1


def test_lookups_copies_and_downloads(client: TinkerClient) -> None:
    """Sessions, storage, copies into another project, downloads; and what is refused says what it is."""
    seen = client.run("lookups.py", timeout=240)
    assert set(seen["files"]) == {"adapter_config.json", "adapter_model.safetensors", "SHA256SUMS"} and min(
        seen["files"].values()
    )
    assert seen["same"] and seen["ends"].startswith("20")
    assert seen["kinds"] == [["training", True], ["sampler", True], ["external", True]]
    choices = seen["choices"]
    assert [row[0] for row in choices["dense"]] == choices["prompt"] and len(choices["prompt"]) == 11
    assert choices["sparse"] == choices["dense"] and {row[1] for row in choices["dense"]} == {0.0}
    assert choices["drawn"][0] == choices["drawn"][1] and choices["named"] == choices["logprobs"]
    assert {len(row) for row in choices["drawn"][0]} == {4} and len({max(row) for row in choices["drawn"][0]}) > 1
    before, after = seen["losses"]
    assert before == after and seen["scored"] == 12
    mine, theirs, lonely = seen["sessions"]
    found = seen["found"]
    assert found["project"] == found["done"] == found["id"] == [mine] and found["active"] == []
    assert found["archive"] == [lonely, theirs] and found["nobody"] == found["metadata"] == []
    assert seen["summary"][1:] == [client.project, "client_finished", 1] and seen["used"] == [1, True]
    said = {
        "age": "age_encryption_recipients",
        "move": "copy_weights",
        "missing": "not found",
        "token": "weights_access_token",
        "dimuon": "optimizer_config",
        "alternatives": "prompt_alt_tokens_k",
        "targets": "target_prompt_logprobs",
        "trace": "trace_export",
        "audit": "/api/v1/audit",
        "billing": "/api/v1/billing/usage/events",
        "whoami": "JWT",
    }
    assert {name: word in seen["refused"][name] for name, word in said.items()} == dict.fromkeys(said, True), seen

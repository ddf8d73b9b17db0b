"""Bodies come in: small ones in a thread, large ones through a process of their own, with the same result."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import HeddleError, InvalidRequest, Unavailable, ValidationFailed
from heddle.ipc.bounded import BoundedProcesses
from heddle.store.blobs.folder import FolderBlobs
from heddle.training import files
from heddle.training import intake as intake_module
from heddle.training.intake import Intake, Taken
from tests.support.trajectories import choice, group, trajectory, user

MODEL = "11111111-2222-4333-8444-555555555555"
LARGE, SMALL = 64, 1 << 20


def body(**fields: Any) -> bytes:
    """A job of two rollouts."""
    members = [trajectory(user("é?"), choice("a", [5, 2]), reward=value) for value in (0.0, 1.0)]
    return json.dumps({"model_id": MODEL, "trajectory_groups": [group(*members)], **fields}).encode()


async def parts(content: bytes) -> AsyncIterator[bytes]:
    """A body as it comes from the network."""
    for start in range(0, len(content), 50):
        yield content[start : start + 50]


def take(tmp_path: Path, large: int, kind: str, content: bytes, refused: list[str] | None = None) -> Taken:
    """What the intake makes of a body; nothing may be left beside the blob, and `refused` gets the limits it met."""
    refused = [] if refused is None else refused
    intake = Intake(FolderBlobs(tmp_path / "files"), tmp_path / "training", refused.append, large)
    try:
        return asyncio.run(intake.take(kind, parts(content)))
    finally:
        assert list((tmp_path / "training").glob("*")) == []


@pytest.fixture(scope="module")
def kept_process() -> Iterator[BoundedProcesses]:
    """One process for the bodies of many tests, whose start takes a second of a processor."""
    processes = BoundedProcesses("heddle.training.intake", cpu_seconds=0, wall_seconds=3600, at_once=1)
    yield processes
    processes.close()


@pytest.fixture
def one_process(kept_process: BoundedProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies go to the process that is kept."""
    monkeypatch.setattr(intake_module, "processes", kept_process)


@pytest.mark.parametrize("large", [SMALL, LARGE])
def test_a_job(large: int, tmp_path: Path) -> None:
    config = {"learning_rate": 0.001}
    content = body(experimental_config=config | {"another": ["x"] * 99}, extra=["x"] * 99)
    taken = take(tmp_path, large, "job", content)
    assert taken.head == {"model_id": MODEL, "experimental_config": config | {"another": None}}, "what acts"
    assert (taken.groups, taken.trajectories, taken.metrics) == (1, 2, {})
    assert taken.key is not None
    stored = files.read_payload(FolderBlobs(tmp_path / "files").path(taken.key))
    assert stored == {"trajectory_groups": json.loads(body())["trajectory_groups"]}


def test_both_ways_make_the_same_blob(tmp_path: Path) -> None:
    assert take(tmp_path, SMALL, "job", body()) == take(tmp_path, LARGE, "job", body())


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("large", [SMALL, LARGE])
def test_a_log(large: int, tmp_path: Path) -> None:
    taken = take(tmp_path, large, "log", body(split="val"))
    assert taken.head["split"] == "val" and taken.metrics["val/reward"] == 0.5


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("large", [SMALL, LARGE])
def test_a_source_has_no_payload(large: int, tmp_path: Path) -> None:
    source = {"project_id": "a/b", "reward": {"path": "output.reward"}, "limit": 100}
    taken = take(tmp_path, large, "job", json.dumps({"model_id": MODEL, "source": source}).encode())
    assert (taken.key, taken.head["source"]) == (None, source)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("large", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("content", "loc"),
    [
        (body(model_id=5), ["body", "model_id"]),
        (body(trajectory_groups=[group(trajectory(reward=float("nan")))] * 5), "first"),
        (json.dumps({"model_id": MODEL, "extra": "x" * 100}).encode(), ["body", "trajectory_groups"]),
        (b"[" + b"1," * 100 + b"1]", ["body"]),
        (b'{"model_id": ' + b" " * 100, ["body", 113]),
    ],
)
def test_what_is_wrong_is_told_alike(large: int, content: bytes, loc: Any, tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed) as raised:
        take(tmp_path, large, "job", content)
    first = ["body", "trajectory_groups", 0, "trajectories", 0, "reward"]
    assert raised.value.detail[0]["loc"] == (first if loc == "first" else loc)
    assert set(raised.value.detail[0]) == {"loc", "msg", "type"}
    assert list(FolderBlobs(tmp_path / "files").keys()) == []


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("large", [SMALL, LARGE])
def test_too_deep(large: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nested deeper"):
        take(tmp_path, large, "job", b'{"a":' * 300 + b"1" + b"}" * 300)


@pytest.mark.parametrize("large", [SMALL, LARGE])
def test_a_body_of_too_many_values_is_counted(large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "MAX_NODES", 10)
    few = "from heddle.training import intake as i; i.MAX_NODES = 10; i.answer_jobs(i._answer, is_limited=False)"
    (tmp_path / "few_values.py").write_text(few)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(intake_module, "processes", BoundedProcesses("few_values", cpu_seconds=60, most_idle=0))
    refused: list[str] = []
    with pytest.raises(InvalidRequest, match="more than 10 JSON values"):
        take(tmp_path, large, "job", body(), refused)
    assert refused == ["max_json_nodes"]


def test_at_most_a_hundred_places_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed) as raised:
        take(tmp_path, SMALL, "job", body(trajectory_groups=[group(trajectory(reward="x"))] * 500))
    assert len(raised.value.detail) == 100


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "processes", BoundedProcesses("heddle.training.no_such_module"))
    with pytest.raises(Unavailable, match="died"):
        take(tmp_path, LARGE, "job", body())


def test_a_client_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield body()
        raise HeddleError("gone")

    intake = Intake(FolderBlobs(tmp_path / "files"), tmp_path / "training", [].append, LARGE)
    with pytest.raises(HeddleError, match="gone"):
        asyncio.run(intake.take("job", broken()))
    assert list((tmp_path / "training").glob("*")) == []

"""Two servers on PostgreSQL, ClickHouse and S3: each part is killed in turn under load, and comes back by itself."""

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Wire
from tests.soak.load import Item, Load, lost
from tests.soak.test_evaluation_crash import ROWS, check
from tests.support import clickhouse, postgres, scale
from tests.support.evaluations import Lab
from tests.support.s3 import BUCKET, S3Server
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
TURNS = 4 if SOAK else 1
PATIENCE = 120.0

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.soak,
    pytest.mark.skipif(scale.missing() is not None, reason=str(scale.missing())),
]


@dataclass(frozen=True)
class Part:
    """A part of the whole that can be killed without warning, and started again as its supervisor would."""

    name: str
    kill: Callable[[], None]
    start: Callable[[], object]


@dataclass(frozen=True)
class Site:
    """Everything that runs: two servers over three stores."""

    servers: tuple[HeddleProcess, HeddleProcess]
    parts: tuple[Part, ...]

    def wait(self) -> None:
        """Return as soon as both servers say that they are ready; raises after the deadline."""
        deadline = time.monotonic() + PATIENCE
        while not all(server.is_ready() for server in self.servers):
            assert time.monotonic() < deadline, [server.log()[-3000:] for server in self.servers]
            time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The whole, with databases of its own."""
    calls = clickhouse.ClickhouseProcess(tmp_path / "clickhouse")
    control, objects = postgres.PostgresServer(), S3Server()
    with calls, control, objects:
        for name, value in objects.variables.items():
            monkeypatch.setenv(name, value)
        settings = {
            "store": calls.new_database(),
            "control": control.new_database(),
            "files": f"s3://{BUCKET}/heddle",
            "evaluation_parallel": 4,
        }
        first, second = (HeddleProcess(tmp_path / "shared", **settings) for _ in range(2))
        second.log_path = tmp_path / "second.log"
        parts = (
            Part("the first server", first.kill, first.start),
            Part("the second server", second.kill, second.start),
            Part("ClickHouse", calls.kill, calls.start),
            Part("PostgreSQL", control.kill, control.start),
            Part("S3", objects.kill, objects.start),
        )
        with first, second:
            yield Site((first, second), parts)


def turn(site: Site, part: Part, seed: int) -> list[Item]:
    """Load on both servers, one part killed in the middle of it and started again; what was acknowledged."""
    chance = random.Random(seed)
    loads = [
        Load(server.url, seed * 10 + number, threads_per_kind=1).start() for number, server in enumerate(site.servers)
    ]
    for load in loads:
        load.wait_for(chance.randrange(1, 150))
    part.kill()
    for load in loads:
        load.stop()
        assert all(text.startswith(("503", "429")) for text in load.refused), (part.name, load.refused)
    part.start()
    site.wait()
    return [item for load in loads for item in load.acknowledged]


def test_nothing_acknowledged_is_lost_whatever_part_is_killed(site: Site) -> None:
    """Each part in turn; all that was ever acknowledged reads back equal, through either server."""
    items: list[Item] = []
    for seed, part in enumerate(site.parts * TURNS):
        found = turn(site, part, seed)
        for server in site.servers:
            missing = lost(server.url, found)
            assert not missing, f"{part.name}: {len(missing)} of {len(found)}, such as {missing[0]}"
        items += found
    assert not lost(site.servers[0].url, items)
    print(f"scale: {len(site.parts) * TURNS} kill -9 of five parts: {len(items)} acknowledged, 0 lost")
    assert all("Traceback" not in server.log() for server in site.servers)


def test_no_job_runs_twice_whatever_part_is_killed(site: Site, project: str) -> None:
    """An evaluation goes on through the kill of each part: every row is answered and scored exactly once."""
    lab = Lab(Wire(site.servers[0].url, project))
    dataset = lab.dataset([{"number": n, "target": str(n)} for n in range(ROWS)])
    template = [{"role": "user", "content": "Say {number}"}]
    model = lab.model("heddle-tiny", messages_template=template, max_tokens=6, temperature=0)
    scorers = [lab.scorer("ExactMatchScorer", ignore_case=True), lab.scorer("RegexMatchScorer", pattern="[a-z]+")]
    call_id = lab.evaluate(lab.evaluation(dataset, scorers), model)
    lab.wire.client.close()
    for part in site.parts:
        part.kill()
        part.start()
        site.wait()
    lab = Lab(Wire(site.servers[1].url, project))
    assert lab.ended(call_id, 600)["code"] == "complete"
    check(lab, call_id, {}, dataset)
    assert [job["state"] for job in lab.jobs_done()] == ["succeeded"]
    lab.wire.client.close()

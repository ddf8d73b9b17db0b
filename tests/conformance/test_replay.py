"""What the real SDKs sent once, sent again: heddle answers as the reference did, apart from ids and times."""

from functools import cache
from pathlib import Path

import pytest

from tests.conformance import replay_recording as recording
from tests.conformance.replay_run import Outcome, Replay
from tests.conformance.replay_tables import DEVIATIONS
from tests.support.server import HeddleProcess

RECORDED_MODEL = "tiny"
SDKS = ("weave-py-0.54.0", "weave-ts-0.11.1", "opentelemetry-exporter-otlp-proto-http-1.45.2")
PATHS_REPLACED = 94  # rows that held paths of the recording machine, so that the digest is not theirs any more

pytestmark = pytest.mark.skipif(
    not recording.RECORDING.exists(), reason="the shared folder with the recorded traffic is not beside this checkout"
)


@cache
def scenarios(sdk: str) -> list[str]:
    """The scenarios of an SDK in the order in which they start."""
    return list(dict.fromkeys(exchange.scenario for exchange in recording.load(sdk)))


@cache
def replayed(sdk: str, folder: Path) -> list[Outcome]:
    """The whole sequence of an SDK against a server of its own."""
    with HeddleProcess(folder / sdk / "data", model_name=RECORDED_MODEL) as server:
        return Replay(server.url, sdk).run()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers of this module keep their data."""
    folder = tmp_path_factory.mktemp("replay")
    for sdk in SDKS:
        (folder / sdk).mkdir()
    return folder


def cases() -> list[tuple[str, str]]:
    """Every scenario of every SDK; none where the recording is missing."""
    return [(sdk, name) for sdk in SDKS for name in scenarios(sdk)] if recording.RECORDING.exists() else []


@pytest.mark.parametrize(("sdk", "scenario"), cases())
def test_scenario(sdk: str, scenario: str, folder: Path) -> None:
    """Every answer of the scenario that is served already equals the recorded one."""
    outcomes = [outcome for outcome in replayed(sdk, folder) if outcome.exchange.scenario == scenario]
    unexplained = [text for outcome in outcomes for text in outcome.unexplained]
    assert not unexplained, "\n".join(unexplained)
    waiting = sorted({outcome.pending for outcome in outcomes if outcome.pending})
    compared = [outcome for outcome in outcomes if not outcome.pending]
    if waiting:
        print(f"{sdk} {scenario}: {len(compared)} of {len(outcomes)} answers compared; pending {', '.join(waiting)}")
    if not compared:
        pytest.skip(f"pending {', '.join(waiting)}")


def test_every_deviation_is_used(folder: Path) -> None:
    """An entry of the table that explains nothing any more has to go."""
    used = {number for sdk in SDKS for outcome in replayed(sdk, folder) for number in outcome.deviations}
    stale = [entry for number, entry in enumerate(DEVIATIONS) if number not in used]
    assert not stale


@pytest.mark.parametrize("sdk", SDKS[:2])
def test_digests_of_the_recording(sdk: str) -> None:
    """The digest rule that predicts heddle's digests gives the recorded ones too, with the reference's internal ids."""
    checked = 0
    for exchange in recording.load(sdk):
        if recording.makes_digests(exchange) and exchange.index != PATHS_REPLACED:
            ours = recording.digests_of(exchange.body, exchange.path, recording.recorded_internal)
            assert ours == recording.recorded_digests(exchange), exchange.index
            checked += 1
    assert checked >= 10

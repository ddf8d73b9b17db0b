"""`heddle improve demo`: a planted weakness goes, nothing else gets worse, and a regression takes it back."""

import pytest

from heddle.demo.improve import Demonstration, demonstrate
from heddle.remote import Remote
from tests.support.improve import step_of
from tests.support.server import HeddleProcess


@pytest.mark.thorough
def test_a_planted_weakness_is_trained_away_and_taken_back(server: HeddleProcess, project: str) -> None:
    remote, told = Remote(server.url, "any").project(project), list[str]()
    found = demonstrate(remote, told.append)
    assert (found["state"], found["outcome"]) == ("succeeded", "rolled_back"), (told, found)
    before, after = step_of(found, "baseline")["result"], step_of(found, "gate")["result"]
    assert before["held_out"]["score"] <= 0.2 and after["held_out"]["score"] >= 0.9, told
    assert after["general"]["score"] >= before["general"]["score"] - 0.02, told
    assert 10 <= before["held_out"]["rows"] <= 30 and before["general"]["rows"] == 120
    watched = [line for line in told if line.startswith("watched")]
    assert watched and float(watched[0].split()[-1]) >= 0.9, "right answers are no regression"
    assert Demonstration(remote, found["model"]).read_step() == before["step"] == 1

"""A child that is forked ends, dies and logs as one that was started."""

import logging
import signal

import pytest

from heddle.inference.engine.local.client import MODULE
from heddle.ipc.child import Child, ConnectedChild
from tests.support.forked_modules import ForkedModule
from tests.support.zygote import FROM_NOTHING

pytestmark = pytest.mark.skipif(FROM_NOTHING, reason="nothing is forked")
LOGGER = logging.getLogger("heddle.tests")


def test_its_code_and_its_last_words_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER.name)
    child = Child("the trainer", ["heddle.trainer_process", "--nothing"], LOGGER)
    assert isinstance(child._process, ForkedModule) and child.pid > 0
    child.end(60)
    assert child.has_ended
    assert child.how_it_ended().startswith("the trainer ended with code 2: ") and "--nothing" in child.how_it_ended()
    assert "--nothing" in caplog.text


def test_it_ends_with_its_socket_and_can_be_killed() -> None:
    ended, killed = (ConnectedChild("the engine", MODULE, [], LOGGER) for _ in range(2))
    ended.connection.close()
    ended.end(60)
    assert ended.how_it_ended() == "the engine ended with code 0: it said nothing"
    assert not killed.has_ended
    killed.tell(signal.SIGKILL)
    killed.end(60)
    assert killed.how_it_ended().startswith("the engine was killed (signal 9)")
    killed.connection.close()

"""The training routes of the shared server."""

from collections.abc import Iterator

import pytest

from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire


@pytest.fixture
def training(server: HeddleProcess) -> Iterator[TrainingWire]:
    """A caller of the shared server with an entity of its own; the server's log must stay free of tracebacks."""
    before = server.log_path.stat().st_size
    with TrainingWire(server.url) as caller:
        yield caller
    with server.log_path.open(errors="replace") as log:
        log.seek(before)
        assert "Traceback" not in log.read()

"""The inference routes of the shared server."""

from collections.abc import Iterator

import pytest

from tests.support.chat import Chat
from tests.support.server import HeddleProcess


@pytest.fixture
def chat(server: HeddleProcess) -> Iterator[Chat]:
    """A caller of the shared server; the server's log must stay free of tracebacks."""
    before = server.log_path.stat().st_size
    with Chat(server.url) as caller:
        yield caller
    with server.log_path.open(errors="replace") as log:
        log.seek(before)
        assert "Traceback" not in log.read()

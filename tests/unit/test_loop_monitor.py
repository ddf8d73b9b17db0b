"""What is said of an event loop that stands still."""

import asyncio
import logging
import threading

from heddle.http.server import STALL_SECONDS, LoopMonitor


class Told(logging.Handler):
    """Waits for a message."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.came.set()


def test_a_stall_is_logged_once_with_its_stack_and_counted() -> None:
    lags: list[float] = []
    told = Told()
    logging.getLogger("heddle.loop").addHandler(told)

    async def stall() -> None:
        monitor = LoopMonitor(lags.append)
        monitor.start()
        while not lags:
            await asyncio.sleep(0)
        told.came.wait(30)
        lags.clear()
        while not lags:
            await asyncio.sleep(0)
        monitor.stop()

    try:
        asyncio.run(stall())
    finally:
        logging.getLogger("heddle.loop").removeHandler(told)
    assert "told.came.wait(30)" in told.messages[0]
    assert sum("told.came.wait" in message for message in told.messages) == 1
    assert lags[0] >= STALL_SECONDS

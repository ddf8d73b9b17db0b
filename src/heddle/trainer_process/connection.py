"""The training process's end of the socket to the server."""

import os
import queue
import socket
import threading
from pathlib import Path

from heddle.ipc.connection import BlockingConnection
from heddle.training.base import Task
from heddle.training.queue.messages import Answer, Beat, Cancel, Request


class ServerConnection:
    """Tasks come in, messages go out, heartbeats go by themselves; when the server is gone, the process ends."""

    def __init__(self, path: Path, beat_seconds: float) -> None:
        """Connect to a unix socket; raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        self._connection = BlockingConnection(connection)
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._beat_seconds = beat_seconds
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"connection{work.__name__}", daemon=True).start()

    def next_request(self) -> Request:
        """Wait for work."""
        return self._requests.get()

    def is_cancelled(self, job_id: str) -> bool:
        """True once the server asked to give a job up."""
        return job_id in self._cancelled

    def say(self, message: Answer) -> None:
        """Send a message; it is with the server's kernel when this returns."""
        try:
            self._connection.send(message)
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        try:
            while True:
                for request in self._connection.receive():
                    if isinstance(request, Cancel):
                        self._cancelled.add(request.job_id)
                        continue
                    if isinstance(request, Task):
                        self._cancelled.discard(request.job_id)
                    self._requests.put(request)
        except (OSError, EOFError):
            pass
        finally:
            # In the middle of a step as well: what is durable is enough to go on from.
            os._exit(0)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._beat_seconds):
            self.say(Beat())

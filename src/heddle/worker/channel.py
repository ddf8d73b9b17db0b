"""The training process's end of the socket to the server."""

import os
import queue
import socket
import threading
from pathlib import Path

from heddle.training.base import Task
from heddle.training.queue.messages import Answer, Beat, Warm, decode_request, encode


class Channel:
    """Tasks come in, messages go out, heartbeats go by themselves; when the server is gone, the process ends."""

    def __init__(self, path: Path, beat_seconds: float) -> None:
        """Connect to a unix socket; raises OSError."""
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(str(path))
        self._sending = threading.Lock()
        self._requests: queue.SimpleQueue[Task | Warm] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._beat_seconds = beat_seconds
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"channel{work.__name__}", daemon=True).start()

    def next_request(self) -> Task | Warm:
        """Wait for work."""
        return self._requests.get()

    def is_cancelled(self, job_id: str) -> bool:
        """True once the server asked to give a job up."""
        return job_id in self._cancelled

    def say(self, message: Answer) -> None:
        """Send a message; it is with the server's kernel when this returns."""
        try:
            with self._sending:
                self._connection.sendall(encode(message))
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    request = decode_request(line)
                    if isinstance(request, str):
                        self._cancelled.add(request)
                        continue
                    if isinstance(request, Task):
                        self._cancelled.discard(request.job_id)
                    self._requests.put(request)
        except OSError:
            pass
        finally:
            # In the middle of a step as well: what is durable is enough to go on from.
            os._exit(0)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._beat_seconds):
            self.say(Beat())

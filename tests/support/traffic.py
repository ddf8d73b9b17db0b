"""Clients that store calls one by one, and know what was acknowledged; and a look at what is stored."""

import threading
import time
from collections.abc import Callable

import httpx

PROJECT = "team/workers"


def call(number: int, size: int = 10) -> dict[str, object]:
    """A whole call."""
    return {
        "project_id": PROJECT,
        "id": f"{number:032x}",
        "op_name": "work",
        "trace_id": f"{number:032x}",
        "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:00:01Z",
        "attributes": {},
        "inputs": {"text": "x" * size},
        "output": number,
        "summary": {},
    }


def store(client: httpx.Client, number: int, size: int = 10) -> httpx.Response:
    """Store one call; the answer."""
    return client.post(f"/v2/{PROJECT}/calls/complete", json={"batch": [call(number, size)]})


def count(client: httpx.Client) -> int:
    """How many calls are stored."""
    answer = client.post("/calls/query_stats", json={"project_id": PROJECT})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["count"])


def stored(url: str) -> set[int]:
    """The numbers of the calls that are stored."""
    with httpx.Client(base_url=url, timeout=60) as client:
        lines = client.post("/calls/stream_query", json={"project_id": PROJECT, "columns": ["id"]}).text
    return {int(line.split('"id":"')[1][:32], 16) for line in lines.splitlines() if line}


def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Traffic:
    """So many clients at once, five requests per connection; a context manager that ends them."""

    def __init__(self, url: str, clients: int) -> None:
        self.acknowledged: set[int] = set()
        self.failures: list[str] = []
        self._url = url
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n + 1,)) for n in range(clients)]

    def _run(self, client_number: int) -> None:
        number = client_number * 1_000_000
        while not self._ending.is_set():
            try:
                with httpx.Client(base_url=self._url, timeout=60) as client:
                    for _ in range(5):
                        number += 1
                        answer = store(client, number)
                        if answer.status_code == 200:
                            self.acknowledged.add(number)
                        else:
                            self.failures.append(f"{answer.status_code} {answer.text[:200]}")
            except httpx.TransportError as error:
                self.failures.append(repr(error))
                self._ending.wait(0.02)

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Wait until so many more calls were acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= before + count)

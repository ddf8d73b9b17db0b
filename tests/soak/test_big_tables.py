"""A dataset of 1,000,000 rows over HTTP: made in chunks as SDKs do, paged, filtered, sorted, edited, memory bounded.

The short form has 20,000 rows; HEDDLE_SOAK=1 has all of them.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.wire import refs
from tests.support.server import HeddleProcess

COUNT = 1_000_000 if os.environ.get("HEDDLE_SOAK") == "1" else 20_000
CHUNK = 5_000
PAGE = 10_000
SORTED_PAGES = 12
PROJECT = "soak/big-tables"
STEADY = 150 * 1024**2
"""What the server may grow by beside what requests of this length need."""
PER_ROW = 350
"""What the list of digests of one request may cost a row while it is read: its body, its parsed texts, and copies."""

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


def row(number: int) -> dict[str, Any]:
    """A row of about a hundred bytes; `shuffled` is another order of the same numbers."""
    return {"id": number, "question": f"what is number {number}?", "answer": {"shuffled": number * 7919 % COUNT}}


class Server:
    """One server with the memory it takes."""

    def __init__(self, process: HeddleProcess) -> None:
        assert process.process is not None
        self.status = Path(f"/proc/{process.process.pid}/status")
        self.client = httpx.Client(base_url=process.url, timeout=600)

    def post(self, path: str, **body: Any) -> Any:
        """The answer of a request that must succeed."""
        answer = self.client.post(path, json={"project_id": PROJECT, **body})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:1000]}"
        return answer.json()

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes in memory now, or at most so far (VmHWM)."""
        [found] = [text for text in self.status.read_text().splitlines() if text.startswith(name)]
        return int(found.split()[1]) * 1024

    def rows(self, digest: str, **query: Any) -> list[Any]:
        """The rows of a page."""
        return list(self.post("/table/query", digest=digest, **query)["rows"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own."""
    with HeddleProcess(tmp_path / "data") as process:
        server = Server(process)
        yield server
        server.client.close()
        assert "Traceback" not in process.log()


def table_of(names: list[str]) -> str:
    """The digest of a table as clients compute it."""
    return hashlib.sha256("".join(names).encode()).hexdigest()


def test_a_big_table(server: Server) -> None:
    before = server.memory()
    names = made(server)
    digest = server.post("/table/create_from_digests", row_digests=names)["digest"]
    assert digest == table_of(names)
    assert server.post("/table/query_stats", digest=digest) == {"count": COUNT}
    # Beside the rows of its chunks, which make a page cache, only the list of digests counts.
    assert server.memory("VmHWM") - before < STEADY + PER_ROW * COUNT
    steady = server.memory()
    read_in_order(server, digest, names)
    read_chosen(server, digest, names)
    read_sorted(server, digest)
    edited(server, digest, names)
    dataset = server.client.post(
        f"/v2/{PROJECT}/datasets", json={"name": "big", "rows": [row(number) for number in range(PAGE)]}
    )
    assert dataset.status_code == 200, dataset.text
    assert server.memory() - steady < STEADY


def made(server: Server) -> list[str]:
    """Store all rows, a chunk at a time; returns their digests, which are those that clients compute."""
    names: list[str] = []
    for first in range(0, COUNT, CHUNK):
        rows = [row(number) for number in range(first, first + CHUNK)]
        answer = server.client.post("/table/create", json={"table": {"project_id": PROJECT, "rows": rows}})
        assert answer.status_code == 200, answer.text
        names += answer.json()["row_digests"]
        assert names[first] == refs.value_digest(rows[0]) and len(names) == first + CHUNK
    return names


def read_in_order(server: Server, digest: str, names: list[str]) -> None:
    """Every page in turn: complete, in order, with the places of the rows."""
    for first in range(0, COUNT, PAGE):
        page = server.rows(digest, limit=PAGE, offset=first)
        assert [found["digest"] for found in page] == names[first : first + PAGE]
        assert [found["original_index"] for found in page] == list(range(first, first + len(page)))
        assert page[0]["val"] == row(first) and page[-1]["val"] == row(first + len(page) - 1)
    assert server.rows(digest, limit=PAGE, offset=COUNT) == []
    assert len(server.rows(digest, limit=PAGE, offset=COUNT - 3)) == 3


def read_chosen(server: Server, digest: str, names: list[str]) -> None:
    """Rows by their digests, wherever they are."""
    places = [0, 7, COUNT // 2, COUNT - 1]
    found = server.rows(digest, filter={"row_digests": [names[place] for place in reversed(places)] + ["nothing"]})
    assert [(item["original_index"], item["val"]) for item in found] == [(place, row(place)) for place in places]


def read_sorted(server: Server, digest: str) -> None:
    """Pages of another order, up and down, from the first to the last."""
    step = max(COUNT // SORTED_PAGES, 1)
    for direction, at in (("asc", lambda place: place), ("desc", lambda place: COUNT - 1 - place)):
        terms = [{"field": "answer.shuffled", "direction": direction}]
        for first in [*range(0, COUNT, step), COUNT - 2]:
            page = server.rows(digest, limit=50, offset=first, sort_by=terms)
            places = range(first, min(first + 50, COUNT))
            assert [item["val"]["answer"]["shuffled"] for item in page] == [at(place) for place in places]
            assert all(item["val"] == row(item["original_index"]) for item in page)


def edited(server: Server, digest: str, names: list[str]) -> None:
    """Edits at the front, in the middle and at the end have the digest of the edited list."""
    new = {"new": True}
    updates: list[dict[str, Any]] = [
        {"insert": {"index": 0, "row": new}},
        {"pop": {"index": COUNT // 2}},
        {"append": {"row": new}},
    ]
    name = refs.value_digest(json.loads(json.dumps(new)))
    expected = [name, *names]
    popped = expected.pop(COUNT // 2)
    expected.append(name)
    answer = server.post("/table/update", base_digest=digest, updates=updates)
    assert answer == {"digest": table_of(expected), "updated_row_digests": [name, popped, name]}
    assert server.post("/table/query_stats", digest=answer["digest"]) == {"count": COUNT + 1}
    for first in (0, COUNT // 2 - 50, COUNT - 50):
        page = server.rows(answer["digest"], limit=100, offset=first)
        assert [item["digest"] for item in page] == expected[first : first + 100]

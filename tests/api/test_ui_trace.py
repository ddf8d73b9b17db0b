"""The read model of the trace page: all calls of a trace as columns."""

import gzip
import json
import uuid
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.bigtrace import big_trace, call_id, write

INSTANT = "2026-01-01T00:00:{:02}+00:00"


def read(wire: Wire, trace: str, **search: str) -> list[dict[str, Any]]:
    """The lines of the answer."""
    answer = wire.client.get(f"/_ui/api/trace/{wire.project}/{trace}", params=search)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def start(wire: Wire, call: str, parent: str | None, second: int, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"id": call, "parent_id": parent, "trace_id": "t", "op_name": "work"}
    body |= {"inputs": {}, "attributes": {}}
    return {"project_id": wire.project, "started_at": INSTANT.format(second), **body, **more}


def put(wire: Wire, *starts: dict[str, Any]) -> None:
    wire.post("/call/upsert_batch", batch=[{"mode": "start", "req": {"start": item}} for item in starts])


def test_columns_tell_the_tree_its_times_and_what_it_used(wire: Wire) -> None:
    attributes = {"weave": {"kind": "llm"}}
    op = f"weave:///{wire.project}/op/ask:abc"
    put(wire, start(wire, "root", None, 1), start(wire, "child", "root", 2, op_name=op, attributes=attributes))
    usage = {"gpt-4o-mini": {"prompt_tokens": 10, "completion_tokens": 5}}
    end = {"project_id": wire.project, "id": "child", "ended_at": INSTANT.format(4), "exception": "no", "output": None}
    wire.post("/call/end", end={**end, "summary": {"usage": usage}})
    wire.post("/call/update", call_id="root", display_name="Mine")
    head, page = read(wire, "t", call="child")
    assert head == {"total": 2, "shown": 2, "selected": 1, "version": "2.1"}
    assert page["id"] == ["root", "child"]
    assert page["ops"] == [["work", "fn"], ["ask", "llm"]] and page["op"] == [0, 1]
    assert page["start"][1] == 1_000_000 and page["length"] == [-1, 2_000_000]
    assert page["parent"] == [0, 1]
    assert page["status"] == [[0, 3], [1, 1]] and page["name"] == [[0, "Mine"]]
    [[call, model, prompt, completion, dollars]] = page["usage"]
    assert (call, page["models"][model], prompt, completion) == (1, "gpt-4o-mini", 10, 5) and dollars > 0


def test_parents_that_start_later_or_are_elsewhere(wire: Wire) -> None:
    put(wire, start(wire, "early", "root", 1), start(wire, "root", None, 2), start(wire, "lost", "nobody", 3))
    put(wire, start(wire, "other", None, 1, trace_id="u"), start(wire, "guest", "other", 4))
    _, page = read(wire, "t")
    assert page["id"] == ["early", "root", "lost", "guest"]
    assert page["parent"] == [-1, 0, None, None]
    assert page["orphan"] == [[2, "nobody"], [3, "other"]]


def test_a_known_version_is_not_sent_again(wire: Wire) -> None:
    put(wire, start(wire, "root", None, 1))
    version = read(wire, "t")[0]["version"]
    assert read(wire, "t", known=version) == [{"same": True}]
    wire.post("/call/end", end={"project_id": wire.project, "id": "root", "ended_at": INSTANT.format(4), "summary": {}})
    assert read(wire, "t", known=version)[0]["version"] != version
    wire.post("/calls/delete", call_ids=["root"])
    assert wire.client.get(f"/_ui/api/trace/{wire.project}/t").status_code == 404


@pytest.mark.parametrize("name", ["no such", "a/b", "%00"])
def test_an_unknown_trace_is_not_found(wire: Wire, name: str) -> None:
    answer = wire.client.get(f"/_ui/api/trace/{wire.project}/{name}")
    assert answer.status_code == 404 and answer.json()


def test_a_large_trace_comes_in_pages_and_compressed(wire: Wire) -> None:
    trace = uuid.uuid4().hex
    write(wire.url, wire.project, big_trace(wire.project, trace, 6000))
    url = f"/_ui/api/trace/{wire.project}/{trace}"
    with wire.client.stream("GET", url, headers={"accept-encoding": "gzip"}) as answer:
        raw = b"".join(answer.iter_raw())
    lines = gzip.decompress(raw).splitlines()
    assert len(raw) < 180_000 and len(raw) < sum(map(len, lines)) / 2
    pages = [json.loads(line) for line in lines[1:]]
    assert [len(page["id"]) for page in pages] == [250, 4000, 1750]
    ids = [item for page in pages for item in page["id"]]
    parents = [item for page in pages for item in page["parent"]]
    wanted = {call["id"]: call["parent_id"] for call in big_trace(wire.project, trace, 6000)}
    found = {ids[i]: ids[i - back] if back else None for i, back in enumerate(parents)}
    assert found == wanted
    assert ids[0] == call_id(trace, 0)

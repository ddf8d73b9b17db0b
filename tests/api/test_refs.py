"""Reading refs: paths through objects and tables, what is missing, and what a key does not reach."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from heddle.auth import Caller, Grant
from heddle.store.control.objects import NewVersion, Objects
from heddle.store.control.table_rows import ControlRowTexts
from heddle.store.control.tables import Tables
from heddle.trace.refs import router
from heddle.wire import refs
from tests.api.test_objects import create
from tests.api.test_tables import create as create_table
from tests.conftest import Wire
from tests.support.memory import MemoryExecutor, small_app

ON_BOTH_STORES = True


def ref(wire: Wire, name: str, digest: str, path: str = "", kind: str = "object") -> str:
    """The external ref of a version."""
    return f"weave:///{wire.project}/{kind}/{name}:{digest}{path}"


def values(wire: Wire, *texts: str) -> list[Any]:
    """What refs read as."""
    answer = wire.client.post("/refs/read_batch", json={"refs": texts})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["vals"])


def refused(wire: Wire, status: int, *texts: str) -> dict[str, Any]:
    """The body of a refusal."""
    answer = wire.client.post("/refs/read_batch", json={"refs": texts})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def test_paths_inside_a_value(wire: Wire) -> None:
    value = {"a": {"é /": [10, {"b": None}]}, "list": [[1]], "none": None}
    digest = create(wire, "öbject", value)
    paths = {
        "": value,
        "/attr/a": value["a"],
        "/key/a/key/%C3%A9%20%2F/index/0": 10,
        "/key/a/key/%C3%A9%20%2F/index/1/key/b": None,
        "/key/a/key/%C3%A9%20%2F/index/2": None,
        "/key/list/index/0/index/0": 1,
        "/key/none/key/further/index/1": None,
        "/key/missing": None,
        "/index/0": None,
        "/id/x": None,
    }
    assert values(wire, *(ref(wire, "öbject", digest, path) for path in paths)) == list(paths.values())
    assert values(wire) == []
    same = ref(wire, "öbject", digest, "/key/list")
    assert values(wire, same, same) == [[[1]], [[1]]]


def test_paths_through_objects_and_tables(wire: Wire) -> None:
    table = create_table(wire, [{"x": 1}, {"x": {"y": [2]}}])
    leaf = create(wire, "leaf", {"name": "leaf", "table": f"weave:///{wire.project}/table/{table['digest']}"})
    middle = create(wire, "middle", {"next": ref(wire, "leaf", leaf), "deep": ref(wire, "leaf", leaf, "/key/name")})
    top = create(wire, "top", {"next": ref(wire, "middle", middle)})
    row = table["row_digests"][1]
    found = values(
        wire,
        ref(wire, "top", top, "/attr/next"),
        ref(wire, "top", top, "/attr/next/attr/next/attr/name"),
        ref(wire, "top", top, f"/attr/next/attr/next/attr/table/id/{row}"),
        ref(wire, "leaf", leaf, f"/attr/table/id/{row}/key/x/key/y/index/0"),
        ref(wire, "leaf", leaf, "/attr/table/key/x"),
        ref(wire, "middle", middle, "/attr/deep/key/x"),
    )
    assert found == [ref(wire, "middle", middle), "leaf", {"x": {"y": [2]}}, 2, None, None]
    assert "Row" in refused(wire, 404, ref(wire, "leaf", leaf, f"/attr/table/id/{'A' * 43}"))["reason"]


def test_deleted_reads_as_null_and_unknown_is_named(wire: Wire) -> None:
    gone, kept = create(wire, "gone", {"a": 1}), create(wire, "kept", {"a": 1})
    holder = create(wire, "holder", {"gone": ref(wire, "gone", gone), "unknown": ref(wire, "kept", "Z" * 43)})
    wire.post("/obj/delete", object_id="gone")
    texts = [ref(wire, "gone", gone), ref(wire, "kept", kept), ref(wire, "holder", holder, "/key/gone/key/a")]
    assert values(wire, *texts) == [None, {"a": 1}, None]
    missing = refused(wire, 404, ref(wire, "kept", "B" * 43), ref(wire, "kept", kept), ref(wire, "x", "A" * 43))
    assert missing["missing_object_digests"] == ["A" * 43, "B" * 43]
    assert refused(wire, 404, ref(wire, "other", kept))["missing_object_digests"] == [kept], (
        "names count, not digests alone"
    )
    inner = refused(wire, 404, ref(wire, "holder", holder, "/key/unknown/key/a"))
    assert inner["missing_object_digests"] == ["Z" * 43]


def test_ops_are_read_by_either_spelling(wire: Wire) -> None:
    value = {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {"obj.py": "x"}}
    digest = create(wire, "op", value)
    assert values(wire, ref(wire, "op", digest, kind="op"), ref(wire, "op", digest)) == [value, value]


def test_what_no_ref_can_name(wire: Wire) -> None:
    base = f"weave:///{wire.project}"
    for text in (
        f"{base}/table/{'0' * 64}",
        f"{base}/call/x",
        f"{base}/object/o:latest",
        f"{base}/object/o",
        f"{base}/object/o:d/attr",
        f"{base}/thing/o:d",
        "weave:///a/b",
        "weave-trace-internal:///x/object/o:d",
        "https://example.com",
        "",
    ):
        assert refused(wire, 400, text)["reason"]
    refused(wire, 400, *[ref(wire, "o", "d")] * 1001)


def test_a_ring_of_refs_ends() -> None:
    """Refs into one another (which digests forbid) must not keep a request for ever."""
    store, _ = stored({"o": lambda ref: {"a": ref + "/key/a"}})
    client = TestClient(small_app(store, router))
    answer = client.post("/refs/read_batch", json={"refs": [f"weave:///e/p/object/o:{'D' * 43}/key/a/key/b"]})
    assert answer.json() == {"vals": [None]}


def stored(objects: dict[str, Any]) -> tuple[SimpleNamespace, str]:
    """A store in memory and the internal id of e/p, which holds values made from their own ref under one digest."""
    executor = MemoryExecutor()
    store = SimpleNamespace(objects=Objects(executor), tables=Tables(executor, ControlRowTexts(executor)))
    project, digest = refs.internal_project("e/p"), "D" * 43
    for name, make in objects.items():
        val = orjson.dumps(make(refs.object_ref(project, "object", name, digest))).decode()
        asyncio.run(store.objects.create(NewVersion(project, "object", name, digest, val, len(val), None, None, "me")))
    return store, project


def bound(reach: str = "") -> Caller:
    """Somebody whose key reaches one entity or project."""
    return Caller("guest", (Grant.parse(f"viewer:{reach}" if reach else "viewer"),))


@pytest.mark.parametrize("reach", ["e/other", "f"])
def test_a_key_of_another_project_reads_nothing_through_refs(reach: str) -> None:
    store, project = stored({"o": lambda _: {"secret": 1}})
    client = TestClient(small_app(store, router, caller=bound(reach)))
    outside = client.post("/refs/read_batch", json={"refs": [f"weave:///e/p/object/o:{'D' * 43}/key/secret"]})
    assert outside.status_code == 403 and "secret" not in outside.text
    inside = client.post("/refs/read_batch", json={"refs": [refs.object_ref(project, "object", "o", "D" * 43)]})
    assert inside.status_code == 400 and "secret" not in inside.text


def test_a_value_never_leads_into_another_project() -> None:
    store, project = stored({"secret": lambda _: {"word": "open"}})
    mine = refs.internal_project("mine/p")
    leads = {"x": refs.object_ref(project, "object", "secret", "D" * 43)}
    digest = refs.value_digest(leads)
    text = orjson.dumps(leads).decode()
    new = NewVersion(mine, "object", "o", digest, text, len(text), None, None, "me")
    asyncio.run(store.objects.create(new))
    for caller in (bound("mine/p"), bound()):
        client = TestClient(small_app(store, router, caller=caller))
        texts = [f"weave:///mine/p/object/o:{digest}{path}" for path in ("/key/x", "/key/x/key/word")]
        answer = client.post("/refs/read_batch", json={"refs": texts})
        assert answer.json() == {"vals": [f"weave:///e/p/object/secret:{'D' * 43}", None]}

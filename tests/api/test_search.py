"""Text search over calls: what is found, by what, in which order, and what is found no longer."""

import contextlib
import sqlite3
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support import scale
from tests.support.server import HeddleProcess

ON_BOTH_STORES = True
Json = dict[str, Any]
NOW = datetime.now(UTC)
RARE = "7f3c9a1e-52b8-4d6f-9e07-c4a1d8b2e653"
IMAGE = "iVBORw0KGgo" * 400
NUMBERS = [index / 7 for index in range(600)]

CALLS: dict[str, Json] = {
    "english": {"inputs": {"question": "Where is my order?", "tier": "gold"}, "output": {"answer": "On its way, café"}},
    "lines": {"inputs": {"text": 'first line\nsecond line\tthird "quoted" C:\\new\\temp'}, "output": None},
    "failed": {"exception": "Traceback (most recent call last):\n  …\nTimeoutError: no answer from C:\\tools"},
    "code": {"inputs": {"source": "def getUserName(user_id): return HTTPServer.load_config(app.settings.db_url)"}},
    "ids": {"output": {"id": f"order-{RARE}", "key": "sk_live_9f8e7d6c5b4a"}},
    "japanese": {"inputs": {"q": "東京都庁はどこにありますか"}, "output": "新宿区です"},
    "korean": {"inputs": {"q": "주문은 어디에 있습니까"}},
    "russian": {"inputs": {"q": "Где мой заказ?"}, "output": "Уже в пути"},
    "nested": {"output": {"arguments": '{"city": "Oslo\\nNorway", "units": "metric"}'}},
    "noise": {
        "inputs": {
            "vector": NUMBERS,
            "image": f"data:image/png;base64,{IMAGE}",
            "note": "vector of pixels",
        }
    },
    "tagged": {"attributes": {"release": "aurora", "nested": {"flag": "canary-seven"}}},
    "named": {"display_name": "Nightly digest", "op_name": "weave:///{project}/op/summarize_inbox:" + "a" * 43},
    "phrase": {"inputs": {"text": "the quick brown fox jumps over the lazy dog"}},
    "shuffled": {"inputs": {"text": "brown the fox quick the dog lazy"}},
}
FOUND = {
    "order": ["ids", "english"],
    "ORDER gold": ["english"],
    "cafe": ["english"],
    "CAFÉ": ["english"],
    "second": ["lines"],
    "third": ["lines"],
    "new": ["lines"],
    '"line second"': ["lines"],
    "timeouterror": ["failed"],
    "TimeoutError": ["failed"],
    "timeout": ["failed"],
    '"no answer"': ["failed"],
    '"answer no"': [],
    "tools": ["failed"],
    "getUserName": ["code"],
    "getusername": ["code"],
    "UserName": ["code"],
    "user_id": ["code"],
    "load_config": ["code"],
    "config_load": [],
    "server": ["code"],
    "app.settings.db_url": ["code"],
    "app.settings.db": ["code"],
    "settings.app": [],
    RARE: ["ids"],
    f"order-{RARE}": ["ids"],
    RARE[:-1]: [],
    f"{RARE[:-4]}*": ["ids"],
    "sk_live_9f8e7d6c5b4a": ["ids"],
    "東京": ["japanese"],
    "京都": ["japanese"],
    "東京都庁": ["japanese"],
    "東都": [],
    "新": ["japanese"],
    "庁": ["japanese"],
    "어디": ["korean"],
    "주문은 어디에": ["korean"],
    "заказ": ["russian"],
    "ЗАКАЗ мой": ["russian"],
    "зака*": ["russian"],
    "norway": ["nested"],
    "oslo metric": ["nested"],
    "pixels": ["noise"],
    "aurora": ["tagged"],
    "canary-seven": ["tagged"],
    "nightly": ["named"],
    "summarize_inbox": ["named"],
    "inbox": ["named"],
    '"quick brown fox"': ["phrase"],
    '"brown fox quick"': [],
    "quick brown fox": ["shuffled", "phrase"],
    '"the lazy"': ["phrase"],
    '"lazy dog': ["phrase"],
    '"jumps ov"*': ["phrase"],
    "qui*": ["shuffled", "phrase"],
    "uick": [],
    "nowhere": [],
    "order nowhere": [],
    "endoffield": [],
}


def call(project: str, number: int, **more: Any) -> Json:
    """A finished call; a higher number started later."""
    whole = {
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": f"weave:///{project}/op/answer:{'b' * 43}",
        "started_at": (NOW + timedelta(seconds=number)).isoformat(),
        "ended_at": (NOW + timedelta(seconds=number + 1)).isoformat(),
        "attributes": {},
        "inputs": {},
        "output": None,
        "summary": {},
        "exception": None,
    }
    return {"project_id": project, **whole, **more}


def store(wire: Wire, *calls: Json) -> None:
    """Write whole calls."""
    answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": list(calls)})
    assert answer.status_code == 200, answer.text


def search(wire: Wire, text: str, trace: bool = False, **more: Any) -> list[str]:
    """The ids of the calls that a search text finds, the newest first."""
    query = {"$expr": {"$search": {"text": text, **({"any_of_trace": True} if trace else {})}}}
    order = [{"field": "started_at", "direction": "desc"}]
    return [found["id"] for found in wire.calls(**{"query": query, "sort_by": order, "columns": ["id"], **more})]


def until(wire: Wire, text: str, expected: list[str], **more: Any) -> None:
    """Wait until the index knows of it."""
    deadline = time.monotonic() + 30
    while (found := search(wire, text, **more)) != expected:
        assert time.monotonic() < deadline, (text, found)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def filled(server: HeddleProcess) -> Iterator[tuple[Wire, dict[str, str]]]:
    """A project with `CALLS` that tests only read, and their names by id."""
    project = f"acme/search-{uuid.uuid4().hex[:6]}"
    wire = Wire(server.url, project)
    names, calls = {}, []
    for number, (name, given) in enumerate(CALLS.items()):
        op = {"op_name": given["op_name"].replace("{project}", project)} if "op_name" in given else {}
        calls.append(call(project, number, **{**given, **op}))
        names[calls[-1]["id"]] = name
    store(wire, *calls)
    until(wire, "lazy fox", [call["id"] for call in calls[:-3:-1]])
    yield wire, names
    wire.close()


def test_what_is_found(filled: tuple[Wire, dict[str, str]]) -> None:
    wire, names = filled
    assert {text: [names[found] for found in search(wire, text)] for text in FOUND} == FOUND


def test_noise_is_left_out(filled: tuple[Wire, dict[str, str]]) -> None:
    wire, _ = filled
    assert search(wire, "iVBORw0KGgoiVBORw0KGgo*") == []
    assert search(wire, str(NUMBERS[500])) == []


def test_a_search_is_one_of_the_conditions(filled: tuple[Wire, dict[str, str]]) -> None:
    wire, names = filled

    def named(operation: Json) -> list[str]:
        answer = wire.calls(query={"$expr": operation}, sort_by=[{"field": "started_at", "direction": "asc"}])
        count = wire.post("/calls/query_stats", query={"$expr": operation})["count"]
        assert count == len(answer)
        return [names[found["id"]] for found in answer]

    order, fox = {"$search": {"text": "order"}}, {"$search": {"text": "fox"}}
    gold = {"$eq": [{"$getField": "inputs.tier"}, {"$literal": "gold"}]}
    assert named({"$and": [order, gold]}) == ["english"]
    assert named({"$or": [order, fox]}) == ["english", "ids", "phrase", "shuffled"]
    assert named({"$and": [{"$not": [order]}, {"$search": {"text": "answer"}}]}) == [
        name for name in names.values() if name not in ("english", "ids", "named")
    ]
    assert named({"$and": [fox, {"$search": {"text": '"quick brown"'}}]}) == ["phrase"]


@pytest.mark.parametrize(
    ("operation", "status", "said"),
    [
        ({"$search": {"text": ""}}, 400, "letter or a digit"),
        ({"$search": {"text": ' "…" * '}}, 400, "letter or a digit"),
        ({"$search": {"text": "a " * 60}}, 400, "at most 50 words"),
        ({"$search": {"text": "a" * 2000}}, 400, "at most 1000 characters"),
        ({"$search": {"text": 7}}, 422, "valid string"),
        ({"$search": {}}, 422, "Field required"),
        ({"$search": "order"}, 422, "Field required"),
        ({"$search": {"text": "a", "any_of_trace": "yes"}}, 422, "valid boolean"),
    ],
)
def test_bad_searches(wire: Wire, operation: Json, status: int, said: str) -> None:
    answer = wire.client.post("/calls/stream_query", json={"project_id": wire.project, "query": {"$expr": operation}})
    assert (answer.status_code, said in answer.text) == (status, True), answer.text


def test_only_calls_are_searched(wire: Wire) -> None:
    query = {"$expr": {"$search": {"text": "order"}}}
    answer = wire.client.post("/feedback/query", json={"project_id": wire.project, "query": query})
    assert (answer.status_code, "Only calls" in answer.text) == (400, True)


def test_hostile_texts_are_words_or_nothing(filled: tuple[Wire, dict[str, str]]) -> None:
    wire, _ = filled
    for text in ("a' OR 1=1 --", 'order" OR "x', "NEAR(a b)", "text:order", "^order", "(a", "a AND NOT b", "\ue0001 a"):
        assert search(wire, text) in ([], search(wire, "order"))
    assert search(wire, "order*") == search(wire, "order")


def test_any_call_of_a_trace(wire: Wire) -> None:
    traces = []
    for number in range(3):
        root = call(wire.project, 10 * number)
        child = call(wire.project, 10 * number + 1, trace_id=root["trace_id"], parent_id=root["id"])
        child["inputs"] = {"text": f"deep message {number}" if number else "deep"}
        traces.append((root, child))
    store(wire, *(each for trace in traces for each in trace))
    children = [child["id"] for _, child in reversed(traces)]
    until(wire, "deep", children)
    roots = {"filter": {"trace_roots_only": True}}
    assert search(wire, "deep", **roots) == []
    assert search(wire, "deep", trace=True, **roots) == [root["id"] for root, _ in reversed(traces)]
    assert search(wire, '"deep message"', trace=True, limit=1, **roots) == [traces[2][0]["id"]]
    assert search(wire, '"message 1"', trace=True) == [traces[1][1]["id"], traces[1][0]["id"]]


def test_pages_of_many_hits(wire: Wire) -> None:
    """More than are looked up at once, written in another order than they started, with few of a phrase among them."""
    calls = [call(wire.project, number, inputs={"n": f"common text {number}"}) for number in range(2600)]
    for number in (7, 1300, 2599):
        calls[number]["inputs"] = {"n": "common rare text"}
    for first in range(0, 2600, 200):
        store(wire, *calls[first + 199 : first - 1 if first else None : -1])
    newest = [each["id"] for each in reversed(calls)]
    until(wire, "common", newest)
    assert search(wire, "common", limit=50) == newest[:50]
    assert search(wire, "common", limit=60, offset=500) == newest[500:560]
    assert search(wire, '"common text"', limit=20) == newest[1:21]
    assert search(wire, '"common rare text"') == [newest[0], newest[1299], newest[2592]]
    assert search(wire, "common", sort_by=[{"field": "started_at", "direction": "asc"}], limit=9) == newest[:-10:-1]
    assert search(wire, "common", sort_by=[], limit=9) != []


def test_changes_are_followed(wire: Wire) -> None:
    started = call(wire.project, 1, inputs={"text": "beginning"})
    begin = {
        key: started[key] for key in ("project_id", "id", "trace_id", "op_name", "started_at", "attributes", "inputs")
    }
    wire.client.post("/call/start", json={"start": begin}).raise_for_status()
    until(wire, "beginning", [started["id"]])
    end = {"project_id": wire.project, "id": started["id"], "ended_at": started["ended_at"], "summary": {}}
    wire.client.post("/call/end", json={"end": {**end, "output": {"answer": "finished"}}}).raise_for_status()
    until(wire, "finished beginning", [started["id"]])
    wire.client.post("/call/end", json={"end": {**end, "output": {"answer": "revised"}}}).raise_for_status()
    until(wire, "revised", [started["id"]])
    assert search(wire, "finished") == []
    wire.post("/call/update", call_id=started["id"], display_name="Renamed twice")
    until(wire, '"renamed twice" revised', [started["id"]])
    wire.post("/calls/delete", call_ids=[started["id"]])
    assert search(wire, "revised") == search(wire, "beginning") == []


def test_feedback_is_searched(wire: Wire) -> None:
    about, other = call(wire.project, 1, inputs={"a": "one"}), call(wire.project, 2, inputs={"a": "two"})
    store(wire, about, other)
    until(wire, "one", [about["id"]])
    ref = f"weave:///{wire.project}/call/{about['id']}"
    note = wire.post(
        "/feedback/create", weave_ref=ref, feedback_type="wandb.note.1", payload={"note": "Wrong Tone here"}
    )
    assert search(wire, '"wrong tone"') == [about["id"]]
    assert search(wire, '"tone wrong"') == []
    chosen = {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": note["id"]}]}}
    wire.post("/feedback/purge", query=chosen)
    assert search(wire, "tone") == []


def test_a_project_sees_its_own(server: HeddleProcess, wire: Wire) -> None:
    elsewhere = Wire(server.url, f"{wire.project}-other")
    mine, theirs = (
        call(wire.project, 1, inputs={"a": "shared word"}),
        call(elsewhere.project, 2, inputs={"a": "shared word"}),
    )
    store(wire, mine)
    store(elsewhere, theirs)
    until(wire, "shared", [mine["id"]])
    until(elsewhere, "shared", [theirs["id"]])
    assert search(wire, theirs["id"]) == []
    assert search(wire, mine["id"]) == search(wire, mine["trace_id"]) == [mine["id"]]
    elsewhere.close()


@scale.on_sqlite
def test_what_retention_removes_is_gone_from_the_index(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as server:
        wire = Wire(server.url, "team/short")
        old, new = (
            call("team/short", -40 * 86_400, inputs={"a": "zebra"}),
            call("team/short", 0, inputs={"a": "zebra crossing"}),
        )
        store(wire, old, new)
        until(wire, "zebra", [new["id"], old["id"]])
        wire.post("/project/ttl_settings/update", retention_days=20)
        until(wire, "zebra", [new["id"]])
        found = httpx.post(f"{server.url}/calls/query_stats", json={"project_id": "team/short"}).json()["count"]
        assert found == 1
        wire.close()


@scale.on_sqlite
def test_kill_9_and_a_second_start_lose_nothing(tmp_path: Path) -> None:
    """The server is killed while its index is behind, again and again; in the end it is whole, and every call once."""
    server = HeddleProcess(tmp_path / "data")
    wire = Wire(server.url, "team/killed")
    written: list[Json] = []
    for _ in range(4):
        server.start()
        first = len(written)
        numbers = range(first, first + 900)
        written += [call(wire.project, number, inputs={"a": f"everywhere n{number}"}) for number in numbers]
        for at in range(first, first + 900, 300):
            store(wire, *written[at : at + 300])
        renamed = written[first]
        wire.post("/call/update", call_id=renamed["id"], display_name=f"renamed{first}")
        server.kill()
    server.start()
    until(wire, "everywhere", [each["id"] for each in reversed(written)])
    for first in range(0, 3600, 900):
        until(wire, f"renamed{first}", [written[first]["id"]])
        assert search(wire, f"n{first + 899}") == [written[first + 899]["id"]]
    wire.post("/calls/delete", call_ids=[written[0]["id"]])
    assert server.terminate() == 0
    with contextlib.closing(sqlite3.connect(server.data / "heddle.db")) as database:
        database.execute("INSERT INTO search (search) VALUES ('integrity-check')")
        assert database.execute("SELECT low, high FROM search_state WHERE kind = 'calls'").fetchone() == (0, 3600)
    wire.close()


@scale.on_sqlite
def test_calls_from_before_the_index_are_indexed_after_the_start(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", search="off") as server:
        wire = Wire(server.url, "team/old")
        old = [call("team/old", number, inputs={"a": f"inherited n{number}"}) for number in range(900)]
        store(wire, *old)
        ref = f"weave:///team/old/call/{old[5]['id']}"
        wire.post("/feedback/create", weave_ref=ref, feedback_type="wandb.note.1", payload={"note": "remarkable"})
        query = {"project_id": "team/old", "query": {"$expr": {"$search": {"text": "inherited"}}}}
        refused = wire.client.post("/calls/stream_query", json=query)
        assert (refused.status_code, "switched off" in refused.text) == (400, True)
        wire.close()
    with HeddleProcess(tmp_path / "data") as server:
        wire = Wire(server.url, "team/old")
        new = call("team/old", 1000, inputs={"a": "inherited not"})
        store(wire, new)
        until(wire, "inherited", [new["id"], *(each["id"] for each in reversed(old))])
        until(wire, "remarkable", [old[5]["id"]])
        wire.close()

"""The API of Langfuse over HTTP: scores, which are feedback of scorers."""

from typing import Any

import httpx
import pytest

from tests.conftest import API_KEY, Wire
from tests.support.otlp import PROTOBUF, request, span

Json = dict[str, Any]
SCORES, INGESTION = "/api/public/scores", "/api/public/ingestion"
TRACE, ROOT, INNER = f"{1:032x}", f"{1:016x}", f"{2:016x}"


@pytest.fixture
def langfuse(wire: Wire) -> httpx.Client:
    """A client whose public key is the project."""
    return httpx.Client(base_url=wire.url, auth=(wire.project, API_KEY), timeout=60)


def score(client: httpx.Client, status: int = 200, **body: Any) -> Json:
    """The answer to a score."""
    answer = client.post(SCORES, json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def third(client: httpx.Client, **query: Any) -> list[Json]:
    """Scores of the third version."""
    answer = client.get("/api/public/v3/scores", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def names(client: httpx.Client, **query: Any) -> list[str]:
    """The names of those."""
    return [item["name"] for item in third(client, **query)]


def store_trace(wire: Wire) -> None:
    """A root with a span in it, as an SDK exports them: the inner one first."""
    for one in (span(2, parent=1), span(1)):
        body = request(one).SerializeToString()
        sent = wire.client.post("/v1/traces", content=body, headers={**PROTOBUF, "project_id": wire.project})
        assert sent.status_code == 200, sent.text


def test_a_score_is_feedback_of_a_scorer(wire: Wire, langfuse: httpx.Client) -> None:
    store_trace(wire)
    made = score(langfuse, name="how good?", value=0.5, traceId=TRACE, observationId=INNER, comment="so so", id="s1")
    assert made == {"id": "s1"}
    [row] = wire.post("/feedback/query")["result"]
    [scorer] = [item for item in wire.objects() if item["base_object_class"] == "Scorer"]
    assert scorer["val"]["name"] == "how good?" and scorer["object_id"].startswith("how-good-")
    assert row["weave_ref"] == f"weave:///{wire.project}/call/{INNER}"
    assert row["feedback_type"] == f"wandb.runnable.{scorer['object_id']}"
    assert row["runnable_ref"] == f"weave:///{wire.project}/object/{scorer['object_id']}:{scorer['digest']}"
    assert row["payload"]["output"] == 0.5 and row["payload"]["langfuse"]["comment"] == "so so"
    field = {"$getField": f"feedback.[{row['feedback_type']}].payload.output"}
    query = {"$expr": {"$gt": [{"$convert": {"input": field, "to": "double"}}, {"$literal": 0.4}]}}
    assert [call["id"] for call in wire.calls(query=query)] == [INNER]
    score(langfuse, name="how good?", value=0.75, traceId=TRACE, observationId=INNER, id="s1")
    assert [item["payload"]["output"] for item in wire.post("/feedback/query")["result"]] == [0.75], "replaced"


def test_a_score_of_a_trace_stands_at_its_root_whichever_comes_first(wire: Wire, langfuse: httpx.Client) -> None:
    score(langfuse, name="early", value=1, traceId=TRACE)
    [waiting] = wire.post("/feedback/query")["result"]
    assert waiting["weave_ref"].endswith(f"/agent_turn/{TRACE}")
    store_trace(wire)
    score(langfuse, name="late", value=2, traceId=TRACE)
    root = f"weave:///{wire.project}/call/{ROOT}"
    assert [row["weave_ref"] for row in wire.post("/feedback/query")["result"]] == [root, root]
    called = {"project_id": wire.project, "weave_ref": f"weave:///{wire.project}/agent_turn/{TRACE}"}
    wire.client.post("/feedback/create", json={**called, "feedback_type": "custom", "payload": {}})
    store_trace(wire)
    assert wire.post("/feedback/query")["result"][2]["weave_ref"].endswith(f"/agent_turn/{TRACE}"), "not ours to move"


def test_types_of_values(langfuse: httpx.Client) -> None:
    sent = {
        "number": (0.5, None, "NUMERIC", 0.5, (0.5, None)),
        "word": ("good", None, "CATEGORICAL", "good", (0, "good")),
        "yes": (1, "BOOLEAN", "BOOLEAN", True, (1, "True")),
        "no": (0.0, "BOOLEAN", "BOOLEAN", False, (0, "False")),
        "text": ("long", "TEXT", "TEXT", "long", (0, "long")),
    }
    for name, (value, kind, *_) in sent.items():
        more = {} if kind is None else {"dataType": kind}
        score(langfuse, name=name, value=value, traceId=TRACE, **more)
    score(langfuse, name="any", value="fixed", dataType="CORRECTION", traceId=TRACE)
    found = {item["name"]: item for item in third(langfuse)}
    older = {item["name"]: item for item in langfuse.get("/api/public/v2/scores").json()["data"]}
    for name, (_, _, kind, value, (number, word)) in sent.items():
        assert (found[name]["dataType"], found[name]["value"]) == (kind, value)
        assert (older[name]["value"], older[name].get("stringValue")) == (number, word)
    assert (found["output"]["dataType"], found["output"]["value"]) == ("CORRECTION", "fixed")


def test_pages_neither_repeat_nor_skip_what_was_there_all_the_time(langfuse: httpx.Client) -> None:
    for number in range(9):
        score(langfuse, name=f"n{number}", value=number, traceId=TRACE, id=f"score-{number}")
    seen, cursor = [], None
    while True:
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = langfuse.get("/api/public/v3/scores", params=query).json()
        seen += [item["id"] for item in page["data"]]
        cursor = page["meta"].get("cursor")
        if cursor is None:
            break
        score(langfuse, name="later", value=1, traceId=TRACE)
        for gone in seen[-3:-1]:
            assert langfuse.delete(f"/api/public/scores/{gone}").status_code == 202
    assert seen == [f"score-{number}" for number in range(8, -1, -1)]


def test_filters_and_pages(langfuse: httpx.Client) -> None:
    for number in range(5):
        timestamp = f"2026-01-0{number + 1}T00:00:00Z"
        score(langfuse, name=f"n{number}", value=number, traceId=TRACE, timestamp=timestamp, environment="prod")
    score(langfuse, name="s", value="a", sessionId="talk", metadata={"k": 1}, source="ANNOTATION")
    score(langfuse, name="o", value=1, dataType="BOOLEAN", traceId=TRACE, observationId=INNER)
    newest = ["o", "s", "n4", "n3", "n2", "n1", "n0"]
    assert names(langfuse) == newest
    assert names(langfuse, name="n1,s") == ["s", "n1"]
    assert names(langfuse, environment="prod") == newest[2:]
    assert names(langfuse, sessionId="talk") == names(langfuse, source="annotation") == ["s"]
    assert names(langfuse, traceId=TRACE, observationId=INNER) == ["o"]
    assert names(langfuse, dataType="numeric", valueMin=1, valueMax=2.5) == ["n2", "n1"]
    assert names(langfuse, dataType="NUMERIC", value="0,4") == ["n4", "n0"]
    assert names(langfuse, dataType="BOOLEAN", value="true") == ["o"]
    assert names(langfuse, dataType="CATEGORICAL", value="a") == ["s"]
    assert names(langfuse, fromTimestamp="2026-01-02T00:00:00Z", toTimestamp="2026-01-04T00:00:00Z") == ["n2", "n1"]
    seen, cursor = [], None
    while True:
        page = langfuse.get(
            "/api/public/v3/scores", params={"limit": 3, **({"cursor": cursor} if cursor else {})}
        ).json()
        seen += [item["name"] for item in page["data"]]
        cursor = page["meta"].get("cursor")
        if cursor is None:
            break
    assert seen == newest
    [full] = third(langfuse, name="s", fields="details,subject,annotation")
    assert full["metadata"] == {"k": 1} and full["subject"] == {"kind": "session", "id": "talk"}
    assert third(langfuse, name="o", fields="subject")[0]["subject"]["traceId"] == TRACE

    def second(**query: Any) -> list[str]:
        answer = langfuse.get("/api/public/v2/scores", params=query)
        assert answer.status_code == 200, answer.text
        return [item["name"] for item in answer.json()["data"]]

    assert second(limit=2, page=2) == ["n4", "n3"]
    assert second(operator=">=", value=3) == ["n4", "n3"] and second(sessionId="talk") == ["s"]
    assert second(environment=["prod"], name="n1") == ["n1"] and second(dataType="BOOLEAN") == ["o"]
    assert second(fromTimestamp="2026-01-04T00:00:00Z", environment="prod") == ["n4", "n3"]


def test_one_score_is_read_and_deleted(wire: Wire, langfuse: httpx.Client) -> None:
    score(langfuse, name="a", value=1, traceId=TRACE, id="one")
    target = {"project_id": wire.project, "weave_ref": f"weave:///{wire.project}/call/x", "id": "note"}
    wire.client.post("/feedback/create", json={**target, "feedback_type": "custom", "payload": {}})
    for path in (f"{SCORES}/one", "/api/public/v2/scores/one"):
        assert langfuse.get(path).json()["name"] == "a"
    assert langfuse.delete(f"{SCORES}/note").status_code == 404, "only scores"
    assert langfuse.delete(f"{SCORES}/one").status_code == 202
    assert langfuse.get(f"{SCORES}/one").status_code == langfuse.delete(f"{SCORES}/one").status_code == 404
    assert [row["id"] for row in wire.post("/feedback/query")["result"]] == ["note"]


def test_batches_store_what_is_right(langfuse: httpx.Client) -> None:
    good = {"name": "a", "value": 1, "traceId": TRACE}
    taken = langfuse.post(SCORES, json=[{**good, "id": "1"}, {**good, "id": "2"}])
    assert (taken.status_code, taken.json()) == (202, {"message": "Accepted"})
    mixed = langfuse.post(SCORES, json=[{**good, "id": "3"}, {"name": "b"}, 5, {**good, "dataType": "TEXT"}])
    assert mixed.status_code == 207
    told = mixed.json()
    assert (told["accepted"], told["rejected"], len(told["errors"])) == (1, 3, 3)
    assert "value" in told["errors"][0]["message"]
    events = [
        {"id": "e1", "type": "score-create", "timestamp": "2026-01-01T00:00:00Z", "body": {**good, "id": "4"}},
        {"id": "e2", "type": "trace-create", "body": {"id": TRACE}},
        {"id": "e3", "type": "score-create", "body": {"name": "x"}},
    ]
    batch = langfuse.post(INGESTION, json={"batch": events, "metadata": {"sdk_name": "python"}})
    assert batch.status_code == 207
    assert batch.json()["successes"] == [{"id": "e1", "status": 201}]
    assert [item["id"] for item in batch.json()["errors"]] == ["e2", "e3"]
    assert "otel" in batch.json()["errors"][0]["message"]
    found = {item["id"]: item["timestamp"] for item in third(langfuse)}
    assert set(found) == {"1", "2", "3", "4"} and found["4"] == "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"value": None}, "value"),
        ({"value": [1]}, "value"),
        ({"value": "x", "dataType": "NUMERIC"}, "number"),
        ({"value": 2, "dataType": "BOOLEAN"}, "0 or 1"),
        ({"dataType": "CATEGORICAL"}, "must be a string"),
        ({"dataType": "EVAL"}, "dataType"),
        ({"name": ""}, "name"),
        ({"traceId": None}, "traceId"),
        ({"traceId": None, "observationId": INNER, "sessionId": "s"}, "traceId"),
        ({"configId": "c"}, "configId"),
        ({"queueId": "0190aaaa-0000-7000-8000-00000000dead"}, "not found"),
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"source": "EVAL"}, "source"),
        ({"metadata": "x" * 2**21}, "payload"),
    ],
)
def test_refused_scores_store_nothing(wire: Wire, langfuse: httpx.Client, more: Json, said: str) -> None:
    refused = score(langfuse, 400, **{"name": "a", "value": 1, "traceId": TRACE, **more})
    assert said in refused["message"], refused
    assert wire.post("/feedback/query")["result"] == []


@pytest.mark.parametrize(
    "query",
    [
        {"fields": "io"}, {"observationId": INNER}, {"valueMin": 1}, {"value": "1"},
        {"value": "x", "dataType": "NUMERIC"},
        {"value": "1", "dataType": "BOOLEAN"}, {"cursor": "zzz"}, {"limit": 0}, {"limit": 101}, {"configId": "c"},
        {"fromTimestamp": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_refused_questions(langfuse: httpx.Client, query: Json) -> None:
    answer = langfuse.get("/api/public/v3/scores", params=query)
    assert answer.status_code == 400, answer.text
    assert answer.json()["message"]
    for path, other in (("", {"operator": ">"}), ("", {"traceTags": "x"}), ("/none", {})):
        refused = langfuse.get(f"/api/public/v2/scores{path}", params=other)
        assert refused.status_code == (400 if other else 404)

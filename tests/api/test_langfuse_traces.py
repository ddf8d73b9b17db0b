"""The API of Langfuse over HTTP: spans that its SDKs send, read back as traces, observations and sessions; deletion."""

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.conftest import API_KEY, Wire
from tests.support.otlp import PROTOBUF, START, request, span

Json = dict[str, Any]
TRACE, ROOT = f"{1:032x}", f"{1:016x}"
CONTEXT = {"user.id": "ada", "session.id": "talk", "langfuse.trace.name": "my trace", "langfuse.trace.tags": ["a"]}
BASE = "langfuse.observation."
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64}}
GENERATION = {
    f"{BASE}type": "generation",
    f"{BASE}input": json.dumps([{"role": "user", "content": "hi"}]),
    f"{BASE}output": json.dumps({"role": "assistant", "content": "yo"}),
    f"{BASE}model.name": "gpt-4o-mini",
    f"{BASE}model.parameters": '{"temperature": 0.5}',
    f"{BASE}usage_details": json.dumps(USAGE),
}


@pytest.fixture
def langfuse(wire: Wire) -> httpx.Client:
    """A client whose public key is the project."""
    return httpx.Client(base_url=wire.url, auth=(wire.project, API_KEY), timeout=60)


def send(client: httpx.Client, *spans: Json) -> None:
    """Export spans as an SDK does."""
    body = request(*spans).SerializeToString()
    sent = client.post("/api/public/otel/v1/traces", content=body, headers=PROTOBUF)
    assert sent.status_code == 200, sent.text


def get(client: httpx.Client, path: str, status: int = 200, **query: Any) -> Any:
    """The answer under /api/public."""
    answer = client.get(f"/api/public/{path}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture
def stored(langfuse: httpx.Client) -> httpx.Client:
    """The same with a trace of four spans, and another of one."""
    work = {f"{BASE}type": "span", f"{BASE}input": '{"q": 1}', f"{BASE}output": "done"}
    failed = {f"{BASE}type": "generation", f"{BASE}level": "ERROR", f"{BASE}status_message": "boom"}
    send(
        langfuse,
        span(2, parent=1, name="llm", attributes={**CONTEXT, **GENERATION}, start_time_unix_nano=START + 1_000_000),
        span(3, parent=1, name="search", attributes={**CONTEXT, f"{BASE}type": "tool", f"{BASE}input": '{"q": "x"}'}),
        span(4, parent=1, name="bad", attributes={**CONTEXT, **failed}, status={"code": 2, "message": "boom"}),
        span(1, name="agent run", attributes={**CONTEXT, **work}, end_time_unix_nano=START + 2_000_000_000),
        span(9, trace=2, name="other", start_time_unix_nano=START + 5_000_000_000),
    )
    return langfuse


def test_a_trace_is_read_back(wire: Wire, stored: httpx.Client) -> None:
    body = {"name": "liked", "value": 1, "dataType": "BOOLEAN", "traceId": TRACE, "id": "s"}
    assert stored.post("/api/public/scores", json=body).status_code == 200
    trace = get(stored, f"traces/{TRACE}")
    assert (trace["id"], trace["name"], trace["input"], trace["output"]) == (TRACE, "my trace", {"q": 1}, "done")
    assert (trace["userId"], trace["sessionId"], trace["tags"]) == ("ada", "talk", ["a"])
    assert trace["latency"] == 2.0 and trace["htmlPath"] == f"/{wire.project}/weave/traces/{TRACE}"
    assert [(one["id"], one["value"]) for one in trace["scores"]] == [("s", 1)]
    found = {one["name"]: one for one in trace["observations"]}
    assert {name: one["type"] for name, one in found.items()} == {
        "agent run": "SPAN", "llm": "GENERATION", "search": "TOOL", "bad": "GENERATION",
    }  # fmt: skip
    llm = found["llm"]
    assert (llm["model"], llm["modelParameters"]) == ("gpt-4o-mini", {"temperature": 0.5})
    assert llm["input"] == [{"role": "user", "content": "hi"}] and llm["output"]["content"] == "yo"
    assert llm["usageDetails"] == {"input": 36, "output": 20, "total": 120, "input_cached_tokens": 64}
    assert llm["usage"] == {"input": 100, "output": 20, "total": 120, "unit": "TOKENS"}
    # 36 tokens, 64 cached ones at half the price, and 20 of the answer.
    assert llm["totalCost"] == pytest.approx((36 * 0.15 + 64 * 0.075 + 20 * 0.6) / 1e6)
    assert trace["totalCost"] == pytest.approx(llm["totalCost"])
    assert (found["bad"]["level"], found["bad"]["statusMessage"], found["search"]["level"]) == (
        "ERROR", "boom", "DEFAULT",
    )  # fmt: skip
    assert get(stored, f"observations/{llm['id']}") == llm


def test_the_address_that_sdks_print_leads_to_the_page(wire: Wire, stored: httpx.Client) -> None:
    printed = stored.get(f"/project/{wire.project}/traces/{TRACE}")
    assert (printed.status_code, printed.headers["location"]) == (302, f"/{wire.project}/weave/traces/{TRACE}")


def test_lists_of_traces(stored: httpx.Client) -> None:
    def names(**query: Any) -> list[str]:
        return [one["name"] for one in get(stored, "traces", **query)["data"]]

    assert names() == ["other", "my trace"] and names(orderBy="timestamp.asc") == ["my trace", "other"]
    assert names(limit=1, page=2) == ["my trace"] and names(sessionId="talk") == ["my trace"]
    assert names(name="my trace") == ["my trace"] and names(name="other") == ["other"] and names(name="x") == []
    assert names(name="agent run") == ["my trace"], "by the name of its span"
    assert names(fromTimestamp="2100-01-01T00:00:00Z") == []
    assert names(userId="ada") == ["my trace"] and names(userId="nobody") == []
    answer = get(stored, "traces", sessionId="talk")
    assert answer["meta"] == {"page": 1, "limit": 50, "totalItems": 1, "totalPages": 1}
    assert len(answer["data"][0]["observations"]) == 4
    session = get(stored, "sessions/talk")
    assert session["id"] == "talk" and [one["id"] for one in session["traces"]] == [TRACE]


def test_lists_of_observations(stored: httpx.Client) -> None:
    for path in ("observations", "v2/observations"):

        def names(where: str = path, **query: Any) -> list[str]:
            return sorted(one["name"] for one in get(stored, where, **query)["data"])

        assert names() == ["agent run", "bad", "llm", "other", "search"]
        assert names(traceId=TRACE, type="GENERATION") == ["bad", "llm"] and names(type="tool") == ["search"]
        assert names(level="ERROR") == ["bad"] and names(parentObservationId=ROOT) == ["bad", "llm", "search"]
        assert names(name="agent run") == ["agent run"] and names(fromStartTime="2100-01-01T00:00:00Z") == []
    assert get(stored, "observations", limit=2)["meta"]["totalItems"] == 5
    roots = get(stored, "v2/observations", isRootObservation=True, fields="io,trace_context")["data"]
    assert [(one["input"], one["traceName"]) for one in roots] == [(None, "other"), ('{"q":1}', "my trace")]
    seen, cursor = [], None
    while True:
        page = get(stored, "v2/observations", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [one["id"] for one in page["data"]]
        cursor = page["meta"].get("cursor")
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 5
    groups = "core,basic,time,io,metadata,model,usage,prompt,metrics,trace_context"
    [llm] = get(stored, "v2/observations", name="llm", fields=groups)["data"]
    assert llm["usageDetails"]["input_cached_tokens"] == 64 and llm["model"] == "gpt-4o-mini"
    assert llm["output"] == '{"role":"assistant","content":"yo"}' and llm["latency"] == pytest.approx(0.249)


def test_pages_neither_repeat_nor_skip_what_was_there_all_the_time(wire: Wire, langfuse: httpx.Client) -> None:
    send(langfuse, *(span(number, trace=number) for number in range(1, 10)))
    seen, cursor = [], None
    while True:
        page = get(langfuse, "v2/observations", limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [one["id"] for one in page["data"]]
        cursor = page["meta"].get("cursor")
        if cursor is None:
            break
        later = 100 + len(seen)
        send(langfuse, span(later, trace=later, start_time_unix_nano=START + 1_000_000_000))
        wire.post("/calls/delete", call_ids=seen[:2])
    assert seen == [f"{number:016x}" for number in range(9, 0, -1)]


def test_what_a_call_does_not_say_has_its_default(wire: Wire, langfuse: httpx.Client) -> None:
    """Filters choose by what is shown: DEFAULT, and the environment `default`, where nothing is said."""
    said: list[tuple[str, Json, str | None]] = [
        ("plain", {}, None), ("told", {"level": "DEFAULT", "environment": "default"}, None),
        ("warned", {"level": "WARNING", "environment": "prod"}, None), ("failed", {"level": "WARNING"}, "boom"),
    ]  # fmt: skip
    batch = [finished(wire, name, attributes=attributes, exception=failure) for name, attributes, failure in said]
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch}).status_code == 200

    def ids(path: str = "observations", **query: Any) -> list[str]:
        return sorted(one["id"] for one in get(langfuse, path, **query)["data"])

    for level, expected in (("DEFAULT", ["plain", "told"]), ("WARNING", ["warned"]), ("ERROR", ["failed"])):
        assert ids(level=level) == ids("v2/observations", level=level) == expected
        assert {one["level"] for one in get(langfuse, "observations", level=level)["data"]} == {level}
    for path in ("observations", "traces"):
        assert ids(path, environment="default") == ["failed", "plain", "told"] and ids(path, environment="prod") == [
            "warned"
        ]
        assert len(ids(path, environment=["prod", "default"])) == 4


def test_a_call_without_any_name_is_read(wire: Wire, langfuse: httpx.Client) -> None:
    """Its request waited for ever."""
    start = {"project_id": wire.project, "op_name": "", "trace_id": "nameless", "started_at": "2026-01-01T00:00:00Z"}
    started = wire.post("/call/start", start={**start, "inputs": {}, "attributes": {}})
    trace = get(langfuse, "traces/nameless")
    assert (trace["name"], [one["name"] for one in trace["observations"]]) == ("", [""])
    assert get(langfuse, f"observations/{started['id']}")["name"] == ""
    assert [one["name"] for one in get(langfuse, "traces")["data"]] == [""]


def test_only_users_that_are_shown_are_found(wire: Wire, langfuse: httpx.Client) -> None:
    """The user of the API key is none whom the work was done for."""
    told = [{}, {"user.id": "ada", "langfuse.user.id": "eve"}, {"enduser.id": "bob"}, {"langfuse.user.id": "eve"}]
    send(langfuse, *(span(number, trace=number, attributes=more) for number, more in enumerate(told, 1)))
    (of_key,) = {call["wb_user_id"] for call in wire.calls()} - {"ada", "bob", "eve"}
    for path in ("traces", "observations", "v2/observations"):
        shown = sorted(str(one["userId"]) for one in get(langfuse, path)["data"])
        assert shown == ["None", "ada", "bob", "eve"]
        for user, count in (("ada", 1), ("bob", 1), ("eve", 1), (of_key, 0)):
            assert [one["userId"] for one in get(langfuse, path, userId=user)["data"]] == [user] * count


def test_a_trace_of_two_roots_is_one(langfuse: httpx.Client) -> None:
    context = {**CONTEXT, f"{BASE}type": "span"}
    send(
        langfuse,
        span(1, name="first", attributes=context),
        span(2, name="second", attributes=context, start_time_unix_nano=START + 1_000_000),
        span(3, trace=2, name="other", attributes=context, start_time_unix_nano=START + 2_000_000),
    )
    listed = {one["id"]: one for one in get(langfuse, "traces")["data"]}
    assert [one["id"] for one in get(langfuse, "traces")["data"]] == [f"{2:032x}", TRACE]
    assert len(listed[TRACE]["observations"]) == 2
    assert [one["id"] for one in get(langfuse, "sessions/talk")["traces"]] == [TRACE, f"{2:032x}"]


@pytest.mark.parametrize(
    ("call_id", "trace", "session"), [("a/b", "c/d", "e/f g?"), ("a\n", "c\nd", "\ne\n"), ("a\r", "c\u2028", "e\x0b")]
)
def test_ids_may_hold_slashes_and_ends_of_lines(
    wire: Wire, langfuse: httpx.Client, call_id: str, trace: str, session: str
) -> None:
    call = finished(wire, call_id, trace_id=trace, thread_id=session)
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [call]}).status_code == 200
    for path, key in (("observations", call_id), ("traces", trace), ("sessions", session)):
        assert (
            get(langfuse, f"{path}/{quote(key, safe='')}")["id"] == get(langfuse, f"{path}/{quote(key)}")["id"] == key
        )


def test_ids_of_scores_may_hold_slashes(wire: Wire, langfuse: httpx.Client) -> None:
    call = finished(wire, "a/b", trace_id="c/d", thread_id="e/f g?")
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [call]}).status_code == 200
    body = {"name": "liked", "value": 1, "traceId": "c/d", "id": "g/h"}
    assert langfuse.post("/api/public/scores", json=body).status_code == 200
    assert get(langfuse, "scores/g%2Fh")["id"] == get(langfuse, "v2/scores/g%2Fh")["id"] == "g/h"
    assert langfuse.delete("/api/public/scores/g%2Fh").status_code == 202
    assert langfuse.delete("/api/public/traces/c%2Fd").status_code == 200
    get(langfuse, "traces/c%2Fd", 404)


def finished(wire: Wire, call_id: str, **more: Any) -> Json:
    """A call, as weave sends one that has ended."""
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    known = {"project_id": wire.project, "id": call_id, "trace_id": call_id, "op_name": "ask", **times}
    return {**known, "attributes": {}, "inputs": {}, "summary": {}, **more}


@pytest.mark.thorough
def test_long_traces_are_summed_up_whole(wire: Wire, langfuse: httpx.Client) -> None:
    """10,001 observations; the last one says how long it took."""
    more = ({"parent_id": "0", "trace_id": "0"} if number else {} for number in range(10_001))
    batch = [finished(wire, str(number), **each) for number, each in enumerate(more)]
    batch[-1] |= {"started_at": "2026-01-01T00:00:02Z", "ended_at": "2026-01-01T00:00:09Z"}
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch}).status_code == 200
    [listed], trace = get(langfuse, "traces")["data"], get(langfuse, "traces/0")
    assert listed["latency"] == trace["latency"] == 9.0
    assert len(listed["observations"]) == len(trace["observations"]) == 10_001


def test_calls_of_weave_are_read_too(wire: Wire, langfuse: httpx.Client) -> None:
    usage = {"gpt-4o-mini": {"prompt_tokens": 10, "completion_tokens": 5, "requests": 1}}
    call = {
        "project_id": wire.project,
        "id": "c1",
        "trace_id": "t1",
        "op_name": "ask",
        "started_at": "2026-01-01T00:00:00Z",
    }
    call |= {"attributes": {}, "inputs": {"q": 1}, "output": {"a": 2}, "summary": {"usage": usage}}
    call |= {"ended_at": "2026-01-01T00:00:01Z"}
    done = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [call]})
    assert done.status_code == 200, done.text
    trace = get(langfuse, "traces/t1")
    assert (trace["name"], trace["input"], trace["output"], trace["latency"]) == ("ask", {"q": 1}, {"a": 2}, 1.0)
    assert trace["observations"][0]["usageDetails"] == {"input": 10, "output": 5}


def test_traces_are_deleted(wire: Wire, stored: httpx.Client) -> None:
    assert stored.delete(f"/api/public/traces/{TRACE}").status_code == 200
    get(stored, f"traces/{TRACE}", 404)
    get(stored, "sessions/talk", 404)
    assert [call["trace_id"] for call in wire.calls()] == [f"{2:032x}"]
    assert stored.request("DELETE", "/api/public/traces", json={"traceIds": [f"{2:032x}", "none"]}).status_code == 200
    assert wire.calls() == [] and get(stored, "traces")["data"] == []


@pytest.mark.parametrize(
    "path",
    [
        "traces?filter=[]", "traces?limit=0", "traces?orderBy=name.asc", "v2/observations?type=SPAN",
        "v2/observations?fields=all", "v2/observations?isRootObservation=false", "v2/observations?parseIoAsJson=true",
        "v2/observations?cursor=!", "observations?level=BAD", "observations?fromStartTime=x",
    ],
)  # fmt: skip
def test_refused_questions(langfuse: httpx.Client, path: str) -> None:
    answer = langfuse.get(f"/api/public/{path}")
    assert answer.status_code == 400 and answer.json()["message"], answer.text

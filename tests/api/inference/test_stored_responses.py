"""Stored responses: chains, conversations, references, the background, restarts, and what the traces show of them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heddle.inference.served_model import TINY
from tests.api.inference.test_faults import engine_worker
from tests.conftest import Wire
from tests.support.chat import until
from tests.support.responses import Json, Responses, error_of, events_of, text_of
from tests.support.server import HeddleProcess, ParentProcess

LONG: Json = {"max_output_tokens": 20_000, "ignore_eos": True, "background": True}
FOUR: Json = {"ignore_eos": True}
OPEN = ("queued", "in_progress")


@pytest.fixture(scope="module")
def tracing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that traces completions."""
    with ParentProcess(tmp_path_factory.mktemp("stored") / "data", trace_inference="on") as process:
        yield process
        assert "Traceback" not in process.log()


@pytest.fixture
def responses(tracing: HeddleProcess, project: str) -> Iterator[Responses]:
    """A caller of that server for the test's project."""
    with Responses(tracing.url, project) as caller:
        yield caller


@pytest.fixture
def wire(tracing: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project on that server."""
    wire = Wire(tracing.url, project)
    yield wire
    wire.client.close()


def message(role: str, text: str) -> Json:
    """A message as clients send it."""
    return {"role": role, "content": text}


def test_a_chain_is_the_conversation_written_out(responses: Responses, wire: Wire) -> None:
    first = responses.create(input="My name is Ann.", instructions="Never told again.", **FOUR)
    second = responses.create(input="Say it.", previous_response_id=first["id"], **FOUR)
    third = responses.create(input=[message("user", "Again.")], previous_response_id=second["id"], **FOUR)
    said = [message("user", "My name is Ann."), message("assistant", text_of(first)), message("user", "Say it.")]
    written = responses.create(input=said, store=False, **FOUR)
    assert text_of(second) == text_of(written)
    assert second["usage"]["input_tokens"] == written["usage"]["input_tokens"]
    items = responses.items(third["id"])
    assert [(item["role"], item["content"][0]["text"]) for item in items] == [
        ("user", "My name is Ann."),
        ("assistant", text_of(first)),
        ("user", "Say it."),
        ("assistant", text_of(second)),
        ("user", "Again."),
    ]
    assert items[1] == first["output"][0]
    newest = responses.get(f"responses/{third['id']}/input_items", limit=2)
    assert [item["id"] for item in newest["data"]] == [items[4]["id"], items[3]["id"]]
    assert (newest["has_more"], newest["last_id"]) == (True, items[3]["id"])
    rest = responses.get(f"responses/{third['id']}/input_items", limit=20, after=items[3]["id"])
    assert [item["id"] for item in rest["data"]] == [items[2]["id"], items[1]["id"], items[0]["id"]]

    calls = wire.calls()
    assert {call["op_name"] for call in calls} == {"heddle.responses"}
    by_id = {call["output"]["id"]: call for call in calls}
    turns = [by_id[response["id"]] for response in (first, second, third)]
    assert {call["thread_id"] for call in turns} == {first["id"]} and all(call["turn_id"] for call in turns)
    assert by_id[written["id"]]["thread_id"] is None
    assert turns[1]["inputs"] == responses.body(input="Say it.", previous_response_id=first["id"], **FOUR)
    assert turns[1]["output"] == second
    shown = turns[1]["summary"]["usage"][TINY]
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (second["usage"]["input_tokens"], 4)
    (thread,) = [thread for thread in wire.lines("/threads/stream_query") if thread["thread_id"] == first["id"]]
    assert thread["turn_count"] == 3


def test_what_is_not_stored_is_gone(responses: Responses) -> None:
    response = responses.create(store=False)
    assert response["store"] is False
    for answer in (
        responses.client.get(f"/v1/responses/{response['id']}"),
        responses.client.get(f"/v1/responses/{response['id']}/input_items"),
        responses.client.delete(f"/v1/responses/{response['id']}"),
    ):
        assert answer.status_code == 404 and error_of(answer)["type"] == "not_found_error"
    error = responses.refused(400, previous_response_id=response["id"])
    assert error["code"] == "previous_response_not_found"


def test_a_deleted_response_breaks_its_chain(responses: Responses) -> None:
    first = responses.create()
    second = responses.create(previous_response_id=first["id"])
    deleted = responses.client.delete(f"/v1/responses/{first['id']}").json()
    assert deleted == {"id": first["id"], "object": "response", "deleted": True}
    assert responses.get(f"responses/{second['id']}")["id"] == second["id"]
    error = responses.refused(400, previous_response_id=second["id"])
    assert error["code"] == "previous_response_not_found" and first["id"] in error["message"]


def test_another_project_sees_nothing(tracing: HeddleProcess, responses: Responses) -> None:
    response = responses.create()
    conversation = responses.client.post("/v1/conversations", json={}).json()["id"]
    for other in ("team/other", None):
        with Responses(tracing.url, other) as stranger:
            assert stranger.client.get(f"/v1/responses/{response['id']}").status_code == 404
            assert stranger.client.get(f"/v1/conversations/{conversation}").status_code == 404
            assert stranger.refused(400, previous_response_id=response["id"])["param"] == "previous_response_id"
            assert stranger.refused(404, conversation=conversation)["param"] == "conversation"
            reference = {"type": "item_reference", "id": response["output"][0]["id"]}
            assert stranger.refused(400, input=[reference])["param"] == "input.0.id"


def test_references_stand_for_stored_items(responses: Responses) -> None:
    first = responses.create(**FOUR)
    own = responses.items(first["id"])[0]
    references = [{"type": "item_reference", "id": own["id"]}, {"id": first["output"][0]["id"]}]
    by_reference = responses.create(input=[*references, message("user", "Go on.")], **FOUR)
    written = responses.create(input=[own, first["output"][0], message("user", "Go on.")], **FOUR)
    assert by_reference["usage"]["input_tokens"] == written["usage"]["input_tokens"]
    assert text_of(by_reference) == text_of(written)


def test_a_conversation_collects_the_items_of_its_responses(responses: Responses, wire: Wire) -> None:
    made = responses.client.post(
        "/v1/conversations", json={"items": [message("developer", "Be brief.")], "metadata": {"a": "b"}}
    ).json()
    named = f"conversations/{made['id']}"
    assert responses.get(named) == made and made["metadata"] == {"a": "b"}
    first = responses.create(input="One.", conversation=made["id"], **FOUR)
    second = responses.create(input="Two.", conversation={"id": made["id"]}, **FOUR)
    assert first["conversation"] == second["conversation"] == {"id": made["id"]}
    items = responses.get(f"{named}/items", order="asc")["data"]
    assert [item["role"] for item in items] == ["developer", "user", "assistant", "user", "assistant"]
    assert items[2] == first["output"][0] and items[4] == second["output"][0]
    said = [message(item["role"], item["content"][0]["text"]) for item in items[:4]]
    assert text_of(second) == text_of(responses.create(input=said, store=False, **FOUR))
    assert [call["thread_id"] for call in wire.calls()[:2]] == [made["id"]] * 2

    added = responses.client.post(f"/v1/{named}/items", json={"items": [message("user", "Three.")]}).json()
    one = f"{named}/items/{added['data'][0]['id']}"
    assert responses.get(one) == added["data"][0]
    assert responses.client.delete(f"/v1/{one}").json()["id"] == made["id"]
    assert responses.client.get(f"/v1/{one}").status_code == 404
    assert len(responses.get(f"{named}/items")["data"]) == 5
    changed = responses.client.post(f"/v1/{named}", json={"metadata": {"c": "d"}}).json()
    assert changed == {**made, "metadata": {"c": "d"}}
    assert responses.client.delete(f"/v1/{named}").json() == {
        "id": made["id"],
        "object": "conversation.deleted",
        "deleted": True,
    }
    assert responses.client.get(f"/v1/{named}").status_code == 404
    assert responses.refused(404, conversation=made["id"])["param"] == "conversation"


def test_an_id_names_one_item_of_a_conversation(responses: Responses) -> None:
    """Two with one id were deleted together, and pages behind one of them left out what is between them."""
    own = {"id": "msg_own", "type": "message", **message("user", "One.")}
    named = f"/v1/conversations/{responses.client.post('/v1/conversations', json={'items': [own]}).json()['id']}"
    conversation = named.rpartition("/")[2]
    responses.create(input=[message("user", "Two.")], conversation=conversation, **FOUR)
    before = responses.client.get(f"{named}/items").json()["data"]
    for path, items, place in (
        (f"{named}/items", [message("user", "x"), own], "items.1.id"),
        (f"{named}/items", [before[0]], "items.0.id"),
        ("/v1/conversations", [own, own], "items.1.id"),
    ):
        refused = responses.client.post(path, json={"items": items})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, place), refused.text
    for item in (own, before[0], {"type": "item_reference", "id": before[0]["id"]}):
        refused = responses.refused(400, input=[message("user", "x"), item], conversation=conversation)
        assert refused["param"] == "input" and f"Duplicate item found with id {item['id']}" in refused["message"]
    assert responses.client.get(f"{named}/items").json()["data"] == before
    assert len(before) == 3


def test_of_many_who_delete_a_conversation_at_once_one_has(responses: Responses) -> None:
    for _ in range(5):
        named = f"/v1/conversations/{responses.client.post('/v1/conversations', json={}).json()['id']}"
        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(lambda _, named=named: responses.client.delete(named).status_code, range(8)))
        assert sorted(told) == [200] + [404] * 7


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"id": "msg_none"}, "items.1"),
        ({"type": "item_reference", "id": "msg_none"}, "items.1"),
        ({"type": "reasoning", "encrypted_content": "gAAAA"}, "items.1.encrypted_content"),
    ],
)
def test_items_that_no_response_could_read_are_refused(responses: Responses, item: Json, place: str) -> None:
    """A reference without a type was kept and said nothing; reasoning of others made every response of it 400."""
    items = {"items": [message("user", "Hi."), item]}
    made = responses.client.post("/v1/conversations", json={}).json()["id"]
    for path in ("conversations", f"conversations/{made}/items"):
        refused = responses.client.post(f"/v1/{path}", json=items)
        assert refused.status_code == 400 and error_of(refused)["param"] == place
    assert responses.client.get(f"/v1/conversations/{made}/items").json()["data"] == []


def test_a_response_in_the_background(responses: Responses, wire: Wire) -> None:
    queued = responses.create(input="What is 2 + 3?", max_output_tokens=None, background=True)
    assert (queued["status"], queued["background"], queued["output"], queued["usage"]) == ("queued", True, [], None)
    ended = responses.ended(queued["id"])
    assert (ended["status"], ended["id"]) == ("completed", queued["id"]) and text_of(ended)
    until(lambda: bool(wire.calls()), "the call is stored")
    (call,) = wire.calls()
    assert call["output"] == ended and call["exception"] is None
    again = responses.client.post(f"/v1/responses/{queued['id']}/cancel").json()
    assert again == ended
    whole = responses.create(input="What is 2 + 3?", max_output_tokens=None)
    assert text_of(whole) == text_of(ended)
    assert responses.client.post(f"/v1/responses/{whole['id']}/cancel").status_code == 400
    after = responses.create(input="And 1 more?", previous_response_id=queued["id"])
    assert after["previous_response_id"] == queued["id"]


def test_events_of_the_background_can_be_read_again(responses: Responses) -> None:
    events = responses.stream(background=True, **FOUR)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.incomplete" and events[0]["response"]["status"] == "queued"
    named = f"/v1/responses/{events[-1]['response']['id']}"
    again = events_of(responses.client.get(named, params={"stream": True}))
    assert again == events
    rest = events_of(responses.client.get(named, params={"stream": True, "starting_after": 3}))
    assert rest == events[4:]
    refused = responses.client.get(named, params={"starting_after": 3})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "starting_after")
    plain = responses.create()
    refused = responses.client.get(f"/v1/responses/{plain['id']}", params={"stream": True})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "stream")


def test_a_response_in_the_background_can_be_cancelled(responses: Responses, wire: Wire) -> None:
    running = responses.create(**LONG)
    named = f"responses/{running['id']}"
    until(lambda: responses.get(named)["status"] == "in_progress", "it is at work")
    cancelled = responses.client.post(f"/v1/{named}/cancel").json()
    assert cancelled["status"] == "cancelled" and responses.get(named) == cancelled
    (call,) = wire.calls()
    assert call["attributes"]["status"] == 499
    other = responses.create(**LONG)
    assert responses.client.delete(f"/v1/responses/{other['id']}").json()["deleted"] is True
    assert responses.client.get(f"/v1/responses/{other['id']}").status_code == 404
    until(lambda: len(wire.calls()) == 2, "the deleted one has ended too")


def test_all_who_cancel_at_once_are_told_that_it_has_ended(responses: Responses, wire: Wire) -> None:
    for _ in range(3):
        named = f"responses/{responses.create(**LONG)['id']}"
        until(lambda named=named: responses.get(named)["status"] == "in_progress", "it is at work")
        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(lambda _, named=named: responses.client.post(f"/v1/{named}/cancel").json(), range(8)))
        assert {one["status"] for one in told} == {"cancelled"}
    assert [call["attributes"]["status"] for call in wire.calls()] == [499] * 3


def test_a_client_that_goes_away_leaves_a_cancelled_response(responses: Responses) -> None:
    fields: Json = {"max_output_tokens": 20_000, "ignore_eos": True, "stream": True}
    with responses.client.stream("POST", "/v1/responses", json=responses.body(**fields)) as answer:
        lines = answer.iter_lines()
        head = next(lines) + next(lines)
        while "output_text.delta" not in next(lines):
            pass
    response_id = head.partition('"id":"')[2].partition('"')[0]
    until(lambda: responses.client.get(f"/v1/responses/{response_id}").status_code == 200, "it is stored")
    stored = responses.get(f"responses/{response_id}")
    assert stored["status"] == "cancelled" and text_of(stored)


def test_an_engine_that_dies_fails_the_response(tracing: HeddleProcess, responses: Responses) -> None:
    """In a stream and in the background; the next request starts the engine again."""
    running = responses.create(**LONG)
    fields: Json = {"max_output_tokens": 20_000, "ignore_eos": True, "stream": True}
    with responses.client.stream("POST", "/v1/responses", json=responses.body(**fields)) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        while "output_text.delta" not in text:
            text += next(pieces)
        engine_worker(tracing).kill()
        text += "".join(pieces)
    events = [json.loads(block.split("\n")[1].removeprefix("data: ")) for block in text.split("\n\n")[:-2]]
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error") and text_of(failed)
    assert events[-2]["message"] == events[-2]["error"]["message"] == failed["error"]["message"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert responses.get(f"responses/{failed['id']}") == failed
    assert responses.ended(running["id"])["status"] == "failed"
    assert responses.create(**FOUR)["output"]


def test_the_background_is_limited_and_says_what_it_ignores(responses: Responses) -> None:
    answer = responses.ask(**LONG, text={"verbosity": "low"})
    assert answer.headers["x-heddle-ignored-fields"] == "text.verbosity"
    assert answer.headers["x-heddle-policy"] == TINY
    responses.client.delete(f"/v1/responses/{answer.json()['id']}")
    strict = {"x-heddle-strict-fields": "true"}
    refused = responses.client.post("/v1/responses", json=responses.body(strange=1), headers=strict)
    assert refused.status_code == 400 and error_of(refused)["param"] == "strange"


def test_pages_show_the_conversation_of_a_response(responses: Responses, wire: Wire) -> None:
    response = responses.create(input=[message("user", "Say something.")], instructions="Be brief.", **FOUR)
    (call,) = wire.calls(include_conversation=True)
    told = json.dumps(call["conversation"])
    for text in ("Be brief.", "Say something.", text_of(response)):
        assert json.dumps(text)[1:-1] in told, told


@pytest.mark.thorough
def test_stored_responses_survive_restarts(tmp_path: Path) -> None:
    """One of the background that was cut says so, whether the server was stopped or killed; it is not run again."""
    process = HeddleProcess(tmp_path / "data", shutdown_grace=1)
    cut = {}
    for how in ("terminate", "kill", "look"):
        with process, Responses(process.url, "team/kept") as responses:
            if how == "terminate":
                first = responses.create()
            for response_id, was in cut.items():
                named = f"responses/{response_id}"
                # Where other servers share the tables, its lease has to end first.
                until(lambda named=named: responses.get(named)["status"] == "failed", f"failed after {was}", 90)
                found = responses.get(named)
                assert found["error"]["code"] == "server_error"
                assert "restarted" in found["error"]["message"]
            assert responses.get(f"responses/{first['id']}") == first
            assert responses.create(previous_response_id=first["id"])["previous_response_id"] == first["id"]
            if how != "look":
                running = responses.create(**LONG)
                named = f"responses/{running['id']}"
                until(lambda named=named: responses.get(named)["status"] == "in_progress", "it is at work")
                cut[running["id"]] = how
                getattr(process, how)()
    assert len(cut) == 2 and "Traceback" not in process.log()

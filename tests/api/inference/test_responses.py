"""/v1/responses: whole answers, events, tools, formats, reasoning, and what is refused."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.inference.served_model import TINY, TINY_FOLDER
from tests.api.bad_input_table import places, with_value
from tests.support.chat import USER, Chat
from tests.support.models import make_adapter
from tests.support.responses import CITY, Json, Responses, error_of, gathered, text_of
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

THOUGHT: Json = {
    "structured_outputs": {"grammar": 'start: <think> "so 17" </think> "Blue."'},
    "max_output_tokens": 60,
}
FOUR: Json = {"ignore_eos": True}


@pytest.fixture
def responses(server: HeddleProcess, project: str) -> Iterator[Responses]:
    """A caller of the shared server; its log must stay free of tracebacks."""
    before = server.log_path.stat().st_size
    with Responses(server.url, project) as caller:
        yield caller
    with server.log_path.open(errors="replace") as log:
        log.seek(before)
        assert "Traceback" not in log.read()


def test_a_response_says_what_a_chat_says(responses: Responses, chat: Chat) -> None:
    asked = {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "ann", "top_p": 0.5, **FOUR}
    response = responses.create(input="Say something.", **asked)
    said = [{"role": "system", "content": "Be brief."}, *USER]
    answer = chat.answer(messages=said, max_tokens=4, top_p=0.5, **FOUR)
    assert text_of(response) == answer["choices"][0]["message"]["content"]
    used, counted = response["usage"], answer["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (counted["prompt_tokens"], 4)
    assert used["total_tokens"] == counted["total_tokens"]
    assert (response["object"], response["status"], response["model"]) == ("response", "incomplete", TINY)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"} and response["completed_at"] is None
    assert {name: response[name] for name in asked if name != "ignore_eos"} == {
        name: value for name, value in asked.items() if name != "ignore_eos"
    }
    (item,) = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert item["content"][0] == {"type": "output_text", "text": text_of(response), "annotations": [], "logprobs": []}


def test_a_response_that_ends_by_itself_is_completed(responses: Responses) -> None:
    response = responses.create(input="What is 2 + 3?", max_output_tokens=None)
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)
    assert response["completed_at"] >= response["created_at"]
    assert response["output"][0]["status"] == "completed"


def test_the_order_of_events(responses: Responses) -> None:
    events = responses.stream(input="What is 2 + 3?", max_output_tokens=None)
    kinds = [event["type"] for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas >= 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert first["id"] == last["id"] and last["status"] == "completed"
    (item,) = gathered(events)
    assert item["done"] == last["output"][0] and item["text"] == text_of(last)
    assert responses.get(f"responses/{last['id']}") == last


@pytest.mark.parametrize(
    "fields",
    [
        {"max_output_tokens": 24, **FOUR},
        {"tools": [CITY], "tool_choice": "required", "max_output_tokens": 60},
        {"tools": [CITY], "tool_choice": "required", "max_output_tokens": 6},
        THOUGHT,
        {**THOUGHT, "reasoning": {"summary": "auto"}},
        {**THOUGHT, "include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "top_logprobs": 2},
    ],
    ids=["text", "call", "cut call", "thought", "summary", "included"],
)
def test_a_stream_is_the_whole_answer(responses: Responses, fields: Json) -> None:
    whole = responses.create(**fields)
    events = responses.stream(**fields)
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}"
    own = [_without_ids(item) for item in whole["output"]]
    assert [_without_ids(item) for item in last["response"]["output"]] == own
    assert [_without_ids(item["done"]) for item in gathered(events)] == own
    counted = ("input_tokens", "output_tokens", "output_tokens_details")
    assert [last["response"]["usage"][name] for name in counted] == [whole["usage"][name] for name in counted]


def _without_ids(item: Json) -> Json:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def test_reasoning_is_an_item_before_the_text(responses: Responses) -> None:
    response = responses.create(**THOUGHT)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "so 17"}]
    assert response["output"][0]["summary"] == [] and text_of(response) == "Blue."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    kinds = [event["type"] for event in responses.stream(**THOUGHT)]
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.reasoning_text.done")
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")


def test_a_summary_is_the_reasoning_itself(responses: Responses) -> None:
    fields = {**THOUGHT, "reasoning": {"summary": "detailed"}}
    item = responses.create(**fields)["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "so 17"}] and "content" not in item
    kinds = [event["type"] for event in responses.stream(**fields)]
    told = [kind for kind in kinds if "summary" in kind and not kind.endswith(".delta")]
    assert told == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    assert not any("reasoning_text" in kind for kind in kinds)


def test_reasoning_comes_back_as_it_was_given(responses: Responses) -> None:
    """As content, as a summary or as opaque text: the prompt is the same."""
    made = responses.create(**THOUGHT, include=["reasoning.encrypted_content"], store=False)["output"]
    opaque = made[0]["encrypted_content"]
    assert "so 17" not in opaque
    summary = [{"type": "summary_text", "text": "so 17"}]
    given: list[Json] = [
        made[0],
        {"type": "reasoning", "summary": [], "encrypted_content": opaque},
        {"type": "reasoning", "summary": summary},
    ]
    said = {"role": "user", "content": "And now?"}
    counts = []
    for item in given:
        answer = responses.client.post("/v1/responses/input_tokens", json={"input": [said, item, made[1], said]})
        counts.append(answer.json()["input_tokens"])
    assert len(set(counts)) == 1
    changed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert responses.refused(400, input=[said, changed])["param"] == "input.1.encrypted_content"


def test_a_function_is_called_and_its_answer_taken(responses: Responses) -> None:
    response = responses.create(tools=[CITY], tool_choice="required", max_output_tokens=60)
    assert response["status"] == "completed"
    (call,) = response["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert call["arguments"] in ('{"city": "Oslo"}', '{"city": "Lima"}')
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain"}
    asked = {"input": [{"role": "user", "content": "Weather?"}, call, result], "tools": [CITY]}
    with_text = responses.create(**asked, tool_choice="none", max_output_tokens=4, **FOUR)
    assert [item["type"] for item in with_text["output"]] == ["message"]
    parts = [{"type": "input_text", "text": "Rain"}]
    again = {**asked, "input": [asked["input"][0], call, {**result, "output": parts}]}
    assert text_of(responses.create(**again, tool_choice="none", max_output_tokens=4, **FOUR)) == text_of(with_text)


def test_the_choice_of_tools(responses: Responses) -> None:
    other = {**CITY, "name": "forecast"}
    named = responses.create(
        tools=[CITY, other], tool_choice={"type": "function", "name": "forecast"}, max_output_tokens=60
    )
    assert [item["name"] for item in named["output"]] == ["forecast"]
    assert named["tool_choice"] == {"type": "function", "name": "forecast"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "forecast"}]}
    chosen = responses.create(tools=[CITY, other], tool_choice=allowed, max_output_tokens=60, parallel_tool_calls=False)
    assert [item["name"] for item in chosen["output"]] == ["forecast"]
    assert chosen["tool_choice"] == allowed and len(chosen["tools"]) == 2
    strange = {**allowed, "tools": [{"type": "function", "name": "gone"}]}
    assert responses.refused(400, tools=[CITY], tool_choice=strange)["param"] == "tool_choice"


def test_tools_that_agents_offer_beside_their_functions(responses: Responses) -> None:
    """What Codex lists whoever serves the model is left out, and told; alone or chosen it is refused as before."""
    namespace = {"type": "namespace", "name": "n", "tools": [{**CITY, "name": "inner"}]}
    answer = responses.ask(tools=[namespace, CITY, {"type": "web_search"}], max_output_tokens=4)
    assert answer.headers["x-heddle-ignored-fields"].split(", ") == ["tools.0", "tools.2"]
    assert [tool["name"] for tool in answer.json()["tools"]] == [CITY["name"]]
    chosen = {"tools": [CITY, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}
    assert responses.refused(400, **chosen)["param"] == "tools.1.type"


def test_the_format_of_the_text(responses: Responses) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "seven", "schema": schema, "strict": True}
    response = responses.create(text={"format": form}, max_output_tokens=60)
    assert json.loads(text_of(response)) == {"n": 7} and response["text"]["format"] == {**form, "description": None}
    assert text_of(responses.create(text={"format": {"type": "json_object"}}, max_output_tokens=30)).startswith("{")
    wrong = {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}
    assert str(responses.refused(400, text={"format": wrong})["param"]).startswith("text.format")


def test_log_probabilities_are_included(responses: Responses, chat: Chat) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, **FOUR}
    part = responses.create(**asked)["output"][0]["content"][0]
    theirs = chat.choice(logprobs=True, top_logprobs=2, **FOUR)["logprobs"]["content"]
    assert part["logprobs"] == theirs and len(theirs) == 4
    events = responses.stream(**asked)
    told = [item for event in events if event["type"].endswith("text.delta") for item in event["logprobs"]]
    assert told == theirs[: len(told)] and told


def test_names_of_models(responses: Responses) -> None:
    assert responses.refused(404, model="no-such-model")["type"] == "not_found_error"
    assert responses.create(model=None)["model"] == TINY


def test_an_adapter_answers_as_in_chats(responses: Responses, chat: Chat, tmp_path: Path) -> None:
    """Whole, in a stream and in the background; the head names its version."""
    name = f"tuned-{uuid.uuid4().hex[:8]}"
    folder = make_adapter(tmp_path / "adapter", TINY_FOLDER, lora_alpha=800)
    loaded = chat.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    fields: Json = {"model": name, "max_output_tokens": 8, **FOUR}
    said = chat.content(model=name, max_tokens=8, **FOUR)
    assert said != chat.content(max_tokens=8, **FOUR)
    answer = responses.ask(**fields)
    assert (answer.json()["model"], text_of(answer.json())) == (name, said)
    assert answer.headers["x-heddle-policy"] == f"{name}@0"
    assert text_of(responses.stream(**fields)[-1]["response"]) == said
    assert text_of(responses.ended(responses.create(**fields, background=True)["id"])) == said
    assert chat.client.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [CITY, {"type": "file_search", "vector_store_ids": ["v"]}]}, "tools.1.type"),
        ({"tools": [CITY], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": "Hi"}, {"role": "nobody", "content": "Hi"}]}, "input.1.role"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input.0.arguments"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.id"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_gone"}, "previous_response_id"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"include": ["everything"]}, "include"),
        ({"background": True, "store": False}, "background"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"input": "word " * 40_000}, "input_tokens"),
        ({"tools": [{**CITY, "parameters": {"type": "nothing"}}]}, "tools.0.parameters"),
    ],
)
def test_refusals_name_the_field(responses: Responses, fields: Json, param: str) -> None:
    error = responses.refused(400, **fields)
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


def test_what_has_no_effect_is_named(responses: Responses) -> None:
    answer = responses.ask(text={"verbosity": "low"}, service_tier="flex", strange=1)
    named = answer.headers["x-heddle-ignored-fields"].split(", ")
    assert set(named) == {"text.verbosity", "service_tier", "strange"}
    assert "x-heddle-ignored-fields" not in responses.ask(text={"verbosity": "medium"}, service_tier="auto").headers


def test_the_whole_interface_fails_in_one_shape(server: HeddleProcess, responses: Responses) -> None:
    answers = [
        (400, responses.client.post("/v1/responses", content=b"{")),
        (404, responses.client.get("/v1/responses/resp_none")),
        (404, responses.client.post("/v1/responses/resp_none/cancel")),
        (404, responses.client.delete("/v1/responses/resp_none")),
        (404, responses.client.get("/v1/conversations/conv_none")),
        (405, responses.client.put("/v1/responses")),
        (422, responses.client.get("/v1/responses/resp_none/input_items", params={"limit": 0})),
    ]
    for status, answer in answers:
        assert answer.status_code == status, answer.text
        error_of(answer) if status != 405 else None


def test_too_long_a_conversation_loses_its_oldest_messages(responses: Responses) -> None:
    """With `truncation: auto` only, and never the instructions or the last message."""
    long = {"role": "user", "content": "word " * 33_000}
    kept = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Say something."}]
    asked = {"input": [long, long, *kept], "instructions": "Be brief."}
    assert responses.refused(400, **asked)["code"] == "context_length_exceeded"
    response = responses.create(**asked, truncation="auto", **FOUR)
    same = responses.create(input=kept, instructions="Be brief.", **FOUR)
    assert response["usage"]["input_tokens"] == same["usage"]["input_tokens"]
    assert response["truncation"] == "auto" and text_of(response) == text_of(same)
    assert responses.refused(400, input=[*kept, long], truncation="auto")["code"] == "context_length_exceeded"


WHOLE: Json = {
    "model": TINY,
    "input": [
        {"type": "message", "role": "user", "id": "msg_1", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "a"}],
            "content": [{"type": "reasoning_text", "text": "b"}],
            "encrypted_content": None,
        },
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]},
    ],
    "tools": [CITY],
    "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "weather"}]},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "max_output_tokens": 2,
    **dict.fromkeys(("instructions", "user", "safety_identifier", "prompt_cache_key", "service_tier"), "x"),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), 0.5),
    **dict.fromkeys(("seed", "top_logprobs", "max_tool_calls"), 1),
    **dict.fromkeys(("parallel_tool_calls", "store", "background", "stream"), False),
    **dict.fromkeys(("previous_response_id", "conversation", "truncation", "prompt", "stream_options"), None),
}
RAW = ["[]", "1e400", "null", '{"type":"x"}', '"\\u0000"', "true", "123456789012345678901234567890", '"\\ud800"', "-1"]


@pytest.mark.parametrize("raw", with_breadth(RAW, every=4))
def test_no_value_of_a_field_is_a_fault(responses: Responses, raw: str) -> None:
    """Wrong, odd and huge values in each place: an answer, or a refusal in the shape of the interface."""
    answered = 0
    for place in places(WHOLE):
        answer = responses.client.post("/v1/responses", content=with_value(WHOLE, place, raw))
        assert answer.status_code in (200, 400, 404), f"{place} = {raw}: {answer.status_code} {answer.text[:500]}"
        if answer.status_code != 200:
            error_of(answer)
        answered += answer.status_code == 200
    assert answered < len(list(places(WHOLE)))

"""The newest OpenAI SDK: plain and streamed chats, tools, structured outputs, log-probabilities, lists."""

import asyncio
import json
import os
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MODEL = "heddle-tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "Say something."}]
FIELDS: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
MORE: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The sky over a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Thing(BaseModel):
    """What a structured answer holds."""

    colour: Literal["red", "blue"]
    count: int
    tags: list[Literal["a", "b"]]


def plain(client: OpenAI) -> dict[str, Any]:
    """A whole answer, its headers, and the model list."""
    answer = client.chat.completions.create(**FIELDS, **MORE)
    raw = client.chat.completions.with_raw_response.create(**FIELDS, **MORE)
    models = list(client.models.list())
    return {
        "text": answer.choices[0].message.content,
        "again": raw.parse().choices[0].message.content,
        "finish": answer.choices[0].finish_reason,
        "usage": answer.usage.model_dump() if answer.usage else None,
        "policy": raw.headers["x-heddle-policy"],
        "retries": raw.retries_taken,
        "fingerprint": answer.system_fingerprint,
        "models": [model.id for model in models],
        "model": client.models.retrieve(MODEL).id,
        "choices": [
            choice.index
            for choice in client.chat.completions.create(**{**FIELDS, "temperature": 1}, n=3, seed=1).choices
        ],
    }


def streamed(client: OpenAI) -> dict[str, Any]:
    """The same answer as a stream, by the iterator and by the helper."""
    stream = client.chat.completions.create(**FIELDS, **MORE, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    kinds: list[str] = []
    # The helper takes an answer that was cut by its length for a failure, so this one comes to its end.
    spelled: dict[str, Any] = {"structured_outputs": {"choice": ["Hello there."]}}
    with client.chat.completions.stream(**{**FIELDS, "max_tokens": 40}, extra_body=spelled) as helper:
        for event in helper:
            kinds.append(event.type)
        final = helper.get_final_completion()
    return {
        "text": text,
        "usage": chunks[-1].usage.model_dump() if chunks[-1].usage else None,
        "kinds": sorted(set(kinds)),
        "final": final.choices[0].message.content,
        "finish": final.choices[0].finish_reason,
    }


def tools(client: OpenAI) -> dict[str, Any]:
    """A required call, its result sent back, and the same call streamed."""
    fields = {**FIELDS, "max_tokens": 80, "tools": [TOOL], "parallel_tool_calls": False}
    message = client.chat.completions.create(**fields, tool_choice="required").choices[0].message
    assert message.tool_calls
    call = message.tool_calls[0]
    result: dict[str, Any] = {"role": "tool", "tool_call_id": call.id, "content": "cloudy"}
    after = client.chat.completions.create(**{**fields, "messages": [*MESSAGES, message, result]}, tool_choice="none")
    named = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(**fields, tool_choice=named) as helper:
        done = [event for event in helper if event.type == "tool_calls.function.arguments.done"]
        final = helper.get_final_completion()
    streamed_calls = final.choices[0].message.tool_calls or []
    return {
        "name": call.function.name,
        "arguments": json.loads(call.function.arguments),
        "after": after.choices[0].message.tool_calls,
        "done": [event.name for event in done],
        "parsed": [item.function.parsed_arguments for item in streamed_calls],
        "ids": [call.id, *(item.id for item in streamed_calls)],
    }


def structured(client: OpenAI) -> dict[str, Any]:
    """`parse` with a pydantic model, whole and streamed; and what it says when the text is cut."""
    fields = {**FIELDS, "max_tokens": 120}
    parsed = client.chat.completions.parse(**fields, response_format=Thing).choices[0].message.parsed
    with client.chat.completions.stream(**fields, response_format=Thing) as helper:
        for _ in helper:
            pass
        final = helper.get_final_completion().choices[0].message.parsed
    try:
        client.chat.completions.parse(**{**fields, "max_tokens": 2}, response_format=Thing)
        cut = ""
    except openai.LengthFinishReasonError as error:
        cut = type(error).__name__
    json_object = client.chat.completions.create(
        **{**fields, "max_tokens": 200, "logit_bias": {}}, response_format={"type": "json_object"}
    )
    assert parsed is not None and final is not None
    return {
        "parsed": parsed.model_dump(),
        "final": final.model_dump(),
        "cut": cut,
        "object": json_object.choices[0].finish_reason,
    }


def logprobs(client: OpenAI) -> dict[str, Any]:
    """Log-probabilities as typed objects."""
    found = client.chat.completions.create(**FIELDS, **MORE, logprobs=True, top_logprobs=3).choices[0].logprobs
    assert found is not None and found.content is not None
    return {
        "tokens": [item.token for item in found.content],
        "bytes": [item.bytes for item in found.content],
        "top": [len(item.top_logprobs) for item in found.content],
        "best": all(item.logprob == item.top_logprobs[0].logprob for item in found.content),
    }


async def many(address: str) -> dict[str, Any]:
    """Thirty streams at once on the asynchronous client; each is the plain text."""
    async with AsyncOpenAI(base_url=address, api_key=os.environ["OPENAI_API_KEY"]) as client:

        async def one() -> str:
            stream = await client.chat.completions.create(**FIELDS, **MORE, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        return {"texts": sorted(set(await asyncio.gather(*(one() for _ in range(30)))))}


def main() -> None:
    """Run all parts and report what the SDK saw."""
    client = OpenAI(max_retries=0)
    seen = {part.__name__: part(client) for part in (plain, streamed, tools, structured, logprobs)}
    seen["many"] = asyncio.run(many(os.environ["OPENAI_BASE_URL"]))
    seen["version"] = {"openai": openai.__version__}
    print("RESULT " + json.dumps(seen), flush=True)


main()

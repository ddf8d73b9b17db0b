"""The chatting program: the unmodified OpenAI SDK against heddle's own small model; prints what it got as JSON lines.

It knows nothing of heddle but the address, and sends the project that its completions are counted for.
"""

import json
import sys
from typing import Any, Literal

from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel

MODEL = "heddle-tiny"
QUESTION = "What is 17 + 25?"
ORDER = "Make JSON with item = shoes and count = 2"
_TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "find_order",
        "description": "The state of an order",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9999}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
}


class Order(BaseModel):
    """What a structured answer holds."""

    item: Literal["shoes", "shirt", "hat"]
    count: int


def main(address: str, project: str) -> None:
    """Chat four times: plain, streamed, structured, with a tool."""
    client = OpenAI(base_url=f"{address}/v1", api_key="demo", project=project)
    chats = client.chat.completions
    plain = chats.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_completion_tokens=16
    )
    _say("plain", QUESTION, plain.choices[0].message.content, plain.usage)

    pieces, usage = [], None
    stream = chats.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Repeat: red sun blue moon"}],
        temperature=0,
        max_completion_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        usage = chunk.usage or usage
    _say(f"streamed in {len(pieces)} pieces", "Repeat: red sun blue moon", "".join(pieces), usage)

    parsed = chats.parse(
        model=MODEL, messages=[{"role": "user", "content": ORDER}], response_format=Order, temperature=0, max_tokens=64
    )
    _say("structured", ORDER, repr(parsed.choices[0].message.parsed), parsed.usage)

    question = "Where is order 417?"
    called = chats.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        tools=[_TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=64,
    )
    calls = [
        f"{call.function.name}({call.function.arguments})"
        for call in called.choices[0].message.tool_calls or ()
        if isinstance(call, ChatCompletionMessageFunctionToolCall)
    ]
    _say("with a tool", question, ", ".join(calls), called.usage)


def _say(kind: str, question: str, answer: str | None, usage: Any) -> None:
    tokens = usage.total_tokens if usage is not None else 0
    print(json.dumps({"kind": kind, "question": question, "answer": answer, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

import json
import os

from huggingface_hub import InferenceClient
from weather import (
    ASKED,
    MISSING,
    OBJECT,
    QUESTION,
    SCHEMA,
    SERVED,
    WEATHER,
    get_weather,
    refused,
    report,
    status_of,
    streamed,
)

client = InferenceClient(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
asked = [{"role": "user", "content": QUESTION}]


def chat(messages: list, **options: object) -> object:
    return client.chat.completions.create(model=SERVED, messages=messages, **options)


first = chat(asked, tools=[WEATHER]).choices[0].message
(call,) = first.tool_calls
arguments = call.function.arguments
result = get_weather(**(json.loads(arguments) if isinstance(arguments, str) else arguments))
said = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": dict(call.function)}]}
wanted = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
report(
    answer=lambda: chat(asked).choices[0].message.content,
    stream=lambda: streamed(piece.choices[0].delta.content for piece in chat(asked, stream=True) if piece.choices),
    tools=lambda: {
        "answer": chat([*asked, said, {"role": "tool", "tool_call_id": call.id, "content": result}], tools=[WEATHER])
        .choices[0]
        .message.content,
        "arguments": {"city": ASKED[0]},
    },
    structure=lambda: json.loads(
        chat([{"role": "user", "content": OBJECT}], response_format=wanted).choices[0].message.content
    ),
    error=lambda: status_of(refused(lambda: client.chat.completions.create(model=MISSING, messages=asked))),
)

"""Calls that hold conversations, as programs of many providers store them."""

import base64
import math
import random
import struct
import uuid
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import Wire

Json = dict[str, Any]

MARKDOWN = """# Plan

Here is **what happens** and `why`:

1. First step
   - nested, with a [link](https://example.com/a_(b))
2. Second step

| Model | Score |
|:------|------:|
| small | 0.81 |

```python
def add(a, b):
    return a + b
```

> A quote

![diagram](https://images.example.com/diagram.png)

<script>alert(1)</script> [bad](javascript:alert(1))
"""


def picture(width: int = 120, height: int = 90) -> str:
    """A PNG as a data URL, long enough to become a stored file."""
    noise = random.Random(1)
    rows = b"".join(b"\0" + noise.randbytes(width * 3) for _ in range(height))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def logprobs(text: str) -> Json:
    """Token probabilities of a text, each word a token."""
    words = [f"{word} " for word in text.split()]
    other = {"token": "maybe ", "logprob": math.log(0.3), "bytes": None}
    return {
        "content": [
            {
                "token": word,
                "logprob": math.log(0.4),
                "top_logprobs": [{"token": word, "logprob": math.log(0.4)}, other],
            }
            for word in words
        ]
    }


class Chats:
    """Writes calls of models into a project."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._start = datetime.now(UTC) - timedelta(hours=3)
        self._calls: list[Json] = []

    def call(self, inputs: Json, output: Any, thread: str = "", error: str = "", tokens: int = 100) -> str:
        """Add a call of two seconds, five seconds after the one before; a turn of the thread. Returns its id."""
        call_id, start = str(uuid.uuid4()), self._start + timedelta(seconds=5 * len(self._calls))
        usage = {
            "gpt-4o": {"requests": 1, "prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
        }
        self._calls.append(
            {
                "project_id": self._wire.project,
                "id": call_id,
                "trace_id": str(uuid.uuid4()),
                "op_name": "openai.chat.completions.create",
                "started_at": start.isoformat(),
                "ended_at": (start + timedelta(seconds=2)).isoformat(),
                "attributes": {"kind": "llm"},
                "inputs": inputs,
                "output": output,
                "exception": error or None,
                "summary": {"usage": usage} if tokens else {},
                "thread_id": thread or None,
                "turn_id": call_id if thread else None,
            }
        )
        return call_id

    def answered(self, thread: str, *texts: str) -> str:
        """Add a question and its answer (or answers)."""
        choices = [
            {"index": at, "message": {"role": "assistant", "content": text}} for at, text in enumerate(texts[1:])
        ]
        return self.call({"messages": [{"role": "user", "content": texts[0]}]}, {"choices": choices}, thread)

    def rich(self, thread: str) -> str:
        """Add a call with everything that a chat may hold."""
        tool = {"name": "get_weather", "description": "The weather", "parameters": {"type": "object"}}
        image = {"type": "image_url", "image_url": {"url": picture()}}
        messages = [
            {"role": "system", "content": "You are careful."},
            {"role": "user", "content": [{"type": "text", "text": "What is here, and the weather in Łódź?"}, image]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I call the tool first.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Łódź"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": '{"temperature": 21}'},
        ]
        answer = {"role": "assistant", "content": MARKDOWN}
        return self.call(
            {"model": "gpt-4o", "messages": messages, "tools": [{"type": "function", "function": tool}]},
            {"choices": [{"index": 0, "finish_reason": "stop", "message": answer, "logprobs": logprobs(MARKDOWN)}]},
            thread,
        )

    def send(self) -> None:
        """Store all that was added."""
        path = f"/v2/{self._wire.project}/calls/complete"
        for start in range(0, len(self._calls), 500):
            answer = self._wire.client.post(path, json={"batch": self._calls[start : start + 500]})
            assert answer.status_code == 200, answer.text
        self._calls = []

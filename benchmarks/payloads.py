"""Seeded calls that look like real chats of 1 to 4 KB, the load of every benchmark.

Words follow Zipf's law over 20,000 words, traces have 1 to 20 calls and every 500th has 200, ids are uuid7,
`summary.usage` names the model. The same seed gives the same calls, whatever the machine.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice
from typing import Any

Call = dict[str, Any]

EPOCH = datetime(2026, 10, 1, tzinfo=UTC)
MEAN_GAP = 2.5  # seconds between two calls: one million calls fill 29 days, below the 31 days of /calls/stats
MODELS = ("gpt-4o", "gpt-4o-mini", "claude-sonnet-4-5", "claude-haiku-4-5", "gemini-2.5-flash", "our-own-7b")
OPS = ("agent.run", "chat", "retrieve", "rerank", "plan", "tool.search", "tool.python", "summarize", "judge", "embed")
CUSTOMERS = 1000
SENTENCES = 20_000
LETTERS = "etaoinshrdlcumwfgypbvk"
START_KEYS = "project_id id op_name trace_id parent_id thread_id turn_id started_at attributes inputs"


def vocabulary(rng: random.Random, size: int = 20_000) -> list[str]:
    """Distinct pronounceable-looking words of 2 to 10 letters."""
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(rng.choices(LETTERS, k=rng.randint(2, 10)))] = None
    return list(words)


class Payloads:
    """A stream of finished calls of one project, in the shape of `POST /v2/{entity}/{project}/calls/complete`."""

    def __init__(self, project: str = "bench/chat", seed: int = 1, start: datetime = EPOCH) -> None:
        self.project = project
        self.rng = random.Random(seed)
        self.clock = start
        self.traces = 0
        words = self.words = vocabulary(self.rng)
        weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
        # Sentences are drawn once and reused: a million calls would else spend minutes on drawing words.
        self.sentences = [
            " ".join(self.rng.choices(words, cum_weights=weights, k=self.rng.randint(8, 24))) for _ in range(SENTENCES)
        ]

    def calls(self, count: int) -> Iterator[Call]:
        """`count` calls, trace after trace, in the order of their start."""
        return islice(self._endless(), count)

    def _endless(self) -> Iterator[Call]:
        while True:
            yield from self.next_trace()

    def next_trace(self) -> list[Call]:
        """The next trace by the rule of the workload: 1 to 20 calls, every 500th 200."""
        self.traces += 1
        return self.trace(200 if self.traces % 500 == 0 else self.rng.randint(1, 20))

    def trace(self, size: int) -> list[Call]:
        """One trace of `size` calls: a root and calls below it, each under one of the ten before it."""
        rng = self.rng
        trace_id = self.uuid7()
        thread = f"thread-{rng.randrange(10_000)}" if rng.random() < 0.3 else None
        calls: list[Call] = []
        for index in range(size):
            self.clock += timedelta(microseconds=round(rng.expovariate(1 / MEAN_GAP) * 1e6))
            parent = None if index == 0 else calls[rng.randrange(max(0, index - 10), index)]["id"]
            calls.append(self.call(trace_id, parent, thread, OPS[0] if index == 0 else rng.choice(OPS[1:])))
        return calls

    def call(self, trace_id: str, parent_id: str | None, thread_id: str | None, op: str) -> Call:
        """One finished call at the current time of the clock; one in 50 failed."""
        rng = self.rng
        identity = self.uuid7()
        failed = rng.random() < 0.02
        model = rng.choices(MODELS, weights=(30, 30, 15, 10, 10, 5))[0]
        ended = self.clock + timedelta(milliseconds=rng.randint(80, 9000))
        return {
            "project_id": self.project,
            "id": identity,
            "op_name": f"weave:///{self.project}/op/{op}:{op_digest(op)}",
            "trace_id": trace_id,
            "parent_id": parent_id,
            "thread_id": thread_id,
            "turn_id": identity if thread_id and parent_id is None else None,
            "started_at": stamp(self.clock),
            "ended_at": stamp(ended),
            "attributes": self.attributes(),
            "inputs": self.inputs(model),
            "output": None if failed else self.output(identity, model),
            "exception": "TimeoutError: the model did not answer in 9 s" if failed else None,
            "summary": self.summary(model, failed),
        }

    def inputs(self, model: str) -> dict[str, Any]:
        """A chat request of a system prompt and some turns, about 1.7 KB."""
        messages = [{"role": "system", "content": self.text(6)}]
        for turn in range(self.rng.randint(1, 3)):
            messages.append({"role": "user" if turn % 2 == 0 else "assistant", "content": self.text(7)})
        return {
            "model": model,
            "messages": messages,
            "temperature": self.rng.choice((0.0, 0.2, 0.7, 1.0)),
            "max_tokens": 1024,
            "customer": f"customer-{self.rng.randrange(CUSTOMERS)}",
        }

    def output(self, identity: str, model: str) -> dict[str, Any]:
        """A chat completion, about 1.1 KB."""
        message = {"role": "assistant", "content": self.text(15), "tool_calls": None, "refusal": None}
        return {
            "id": f"chatcmpl-{identity[-12:]}",
            "object": "chat.completion",
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        }

    def attributes(self) -> dict[str, Any]:
        """What the SDK adds to each call, and a user's own attribute."""
        weave = {"client_version": "0.54.0", "source": "python-sdk", "os_name": "Linux", "python": {"type": "function"}}
        return {"weave": weave, "env": self.rng.choice(("prod", "prod", "prod", "staging", "dev"))}

    def summary(self, model: str, failed: bool) -> dict[str, Any]:
        """The client's part of the summary: tokens per model, status counts."""
        prompt, completion = self.rng.randint(100, 4000), self.rng.randint(5, 800)
        usage = {
            "requests": 1,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "cache_read_input_tokens": prompt // 2 if self.rng.random() < 0.4 else 0,
            "cache_creation_input_tokens": 0,
        }
        return {"usage": {model: usage}, "status_counts": {"success": int(not failed), "error": int(failed)}}

    def text(self, sentences: int) -> str:
        """About 100 characters per sentence."""
        return ". ".join(self.rng.choices(self.sentences, k=self.rng.randint(1, sentences)))

    def uuid7(self) -> str:
        """A time-ordered uuid of the clock's moment."""
        millis = round(self.clock.timestamp() * 1000)
        tail = self.rng.getrandbits(74)
        number = millis << 80 | 7 << 76 | (tail >> 62) << 64 | 2 << 62 | tail & ((1 << 62) - 1)
        digits = f"{number:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def op_digest(op: str) -> str:
    """A digest-looking text of 43 characters, one per op."""
    return "".join(random.Random(op).choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789", k=43))


def stamp(moment: datetime) -> str:
    """The time as the SDK writes it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def start_half(call: Call) -> dict[str, Any]:
    """The body of `POST /call/start` that begins this call."""
    keys = START_KEYS.split()
    return {"start": {key: call[key] for key in keys}}


def end_half(call: Call) -> dict[str, Any]:
    """The body of `POST /call/end` that finishes this call."""
    return {"end": {key: call[key] for key in ("project_id", "id", "ended_at", "output", "exception", "summary")}}


def upsert_batch(calls: list[Call]) -> dict[str, Any]:
    """The body of `POST /call/upsert_batch` with the start and the end of each call."""
    starts = [{"mode": "start", "req": start_half(call)} for call in calls]
    return {"batch": starts + [{"mode": "end", "req": end_half(call)} for call in calls]}

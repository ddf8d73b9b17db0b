"""What heddle in front of vLLM costs: time to the first token, and throughput, against calling the server directly.

    python benchmarks/vllm_routing.py
    python benchmarks/vllm_routing.py --rate 100 --streams 64 --servers 2

The servers are look-alikes of vLLM without a model, which give tokens at a fixed rate, so that only the way is
measured. Both ways are taken in turns within one run, by the same client.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from benchmarks import support
from heddle.inference.engine.vllm.http import Client
from heddle.inference.served_model import TINY
from tests.support.server import free_port
from tests.support.vllm_server import LookAlikeProcess

GOAL_ADDED = 3.0
GOAL_RATIO = 0.95
FIRST_TOKENS = 4
FIRST_RATE = 1000.0
"""Of the server whose first tokens are timed: they come after a millisecond."""
PROMPT = list(range(30, 60))
Body = Callable[[int], bytes]


class Way:
    """One way to the tokens: where to ask, what, and how a token looks that comes."""

    def __init__(self, name: str, url: str, path: str, body: Body, mark: bytes) -> None:
        self.name = name
        self.client = Client(url, "0" * 40)
        self.path = path
        self.body = body
        self.mark = mark

    async def ask(self, tokens: int) -> tuple[float, int]:
        """Seconds to the first token, and how many came."""
        began, first, count, rest = time.perf_counter(), 0.0, 0, b""
        async with aclosing(self.client.stream("POST", self.path, self.body(tokens))) as parts:
            async for part in parts:
                rest += part
                found = rest.count(self.mark)
                first = first or (time.perf_counter() - began if found else 0.0)
                count += found
                rest = rest[-len(self.mark) + 1 :]
        if count != tokens:
            support.fail(f"{self.name}: {tokens} tokens were asked for, {count} came")
        return first, count


def directly(server: LookAlikeProcess) -> Way:
    """The request that heddle would send."""
    sampling = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "min_tokens": 0, "repetition_penalty": 1}
    sampling |= {"frequency_penalty": 0, "presence_penalty": 0}
    numbers = itertools.count()

    def body(tokens: int) -> bytes:
        fields = {"model": TINY, "prompt": PROMPT, "request_id": f"d{next(numbers)}", "max_tokens": tokens}
        fields |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "stop_token_ids": []}
        fields |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(fields | sampling).encode()

    return Way("the server directly", server.url, "/v1/completions", body, b'"token_ids":[30')


def through(heddle: support.Heddle) -> Way:
    """A chat completion of about as many prompt tokens."""
    messages = [{"role": "user", "content": "the sum of two and three is five say it again"}]

    def body(tokens: int) -> bytes:
        fields = {"model": TINY, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        return json.dumps(fields | {"temperature": 0}).encode()

    return Way("through heddle", heddle.url, "/v1/chat/completions", body, b'"content":"8')


async def first_tokens(ways: list[Way], requests: int) -> list[list[float]]:
    """Milliseconds to the first token of each way, in turns."""
    for way in ways * 5:
        await way.ask(FIRST_TOKENS)
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(requests):
        for place, way in enumerate(ways):
            found[place].append((await way.ask(FIRST_TOKENS))[0] * 1e3)
    return found


async def rate(way: Way, streams: int, tokens: int) -> float:
    """Tokens per second of so many streams at a time."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(way.ask(tokens) for _ in range(streams)))
    return sum(count for _, count in answers) / (time.perf_counter() - began)


def print_first(ways: list[Way], found: list[list[float]]) -> None:
    """The table of first tokens."""
    rows: list[list[object]] = [
        [way.name, statistics.median(values), support.percentile(values, 0.95), min(values)]
        for way, values in zip(ways, found, strict=True)
    ]
    added = statistics.median(found[1]) - statistics.median(found[0])
    rows.append([f"added (goal ≤ {GOAL_ADDED:g} at p50)", added, None, min(found[1]) - min(found[0])])
    support.print_table(f"first token of {len(found[0])} requests, ms", ["way", "p50", "p95", "least"], rows)


def print_rates(ways: list[Way], pairs: list[list[float]], streams: int) -> None:
    """The table of rates."""
    rows: list[list[object]] = [
        [way.name, statistics.median(pair[place] for pair in pairs), max(pair[place] for pair in pairs)]
        for place, way in enumerate(ways)
    ]
    ratios = [pair[1] / pair[0] for pair in pairs]
    shown = ", ".join(f"{ratio:.1%}" for ratio in ratios)
    rows.append([f"ratio: {shown} (goal ≥ {GOAL_RATIO:.0%})", f"{statistics.median(ratios):.1%}", f"{max(ratios):.1%}"])
    support.print_table(f"{streams} streams at a time, tok/s", ["way", "median", "best"], rows)


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=1, help="look-alikes behind heddle (default 1)")
    parser.add_argument("--requests", type=int, default=200, help="requests for the first token (default 200)")
    parser.add_argument("--streams", type=int, default=32, help="streams at a time (default 32)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens per stream (default 200)")
    parser.add_argument("--rate", type=float, default=40.0, help="tokens per second of one stream (default 40)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    support.print_machine()
    with support.scratch_folder() as scratch, ExitStack() as stack:

        def pair(name: str, tokens_per_second: float) -> list[Way]:
            stub = ("--stub", str(tokens_per_second))
            servers = [stack.enter_context(LookAlikeProcess(free_port(), *stub)) for _ in range(arguments.servers)]
            urls = ",".join(server.url for server in servers)
            heddle = stack.enter_context(support.Heddle(scratch / name, engine="vllm", vllm_urls=urls))
            return [directly(servers[0]), through(heddle)]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            ways = pair("first", FIRST_RATE)
            print_first(ways, runner.run(first_tokens(ways, arguments.requests)))
            ways = pair("rates", arguments.rate)
            streams, tokens = arguments.streams, arguments.tokens
            for way in ways:
                runner.run(rate(way, streams, 20))
            pairs = [[runner.run(rate(way, streams, tokens)) for way in ways] for _ in range(arguments.repeats)]
            print_rates(ways, pairs, streams)
    support.print_machine()


if __name__ == "__main__":
    main()

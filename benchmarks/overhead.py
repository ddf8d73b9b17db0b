"""What HTTP and the service cost over the bare engine: time to the first token, and throughput of 32 streams.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --model .cache/bench/models/60m --requests 20
    python benchmarks/overhead.py --interface messages
    python benchmarks/overhead.py --interface responses
    python benchmarks/overhead.py --interface embeddings --requests 200

`heddle serve` with its defaults and the bare embedded engine (each with its own worker process) get the same token ids
in turns. The client is a process of its own that counts chunks without parsing them. What counts as the first token
over HTTP is the first chunk with text; on the engine, the first event. Of embeddings it is the whole answer, beside
which the engine makes one token of the same prompt; they have no streams.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from benchmarks.inference.contender import Contender, Running, stop_on_signal
from benchmarks.inference.driver import cpu_seconds, family
from heddle.inference.served_model import find_model

STREAMS = 32
GOAL_FIRST = 2.0
GOAL_LOST = 0.10
FIRST_TOKENS = 4
KEY = "0" * 40
TEXT = "the sum of two and three is five say it again copy these letters then count them and sort the list"


class Served:
    """A real server and the client process that asks it."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        settings = {"model": arguments.model, "model_name": "bench", "engine_threads": arguments.threads}
        self.server = support.Heddle(folder, engine_device="cpu", **settings)
        self.server.start()
        self.interface = arguments.interface
        self.client = Running(Contender("client", "http", ""), threads=1)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)

    @property
    def pid(self) -> int:
        """The server's own process."""
        assert self.server.process is not None
        return self.server.process.pid

    def prompt_ids(self, text: str) -> list[int]:
        """The token ids that the server makes of a message; its prefix cache learns nothing from that."""
        body = request_body(text, 1, "ids", stream=False, return_token_ids=True)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(f"{self.server.url}/v1/chat/completions", body.encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            ids: list[int] = json.loads(answer.read())["prompt_token_ids"]
        return ids

    def streams(self, bodies: Sequence[str], clients: int) -> dict[str, Any]:
        """Figures of the client, and CPU seconds of server and worker."""
        workers = [pid for pid in family(self.pid) if pid != self.pid]
        before = cpu_seconds([self.pid]), cpu_seconds(workers)
        options = {"port": self.server.port, "clients": clients, "interface": self.interface}
        result: dict[str, Any] = self.client.ask("streams", bodies=bodies, **options)
        result["server_cpu"] = cpu_seconds([self.pid]) - before[0]
        result["worker_cpu"] = cpu_seconds(workers) - before[1]
        return result

    def ask_whole(self, path: str, body: str) -> tuple[float, float]:
        """Seconds of one answer that is no stream, and CPU seconds of the server."""
        before, began = cpu_seconds([self.pid]), time.perf_counter()
        self.connection.request(
            "POST", path, body, {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        )
        with self.connection.getresponse() as answer:
            told = answer.read()
        if answer.status != 200:
            support.fail(f"{path} answered {answer.status}: {told[:300]!r}")
        return time.perf_counter() - began, cpu_seconds([self.pid]) - before

    def close(self) -> None:
        """End both."""
        self.client.close()
        self.server.terminate()


EMBEDDINGS = "embeddings"
INTERFACES = ("chat", "completions", EMBEDDINGS, "messages", "responses")


def request_body(
    text: str,
    tokens: int,
    salt: str,
    *,
    stream: bool = True,
    interface: str = "chat",
    ids: Sequence[int] = (),
    **more: Any,
) -> str:
    """A request of exactly so many tokens, whose prompt no cache knows; `ids` are that prompt's."""
    if interface == EMBEDDINGS:
        return json.dumps({"model": "bench", "input": list(ids), "cache_salt": salt})
    body: dict[str, Any] = {
        "model": "bench",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
        "stream": stream,
    }
    if stream and interface in ("chat", "completions"):
        body["stream_options"] = {"include_usage": True}
    if interface == "responses":
        body["input"], body["max_output_tokens"] = body.pop("messages"), body.pop("max_tokens")
    if interface == "completions":
        del body["messages"]
        body["prompt"] = list(ids)
    return json.dumps(body | more)


def make_texts(count: int) -> list[str]:
    """Messages of 20 words."""
    chooser = random.Random(3)
    return [" ".join(chooser.choices(TEXT.split(), k=20)) for _ in range(count)]


def make_lengths(count: int, tokens: int, spread: float) -> list[int]:
    """Tokens of each stream. Streams of one length would end together and begin together, which no users do."""
    chooser = random.Random(4)
    return [chooser.randint(int(tokens * (1 - spread)), int(tokens * (1 + spread))) for _ in range(count)]


def first_tokens(served: Served, bare: Running, texts: Sequence[str]) -> dict[str, list[float]]:
    """Milliseconds to the first token over HTTP and on the engine, in turns; CPU milliseconds of the server."""
    figures: dict[str, list[float]] = {"http": [], "engine": [], "cpu": []}
    for number, text in enumerate(texts):
        ids = served.prompt_ids(text)
        body = request_body(text, FIRST_TOKENS, f"first-{number}", interface=served.interface, ids=ids)
        if served.interface == EMBEDDINGS:
            seconds, cpu = served.ask_whole("/v1/embeddings", body)
        else:
            result = served.streams([body], clients=1)
            seconds, cpu = result["answers"][0]["first"], result["server_cpu"]
        figures["http"].append(seconds * 1e3)
        figures["cpu"].append(cpu * 1e3)
        figures["engine"].append(bare.generate([ids], FIRST_TOKENS).first[0] * 1e3)
        time.sleep(0.01)
    return figures


def throughput(
    served: Served, bare: Running, texts: Sequence[str], ids: Sequence[Sequence[int]], lengths: Sequence[int], turn: int
) -> list[dict[str, Any]]:
    """All texts over 32 connections, and the same on the engine, whose prompts are new to its cache each turn."""
    asked = zip(texts, lengths, ids, strict=True)
    bodies = [
        request_body(text, tokens, f"load-{turn}-{number}", interface=served.interface, ids=own)
        for number, (text, tokens, own) in enumerate(asked)
    ]
    over_http = served.streams(bodies, STREAMS)
    over_http["tokens"] = sum(answer["tokens"] for answer in over_http["answers"])
    over_http["chunks"] = sum(answer["chunks"] for answer in over_http["answers"])
    if over_http["tokens"] != sum(lengths):
        support.fail(f"{sum(lengths)} tokens were asked for, {over_http['tokens']} came")
    on_engine = bare.ask("closed_loop", prompts=ids, lengths=lengths, clients=STREAMS, salt=f"load-{turn}")
    return [over_http, on_engine]


def print_first(figures: dict[str, list[float]]) -> None:
    """The table of first tokens."""
    over_http, engine, cpu = figures["http"], figures["engine"], figures["cpu"]
    rows: list[list[object]] = []
    named = (
        ("heddle serve, HTTP", over_http),
        ("bare engine", engine),
        (f"server CPU of {FIRST_TOKENS} tokens", cpu),
    )
    for name, values in named:
        rows.append([name, statistics.median(values), support.percentile(values, 0.95), min(values)])
    added = statistics.median(over_http) - statistics.median(engine)
    rows.append([f"added (goal ≤ {GOAL_FIRST:g} at p50)", added, None, min(over_http) - min(engine)])
    support.print_table(f"first token of {len(over_http)} requests, ms", ["way", "p50", "p95", "least"], rows)


def print_throughput(pairs: Sequence[Sequence[dict[str, Any]]]) -> None:
    """The table of rates, CPU seconds apart."""
    rows: list[list[object]] = []
    for place, name in enumerate(("heddle serve, HTTP streams", "bare engine")):
        runs = [pair[place] for pair in pairs]
        rates = [run["tokens"] / run["wall"] for run in runs]
        per_thousand = [
            [run[kind] / run["tokens"] * 1e6 for run in runs] for kind in ("worker_cpu", "server_cpu", "cpu")
        ]
        cpu = [statistics.median(values) for values in per_thousand]
        rows.append([name, statistics.median(rates), max(rates), *cpu, runs[0].get("chunks"), runs[0]["tokens"]])
    lost = [1 - (pair[0]["tokens"] / pair[0]["wall"]) / (pair[1]["tokens"] / pair[1]["wall"]) for pair in pairs]
    rows.append([f"lost, of each pair: {', '.join(f'{value:.1%}' for value in lost)} (goal ≤ {GOAL_LOST:.0%})"])
    rows[-1] += [f"{statistics.median(lost):.1%}"] + [None] * 6
    columns = ["way", "tok/s, median", "best", "worker µs CPU/tok", "server µs CPU/tok", "client µs CPU/tok"]
    support.print_table(f"{STREAMS} streams at a time", [*columns, "chunks", "tokens"], rows)


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="heddle-tiny", help="as `heddle serve` takes it (default heddle-tiny)")
    parser.add_argument("--interface", choices=INTERFACES, default="chat", help="which route is asked (default chat)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of both engines (default 1)")
    parser.add_argument("--requests", type=int, default=100, help="requests for the first token (default 100)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per stream on average (default 128)")
    parser.add_argument("--spread", type=float, default=0.5, help="share by which streams are longer or shorter (0.5)")
    parser.add_argument("--streams", type=int, default=128, help="streams of a load, 32 at a time (default 128)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    stop_on_signal()
    support.print_machine()
    bare = Running(Contender("bare engine", "heddle", "auto"), arguments.threads)
    with support.scratch_folder() as scratch:
        served = Served(scratch / "data", arguments)
        try:
            folder = str(find_model(arguments.model).folder)
            bare.ask("load", folder=folder, threads=arguments.threads, dtype="auto", device="cpu")
            texts = make_texts(max(arguments.requests, arguments.streams) + 8)
            first_tokens(served, bare, texts[-8:])
            print_first(first_tokens(served, bare, texts[: arguments.requests]))
            if arguments.interface == EMBEDDINGS:
                return
            load = texts[: arguments.streams]
            ids = [served.prompt_ids(text) for text in load]
            lengths = make_lengths(len(load), arguments.tokens, arguments.spread)
            turns = range(arguments.repeats)
            print_throughput([throughput(served, bare, load, ids, lengths, turn) for turn in turns])
        finally:
            served.close()
            bare.close()
    support.print_machine()


if __name__ == "__main__":
    main()

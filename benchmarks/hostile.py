"""The hostile clients of `benchmarks/abuse.py`: each attacks one server for a bounded time."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from benchmarks.load import read_answer
from tests.support import attacks
from tests.support.attacks import CHAT, MIB, chat, request

PROJECT = "bench/chat"
Seen = Counter[str]


@dataclass(frozen=True)
class Target:
    """Whom to attack, with which key, and for how many seconds at most."""

    port: int
    key: str
    seconds: float


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client."""

    name: str
    work: Callable[[Target], Awaitable[Seen]] = field(repr=False)
    quick: bool = False


def answer_of(reader: asyncio.StreamReader) -> asyncio.Task[int]:
    """The status to come; what goes wrong while nobody waits for it any more is of no interest."""
    answer = asyncio.create_task(read_answer(reader))
    answer.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return answer


async def ask(target: Target, *parts: bytes) -> str:
    """The status of one request, or what happened instead."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    except OSError as error:
        return type(error).__name__
    try:
        answer = answer_of(reader)
        for part in parts:
            if answer.done():
                break
            writer.write(part)
            await writer.drain()
        return str(await answer)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        answer.cancel()
        return "closed" if isinstance(error, OSError | EOFError) else type(error).__name__
    finally:
        writer.close()


async def all_of(target: Target, works: Iterable[Awaitable[str]]) -> Seen:
    """What all saw; those that have not ended in time count as waiting."""
    tasks = [asyncio.ensure_future(work) for work in works]
    done, pending = await asyncio.wait(tasks, timeout=target.seconds)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    seen = Counter(task.result() if task.exception() is None else type(task.exception()).__name__ for task in done)
    return seen + Counter({"waiting": len(pending)})


async def held(target: Target, begin: bytes, drip: bytes = b"") -> str:
    """One connection that says the beginning and then `drip` every second; what the server says to it."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(begin)
        answer = answer_of(reader)
        while not answer.done():
            await asyncio.wait([answer], timeout=1)
            if not answer.done() and drip:
                writer.write(drip)
                await writer.drain()
        writer.close()
        return str(answer.result())
    except (OSError, EOFError):
        return "closed"


def repeated(make: Callable[[Target], bytes], count: int = 1) -> Callable[[Target], Awaitable[Seen]]:
    """An attack of one whole request, so often at the same time."""

    async def work(target: Target) -> Seen:
        content = make(target)
        return await all_of(target, [ask(target, content) for _ in range(count)])

    return work


def holding(make: Callable[[Target], bytes], count: int, drip: bytes = b"") -> Callable[[Target], Awaitable[Seen]]:
    """An attack of connections that stay open."""

    async def work(target: Target) -> Seen:
        begin = make(target)
        return await all_of(target, [held(target, begin, drip) for _ in range(count)])

    return work


async def endless_headers(target: Target) -> Seen:
    """200 MB of headers on one connection."""
    begin, *lines = attacks.many_headers(1000, 1000)
    return await all_of(target, [ask(target, begin, *[b"".join(lines)] * 200)])


async def pipelined(target: Target) -> Seen:
    """A thousand requests on each of eight connections, sent without reading."""
    burst = request("/project/stats", {"project_id": PROJECT}, target.key)
    return await all_of(target, [ask(target, burst * 1000) for _ in range(8)])


async def churn(target: Target) -> Seen:
    """Connections that come, ask nothing and go, 32 at a time."""
    until = time.monotonic() + target.seconds - 1
    seen: Seen = Counter()

    async def come_and_go() -> str:
        while time.monotonic() < until:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", target.port)
                writer.close()
                seen["came and went"] += 1
            except OSError as error:
                seen[type(error).__name__] += 1
            await asyncio.sleep(0.02)
        return "done"

    await all_of(target, [come_and_go() for _ in range(32)])
    return seen


async def unread(target: Target) -> Seen:
    """Thirty-two clients that ask for everything and never read the answer."""
    asked = request("/calls/stream_query", {"project_id": PROJECT}, target.key)

    async def never_read() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1024)
        writer.write(asked)
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        del reader
        await asyncio.sleep(target.seconds)
        return "never read"

    return await all_of(target, [never_read() for _ in range(32)])


async def scored(target: Target, class_name: str, **settings: object) -> Seen:
    """A stored scorer of these settings, and a call that it is to score."""
    value = {"_type": class_name, "_class_name": class_name, "_bases": ["Scorer", "Object", "BaseModel"], **settings}
    stored = request("/obj/create", {"obj": {"project_id": PROJECT, "object_id": "s", "val": value}}, target.key)
    seen = await all_of(target, [ask(target, stored)])
    scorer = f"weave:///{PROJECT}/object/s:latest"
    asked = {"project_id": PROJECT, "call_ids": ["none"], "scorer_refs": [scorer]}
    return seen + await all_of(target, [ask(target, request("/calls/score", asked, target.key)) for _ in range(2)])


def scoring(class_name: str, make: Callable[[], dict[str, object]]) -> Callable[[Target], Awaitable[Seen]]:
    """An attack by a scorer."""
    return lambda target: scored(target, class_name, **make())


def asking(body: object) -> Callable[[Target], bytes]:
    """A completion with the key."""
    return lambda target: request(CHAT, body, target.key)


def exports(target: Target) -> bytes:
    """An export of all calls."""
    chosen = quote('{"project_id":"' + PROJECT + '"}')
    return attacks.head(f"/_ui/api/calls/export?format=csv&chosen={chosen}", None, target.key, "GET")


def packed(make: Callable[[], bytes], kind: str) -> Callable[[Target], bytes]:
    """A packed body to a route that reads calls."""
    return lambda target: request("/calls/stream_query", make(), target.key, Content_Encoding=kind)


def unfinished(_: Target) -> bytes:
    """A packed body without a key that waits for its last byte."""
    body = attacks.unfinished_gzip(30 * MIB)
    return attacks.head("/calls/stream_query", len(body) + 16, Content_Encoding="gzip") + body


def half_body(key: str | None) -> bytes:
    """A request whose body has only begun."""
    return attacks.head("/calls/stream_query", 1000, key) + b"{"


def attack_list() -> list[Attack]:
    """All attacks."""
    compiled = [
        Attack(
            name,
            repeated(asking(body)),
            name in ("grammar chain", "schema chain"),
        )
        for name, body in attacks.constrained()
    ]
    return [
        *compiled,
        Attack("24 unfinished gzip bodies, no key", holding(unfinished, 24), True),
        Attack("8 bodies of 30 MiB, no key", repeated(
            lambda _: request("/calls/stream_query", b" " * 30 * MIB), 8)),
        Attack("400 slow headers", holding(lambda _: b"GET /health HTTP/1.1\r\nHost: x\r\nx-a: ", 400, b"a"), True),
        Attack("400 slow bodies, no key", holding(lambda _: half_body(None), 400, b" "), True),
        Attack("400 slow bodies", holding(lambda target: half_body(target.key), 400, b" "), True),
        Attack("400 silent connections", holding(lambda _: b"", 400)),
        Attack("200 MB of headers", endless_headers),
        Attack("10,000 headers", repeated(lambda _: b"".join(attacks.many_headers(10_000)) + b"\r\n", 4)),
        Attack("scorer: regex of 2 kB", scoring("RegexMatchScorer", lambda: {
            "pattern": attacks.slow_regex()}), True),
        Attack("scorer: regex that backtracks", scoring("RegexMatchScorer", lambda: {
            "pattern": "(a+)+" * 200 + "b"})),
        Attack("scorer: schema chain", scoring("JSONSchemaScorer", lambda: {
            "json_schema": attacks.schema_chain(2000)})),
        Attack("scorer: schema of 20,000 properties", scoring("JSONSchemaScorer", lambda: {
            "json_schema": attacks.wide_schema(20_000)})),
        Attack("chat of 7.9 MB", repeated(asking(chat("word " * 1_580_000))), True),
        Attack("chat of 7.9 MB without spaces", repeated(asking(chat("a" * 7_900_000)))),
        Attack("completion of 7.9 MB", repeated(lambda target: request(
            "/v1/completions", {"model": attacks.MODEL, "prompt": "word " * 1_580_000, "max_tokens": 4}, target.key))),
        Attack("chat of 200,000 messages", repeated(asking(
            {"model": attacks.MODEL, "messages": [{"role": "user", "content": ""}] * 200_000}))),
        Attack("30 MiB with a 29-digit integer", repeated(lambda target: request(
            f"/v2/{PROJECT}/calls/complete", attacks.integer_of_29_digits(30 * MIB), target.key))),
        Attack("30 MiB of empty rows", repeated(lambda target: request(
            "/table/create", attacks.empty_rows(PROJECT, 30 * MIB), target.key))),
        Attack("query of 10,000 OR terms", repeated(lambda target: request(
            "/calls/stream_query", attacks.many_terms(PROJECT, 10_000), target.key), 4)),
        Attack("JSON nested 100,000 deep", repeated(lambda target: request(
            "/call/start", attacks.nested(100_000), target.key), 8)),
        Attack("8 gzip bombs of 256 MiB", repeated(packed(lambda: attacks.gzip_bomb(256 * MIB), "gzip"), 8)),
        Attack("8 zstd bombs of 1 GiB", repeated(packed(lambda: attacks.zstd_bomb(1024 * MIB), "zstd"), 8)),
        Attack("1,000 event streams of one key", holding(
            lambda target: attacks.head("/_ui/api/inference/live", None, target.key, "GET"), 1000)),
        Attack("8,000 pipelined requests", pipelined),
        Attack("connections that come and go", churn),
        Attack("32 clients that never read", unread),
        Attack("16 exports", repeated(exports, 16)),
    ]  # fmt: skip

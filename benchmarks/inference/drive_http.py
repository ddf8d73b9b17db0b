"""A client that costs little: streamed answers over raw connections, events counted and not parsed. Driver."""

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver
import uvloop

EVENT = b"data: {"
END = b"\r\n0\r\n\r\n"
TAIL = 1024
KEY = "0" * 40


@dataclass(frozen=True)
class Interface:
    """Where an interface is, and what its streams hold."""

    path: str
    text: re.Pattern[bytes]
    """An event with text."""
    tokens: re.Pattern[bytes]
    """The count of all tokens, at the end."""
    last: bytes
    """What every whole stream has at its end."""


INTERFACES = {
    "chat": Interface(
        "/v1/chat/completions",
        re.compile(rb'"content":\s?"[^"]'),
        re.compile(rb'"completion_tokens":\s?(\d+)'),
        b"data: [DONE]",
    ),
    "completions": Interface(
        "/v1/completions",
        re.compile(rb'"text":\s?"[^"]'),
        re.compile(rb'"completion_tokens":\s?(\d+)'),
        b"data: [DONE]",
    ),
    "messages": Interface(
        "/v1/messages",
        re.compile(rb'"type":"text_delta","text":"[^"]'),
        re.compile(rb'"output_tokens":\s?(\d+)'),
        b"event: message_stop",
    ),
    "responses": Interface(
        "/v1/responses",
        re.compile(rb'"delta":"[^"]'),
        re.compile(rb'"output_tokens":\s?(\d+)'),
        b"data: [DONE]",
    ),
}


class Answer:
    """One streamed answer as it arrives."""

    def __init__(self, number: int, interface: Interface) -> None:
        self.number = number
        self.interface = interface
        self.began = time.perf_counter()
        self.first: float | None = None
        self.tail = b""
        self.chunks = 0
        self.moments: list[float] = []

    def take(self, data: bytes) -> bool:
        """Count what came; True at the end. Only the last bytes of earlier data are looked at again."""
        now = time.perf_counter()
        found = (self.tail[1 - len(EVENT) :] + data).count(EVENT)
        self.chunks += found
        if self.first is None and self.interface.text.search(self.tail + data):
            self.first = now - self.began
        if found and self.first is not None:
            self.moments.append(now)
        self.tail = (self.tail + data)[-TAIL:]
        return self.tail.endswith(END)

    def result(self) -> dict[str, Any]:
        """The figures; RuntimeError unless the answer was a whole stream."""
        tokens = self.interface.tokens.findall(self.tail)
        if not tokens or self.interface.last not in self.tail:
            raise RuntimeError(f"not a whole stream: {self.tail[-400:]!r}")
        seconds = time.perf_counter() - self.began
        first = self.first if self.first is not None else seconds
        return {
            "first": first,
            "seconds": seconds,
            "chunks": self.chunks,
            "tokens": int(tokens[-1]),
            "moments": self.moments,
        }


class Connection(asyncio.Protocol):
    """One kept-alive connection: request, answer, next request."""

    def __init__(
        self,
        waiting: Iterator[tuple[int, bytes]],
        done: "asyncio.Future[None]",
        results: list[Any],
        interface: Interface,
    ) -> None:
        self.interface = interface
        self.waiting = waiting
        self.done = done
        self.results = results
        self.answer: Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.send()

    def send(self) -> None:
        """The next request, or the end."""
        following = next(self.waiting, None)
        if following is None:
            self.transport.close()
            return
        self.answer = Answer(following[0], self.interface)
        self.transport.write(following[1])

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        assert answer is not None
        try:
            if answer.take(data):
                self.results[answer.number] = answer.result()
                self.send()
            elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"refused: {data[:600]!r}")
        except RuntimeError as error:
            self.fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is not None or (self.answer is not None and self.results[self.answer.number] is None):
            self.fail(RuntimeError(f"the connection was lost: {error}"))
        else:
            self.done.set_result(None)

    def fail(self, error: RuntimeError) -> None:
        """End with this error."""
        if not self.done.done():
            self.done.set_exception(error)
        self.transport.abort()


def raw_request(port: int, path: str, body: str) -> bytes:
    """The bytes of one POST."""
    data = body.encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def send_all(port: int, bodies: Sequence[str], clients: int, interface: Interface) -> list[dict[str, Any]]:
    """Share the requests among the connections."""
    loop = asyncio.get_running_loop()
    results: list[Any] = [None] * len(bodies)
    waiting = iter([(number, raw_request(port, interface.path, body)) for number, body in enumerate(bodies)])
    ends: list[asyncio.Future[None]] = [loop.create_future() for _ in range(clients)]
    for end in ends:
        await loop.create_connection(lambda end=end: Connection(waiting, end, results, interface), "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*ends)
    return results


def streams(
    port: int, bodies: list[str], clients: int, moments: bool = False, interface: str = "chat"
) -> dict[str, Any]:
    """All requests over so many connections: figures of each, seconds of all, CPU seconds of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    results = uvloop.run(send_all(port, bodies, clients, INTERFACES[interface]))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    if not moments:
        for result in results:
            del result["moments"]
    return {"wall": wall, "cpu": cpu, "answers": results}


if __name__ == "__main__":
    driver.serve({"streams": streams})

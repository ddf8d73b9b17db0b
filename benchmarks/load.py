"""A light HTTP load: raw requests over kept-alive connections, driven from a process of its own.

The requests are bytes made beforehand, so that the client takes as little as possible of the cores it shares with the
server.
"""

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import uvloop

FORK = multiprocessing.get_context("fork")


@dataclass
class LoadResult:
    """What a load saw: seconds of the whole, seconds per answer in order, how often each status came."""

    wall: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    client_cpu: float = 0.0


def raw_request(method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """One HTTP/1.1 request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    given = {"Content-Type": "application/json"} | (headers or {})
    lines += [f"{name}: {value}" for name, value in given.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def drive(port: int, requests: Sequence[bytes], clients: int) -> LoadResult:
    """Send all requests over `clients` connections from another process, each as soon as its connection is free."""
    receiver, sender = FORK.Pipe(duplex=False)

    def work() -> None:
        began = time.process_time()
        result = uvloop.run(send_all(port, requests, clients))
        result.client_cpu = time.process_time() - began
        sender.send(result)

    process = FORK.Process(target=work, daemon=True)
    process.start()
    sender.close()
    try:
        result: LoadResult = receiver.recv()
    except EOFError as error:
        raise RuntimeError("the load process died; is the server still alive?") from error
    finally:
        process.join()
    return result


async def send_all(port: int, requests: Sequence[bytes], clients: int) -> LoadResult:
    """Share the requests among the connections; the order of sending is the order given."""
    result = LoadResult()
    waiting = iter(requests)
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    began = time.perf_counter()
    await asyncio.gather(*(send_some(reader, writer, waiting, result) for reader, writer in connections))
    result.wall = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return result


async def send_some(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: Iterator[bytes], result: LoadResult
) -> None:
    """One connection: request, answer, next."""
    for request in waiting:
        began = time.perf_counter()
        writer.write(request)
        status = await read_answer(reader)
        result.latencies.append(time.perf_counter() - began)
        result.statuses[status] += 1


async def read_answer(reader: asyncio.StreamReader) -> int:
    """The status of one answer, its body read to the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
    if b"content-length" in headers:
        await reader.readexactly(int(headers[b"content-length"]))
    elif headers.get(b"transfer-encoding") == b"chunked":
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    return int(lines[0].split()[1])

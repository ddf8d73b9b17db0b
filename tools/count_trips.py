"""Trips: the files of `src/heddle` that one request enters, from the parser of HTTP to the disk.

python -m tools.count_trips            # the count of each request
python -m tools.count_trips --files    # and the files
"""

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from uvicorn.server import ServerState

import heddle
from benchmarks import otlp, payloads
from heddle.app import create_app
from heddle.http.connections import Connections
from heddle.http.listen import listen
from heddle.http.server import configure
from heddle.services import open_services
from heddle.settings import Settings

ROOT = Path(heddle.__file__).parent
PROJECT = "bench/chat"
WARM, COUNTED = 3, 8
"""Requests before the first that counts, and those that count: what not all of them enter is other work."""


@dataclass(frozen=True)
class Request:
    """A request that is counted: its path, its content type, and the body of the n-th."""

    path: str
    content: str
    body: Callable[[int], bytes]


_CALLS = list(payloads.Payloads(PROJECT).calls(WARM + COUNTED))
REQUESTS = (
    Request("/otel/v1/traces", "application/x-protobuf", lambda number: otlp.export_request([_CALLS[number]])),
    Request("/call/start", "application/json", lambda number: orjson.dumps(payloads.start_half(_CALLS[number]))),
    Request("/calls/stream_query", "application/json", lambda _: orjson.dumps({"project_id": PROJECT, "limit": 5})),
)


class Counter:
    """Notes which files of heddle are entered, by any thread that begins after it was made."""

    def __init__(self) -> None:
        self._entered: set[str] | None = None
        sys.setprofile(self._note)
        threading.setprofile(self._note)

    def begin(self) -> None:
        """Note from now on."""
        self._entered = set()

    def end(self) -> set[str]:
        """What was entered since the beginning, as paths within the package."""
        entered, self._entered = self._entered or set(), None
        prefix = f"{ROOT}{os.sep}"
        return {name.removeprefix(prefix) for name in entered if name.startswith(prefix)}

    def stop(self) -> None:
        """Note nothing any more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._entered is not None:
            self._entered.add(frame.f_code.co_filename)


@asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[tuple[str, int]]:
    """A server in this process, with the address it listens on."""
    settings = Settings(data=str(folder), model="none", port=0)
    listener = listen(settings)
    async with open_services(settings) as services:
        config = configure(settings, create_app(settings, services), Connections(settings, lambda _: None))
        config.load()
        state = ServerState()
        # Without what the server does beside its requests, such as watching its event loop and running jobs.
        await services.jobs.stop()
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), sock=listener
        )
        async with server:
            yield listener.getsockname()[:2]


async def _send(address: tuple[str, int], request: Request, number: int) -> bytes:
    """The body of the answer."""
    body = request.body(number)
    reader, writer = await asyncio.open_connection(*address)
    head = (
        f"POST {request.path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"project_id: {PROJECT}",
        f"Content-Type: {request.content}",
        f"Content-Length: {len(body)}",
    )
    writer.write("\r\n".join((*head, "", "")).encode() + body)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"{request.path}: {answer[:1000]!r}")
    return answer.partition(b"\r\n\r\n")[2]


async def _publish(address: tuple[str, int], name: str, class_name: str, **fields: Any) -> str:
    """The ref of a new object version."""
    value = {"_type": class_name, "_class_name": class_name, "_bases": ["Object", "BaseModel"], "name": name, **fields}
    body = orjson.dumps({"obj": {"project_id": PROJECT, "object_id": name, "val": value}})
    made = await _send(address, Request("/obj/create", "application/json", lambda _: body), 0)
    return f"weave:///{PROJECT}/object/{name}:{orjson.loads(made)['digest']}"


async def _evaluation(address: tuple[str, int]) -> Request:
    """The request that queues the evaluation of a model by a judge."""
    dataset = await _publish(address, "rows", "Dataset", rows=[{"question": "1 + 1"}])
    settings = {"llm_model_id": "answerer", "default_params": {"response_format": "text"}}
    model = await _publish(address, "answerer", "LLMStructuredCompletionModel", **settings)
    judge = await _publish(address, "judge", "LLMAsAJudgeScorer", model=model, scoring_prompt="Is {output} right?")
    exam = await _publish(address, "exam", "Evaluation", dataset=dataset, scorers=[judge], trials=1)
    body = orjson.dumps({"project_id": PROJECT, "evaluation_ref": exam, "model_ref": model})
    return Request("/evaluations/evaluate_model", "application/json", lambda _: body)


async def _count(folder: Path, counter: Counter) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    async with _serving(folder) as address:
        for request in (*REQUESTS, await _evaluation(address)):
            for number in range(WARM + COUNTED):
                counter.begin()
                await _send(address, request, number)
                entered = counter.end()
                if number >= WARM:
                    found[request.path] = found.get(request.path, entered) & entered
    return found


def count_trips() -> dict[str, set[str]]:
    """The files that each request enters, by its path."""
    counter = Counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(_count(Path(folder), counter))
    finally:
        counter.stop()


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files")
    with_files = parser.parse_args().files
    for path, files in count_trips().items():
        print(f"{len(files):3}  {path}", *(f"       {file}" for file in sorted(files) if with_files), sep="\n")


if __name__ == "__main__":
    main()

"""A server that speaks what heddle uses of vLLM 0.32, over heddle's embedded engine: `python -m tests.support.vllm`.

Takes the arguments that heddle gives to vLLM. Tokens are those of the embedded engine, so what is asked through
`--engine vllm` can be compared with what is asked without. With `--stub N` it has no model: it answers fixed tokens, N
per second to each request; with `--script FILE` it plays the rules of a file (`tests.support.script_engine`).
"""

import argparse
import asyncio
import base64
import json
import math
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import ValidationError

from heddle.inference.engine.base import (
    AdapterRef,
    Constraint,
    EngineStats,
    RepetitionRule,
    RequestRefused,
    Sampling,
    TokenEvent,
    TokenRequest,
)
from heddle.inference.engine.local.client import LocalEngine, LocalOptions
from heddle.inference.tokenizer import Tokenizer
from heddle.ipc.child import die_with_parent
from tests.support.script_engine import ScriptEngine
from tests.support.vllm_words import CompletionRequest, choice_of, entries_of, metrics_of

VERSION = "0.32.0"
Json = dict[str, Any]


class Answering(Protocol):
    """What the look-alike needs of an engine."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]: ...
    async def load_adapter(self, adapter: AdapterRef, start: bool = True) -> None: ...
    async def unload_adapter(self, adapter_id: str) -> None: ...
    async def stats(self) -> EngineStats: ...


class StubEngine:
    """Fixed tokens at a fixed rate, with no model."""

    def __init__(self, rate: float) -> None:
        self._pause = 1 / rate

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:
        """`max_tokens` tokens, each at its time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(1, request.sampling.max_tokens + 1):
            await asyncio.sleep(began + number * self._pause - loop.time())
            is_last = number == request.sampling.max_tokens
            cached = 0 if number == 1 else None
            yield TokenEvent((30,), cached_tokens=cached, finish_reason="length" if is_last else None)

    async def load_adapter(self, adapter: AdapterRef, start: bool = True) -> None:
        """Every adapter will do."""

    async def unload_adapter(self, adapter_id: str) -> None:
        """Nothing is held."""

    async def stats(self) -> EngineStats:
        """Nothing is counted."""
        return EngineStats(state="ready")


class Refusal(Exception):
    """An error body of vLLM's."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class LookAlike:
    """One server: its model, its adapters, and the answers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model: str = arguments.served_model_name
        self.folder = Path(arguments.model)
        local = LocalEngine(
            LocalOptions(
                folder=self.folder,
                max_model_len=arguments.max_model_len,
                kv_memory=arguments.kv_cache_memory_bytes,
                scheduling=arguments.scheduling_policy,
                dtype=arguments.dtype,
                max_running=arguments.max_num_seqs,
            )
        )
        self._info = local.info
        self.engine: Answering = local
        if arguments.stub:
            self.engine = StubEngine(arguments.stub)
        elif arguments.script:
            self.engine = ScriptEngine(arguments.script, self.folder, local.info())
        self.pools = arguments.runner == "pooling"
        self.tokenizer = Tokenizer.load(self.folder)
        self.adapters: dict[str, AdapterRef] = {}

    async def pool(self, body: Json) -> bytes:
        """What a server that pools answers: the state of the last position, normalised."""
        assert body["encoding_format"] == "base64"
        asked = TokenRequest(
            id=body["request_id"],
            prompt=tuple(body["input"]),
            sampling=Sampling(max_tokens=1, seed=0),
            pools=True,
            adapter=self.adapters.get(body["model"]),
            priority=body.get("priority", 0),
            cache_salt=body.get("cache_salt"),
        )
        states = [event.state async for event in self.engine.generate(asked)]
        state = array("f", states[-1] or b"")
        return array("f", [value / math.hypot(*state) for value in state]).tobytes()

    @property
    def max_model_len(self) -> int:
        """The longest context that there is room for."""
        return self._info().max_model_len

    def request(self, body: CompletionRequest) -> TokenRequest:
        """A request as the engine takes it; raises Refusal."""
        if body.model != self.model and body.model not in self.adapters:
            raise Refusal(404, f"The model `{body.model}` does not exist.", "model")
        if len(body.prompt) + body.max_tokens > self.max_model_len:
            raise Refusal(400, f"This model's maximum context length is {self.max_model_len} tokens.", "input_tokens")
        if body.stream and body.prompt_logprobs:
            raise Refusal(400, "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        lark = body.structured_outputs and {"grammars": [{"lark_grammar": body.structured_outputs.grammar}]}
        return TokenRequest(
            id=body.request_id,
            prompt=tuple(body.prompt),
            sampling=self.sampling(body),
            adapter=self.adapters.get(body.model),
            constraint=Constraint(json.dumps(lark)) if lark else None,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )

    def sampling(self, body: CompletionRequest) -> Sampling:
        """How its tokens are chosen."""
        rule = body.repetition_detection
        return Sampling(
            max_tokens=body.max_tokens,
            seed=secrets.randbits(64) if body.seed is None else body.seed % 2**64,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(0, body.top_k),
            min_p=body.min_p,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias={int(token): bias for token, bias in body.logit_bias.items()},
            allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
            bad_words=tuple(ids for word in body.bad_words for ids in self.tokenizer.bad_word_ids(word)),
            min_tokens=body.min_tokens,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            repetition=rule and RepetitionRule(rule.max_pattern_size, rule.min_pattern_size, rule.min_count),
            logprobs=body.logprobs,
            prompt_logprobs=body.prompt_logprobs,
        )

    def head(self, body: CompletionRequest) -> Json:
        """What every answer and every chunk begins with."""
        return {
            "id": f"cmpl-{body.request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }

    def usage(self, body: CompletionRequest, tokens: int, cached: int) -> Json:
        """The usage of an answer."""
        return {
            "prompt_tokens": len(body.prompt),
            "total_tokens": len(body.prompt) + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    async def stream(self, body: CompletionRequest, events: AsyncGenerator[TokenEvent]) -> AsyncGenerator[bytes]:
        """The chunks of a stream, with the prompt in the first one."""
        head, count, cached = self.head(body), 0, 0
        async with aclosing(events):
            async for event in events:
                choice = {**choice_of(event), "prompt_token_ids": None if count else body.prompt}
                count += len(event.token_ids)
                cached = cached if event.cached_tokens is None else event.cached_tokens
                yield b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
        if body.stream_options is not None and body.stream_options.include_usage:
            usage = self.usage(body, count, cached)
            yield b"data: " + orjson.dumps({**head, "choices": [], "usage": usage}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def whole(self, body: CompletionRequest, events: AsyncGenerator[TokenEvent]) -> Json:
        """The body of an answer that is no stream."""
        async with aclosing(events):
            got = [event async for event in events]
        last = got[-1]
        event = TokenEvent(
            token_ids=tuple(token for event in got for token in event.token_ids),
            logprobs=tuple(item for event in got for item in event.logprobs),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )
        prompt = next((event.prompt_logprobs for event in got if event.prompt_logprobs is not None), None)
        choice = {**choice_of(event), "prompt_token_ids": body.prompt, "prompt_logprobs": prompt and entries_of(prompt)}
        cached = next((event.cached_tokens for event in got if event.cached_tokens is not None), 0)
        return {
            **self.head(body),
            "choices": [choice],
            "usage": self.usage(body, len(event.token_ids), cached),
            "kv_transfer_params": body.kv_transfer_params,
        }


def error(status: int, message: str, param: str | None = None) -> Response:
    """A refusal in vLLM's form."""
    body = {"error": {"message": message, "type": "BadRequestError", "param": param, "code": status}}
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")


def make_app(server: LookAlike) -> FastAPI:
    """The routes."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await server.engine.start()
        yield
        await server.engine.stop()

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(Refusal)
    async def refused(_: Request, problem: Refusal) -> Response:
        return error(problem.status, str(problem), problem.param)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.get("/version")
    async def version() -> Json:
        return {"version": VERSION}

    @app.get("/v1/models")
    async def models() -> Json:
        base = {"id": server.model, "object": "model", "parent": None, "max_model_len": server.max_model_len}
        return {"object": "list", "data": [base, *({"id": name, "parent": server.model} for name in server.adapters)]}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(metrics_of(server.model, await server.engine.stats()))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        try:
            body = CompletionRequest.model_validate_json(await request.body())
        except ValidationError as problem:
            raise Refusal(400, str(problem), str(problem.errors()[0]["loc"][0])) from None
        asked = server.request(body)
        answering = answered(server, body, asked)
        if not body.stream:
            work = asyncio.ensure_future(server.whole(body, answering))
            leaving = asyncio.ensure_future(gone(request))
            await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not work.done():
                work.cancel()
                return Response(status_code=499)
            return Response(orjson.dumps(work.result()), media_type="application/json")
        return StreamingResponse(server.stream(body, await begun(answering)), media_type="text/event-stream")

    if server.pools:

        @app.post("/v1/embeddings")
        async def embeddings(request: Request) -> Response:
            body = await request.json()
            if body["model"] != server.model and body["model"] not in server.adapters:
                raise Refusal(404, f"The model `{body['model']}` does not exist.", "model")
            state = await server.pool(body)
            data = [{"index": 0, "object": "embedding", "embedding": base64.b64encode(state).decode()}]
            return Response(orjson.dumps({"object": "list", "data": data}), media_type="application/json")

    @app.post("/v1/load_lora_adapter")
    async def load(request: Request) -> Response:
        body = await request.json()
        name, folder = body["lora_name"], Path(body["lora_path"])
        if name in server.adapters:
            return error(400, f"The lora adapter '{name}' has already been loaded.")
        if not folder.is_absolute() or not folder.is_dir():
            return error(404, f"Loading lora {name} failed: No adapter found for {folder}")
        adapter = AdapterRef(name, folder)
        try:
            await server.engine.load_adapter(adapter)
        except RequestRefused as problem:
            return error(400, f"Loading lora {name} failed: {problem}")
        server.adapters[name] = adapter
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @app.post("/v1/unload_lora_adapter")
    async def unload(request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if server.adapters.pop(name, None) is None:
            return error(404, f"The lora adapter '{name}' cannot be found.")
        await server.engine.unload_adapter(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    return app


async def answered(server: LookAlike, body: CompletionRequest, asked: TokenRequest) -> AsyncGenerator[TokenEvent]:
    """The engine's events; what it refuses is a 400."""
    events = server.engine.generate(asked)
    try:
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                yield event
    except RequestRefused as problem:
        raise Refusal(400, str(problem), problem.param) from None


async def begun(events: AsyncGenerator[TokenEvent]) -> AsyncGenerator[TokenEvent]:
    """The same events, when the first of them has come: a refusal before it is a status."""
    first = await anext(events)

    async def all_of_them() -> AsyncGenerator[TokenEvent]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return all_of_them()


async def gone(request: Request) -> None:
    """Until the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments that heddle gives to vLLM, `--stub` and `--script`; any other one ends the program."""
    parser = argparse.ArgumentParser(prog="tests.support.vllm", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--generation-config", choices=["vllm"], required=True)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true", required=True)
    parser.add_argument("--structured-outputs-config.backend", choices=["guidance"], required=True)
    parser.add_argument("--enable-lora", action="store_true", required=True)
    parser.add_argument("--max-cpu-loras", type=int)
    parser.add_argument("--max-lora-rank", type=int, choices=[64, 128, 256, 320, 512])
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=0)
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--runner", choices=["generate", "pooling"], default="generate")
    parser.add_argument("--stub", type=float, default=0.0)
    parser.add_argument("--script", type=Path)
    return parser.parse_args(words)


def main() -> None:
    """Serve until told to stop."""
    die_with_parent()
    arguments = parse()
    app = make_app(LookAlike(arguments))
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()

"""POST /completions/create and /completions/create_stream: a completion for the trace service's clients.

It runs on this server's engine or on a provider of the settings. What goes wrong there is an answer with `error`; the
call in the project's trace shows either.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field, TypeAdapter

from heddle.auth import Caller, Scope
from heddle.errors import HeddleError, InvalidRequest, Unavailable
from heddle.http.routing import (
    NdLines,
    ResponseModel,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
    json_lines,
    validate,
)
from heddle.inference.accounts import ClientGone, ProviderAccount
from heddle.inference.api.respond import run_while_connected
from heddle.inference.api.traced_request import TracedBody, TracedRequest
from heddle.inference.chat.plan import Arrival
from heddle.inference.prompt.stored_prompts import resolve_prompt
from heddle.inference.providers import LONGEST_SECONDS, Provider, ProviderClient, Targets
from heddle.inference.service import Inference, InferenceDep
from heddle.inference.tracing import Assembly
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import jsontext, refs, times
from heddle.wire.inference import Completion
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel

logger = logging.getLogger("heddle.inference")
router: APIRouter = group("Completions")

_WAITING_LINES = 16
_SECRETS = {"vertex_credentials", "extra_headers"}
_NOT_SENT = _SECRETS | {"prompt", "template_vars", "timeout", "api_version", "stream", "stream_options"}
_FOR_PROVIDERS = ("extra_headers", "functions", "function_call", "api_version", "modalities")


class CompletionsCreateRequestInputs(LazyModel):
    """A chat completion request; further fields of one are passed on."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())

    model: str
    messages: list[Any] = Field(default_factory=list)
    timeout: float | str | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[Any] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    modalities: list[Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    logit_bias: Json | None = None
    user: str | None = None
    response_format: Json | None = None
    seed: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | Json | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    extra_headers: Json | None = None
    functions: list[Any] | None = None
    function_call: str | Json | None = None
    api_version: str | None = None
    prompt: str | None = None
    template_vars: Json | None = None
    vertex_credentials: str | None = None


class CompletionsCreateReq(TracedBody):
    """Body of both routes; the call is stored under the caller's own name."""

    inputs: CompletionsCreateRequestInputs
    trace_id: str | None = Field(default=None, min_length=1, max_length=256)
    parent_id: str | None = Field(default=None, min_length=1, max_length=256)
    conversation_id: str | None = Field(default=None, min_length=1, max_length=256)
    conversation_name: str | None = Field(default=None, max_length=1024)
    source: str | None = None
    inference_route: str | None = None


class CompletionsCreateRes(ResponseModel):
    """The answer, or `{"error": text}`; the ids of the call when it was tracked."""

    response: Json
    weave_call_id: str | None = None
    span_id: str | None = None
    trace_id: str | None = None
    conversation_id: str | None = None


@router.post("/completions/create", response_model=CompletionsCreateRes)
async def completions_create(
    request: Request,
    body: CompletionsCreateReq,
    caller: Writer,
    settings: SettingsDep,
    store: StoreDep,
    inference: InferenceDep,
) -> Response:
    """Run a chat completion and store it as a call."""
    _check_request(caller, body)
    wanted = CompletionRequest(settings, store, inference, caller, body)
    response = await run_while_connected(request.receive, wanted.respond())
    return answer({"response": response, **wanted.call_ids})


@router.post("/completions/create_stream", response_class=NdLines, response_model=Json)
async def completions_create_stream(
    body: CompletionsCreateReq, caller: Writer, settings: SettingsDep, store: StoreDep, inference: InferenceDep
) -> Response:
    """The same as JSON lines: `_meta` with the ids when it is tracked, then the chunks as they come."""
    _check_request(caller, body)
    wanted = CompletionRequest(settings, store, inference, caller, body)
    await wanted.prepare()
    return StreamingResponse(wanted.lines(), media_type=NdLines.media_type)


def _check_request(caller: Caller, body: CompletionsCreateReq) -> None:
    """Raise InvalidRequest for an id that is too long, Forbidden for a stored prompt where the key does not read.

    What a model makes of a prompt tells it.
    """
    for name in ("trace_id", "parent_id", "conversation_id"):
        refs.check_id(name, getattr(body, name))
    if body.inputs.prompt:
        caller.require(Scope.READ).open(body.project_id)


_BODY: TypeAdapter[CompletionsCreateReq] = TypeAdapter(CompletionsCreateReq)


class ModelCompletions:
    """The Completions of this server."""

    def __init__(self, settings: Settings, store: Store, inference: Inference) -> None:
        self._settings = settings
        self._store = store
        self._inference = inference
        self.count: Callable[[str | None, str, str], None] | None = None
        """Counts an answer for the quotas of a key (its id) and a project, as a request of a group of routes."""

    async def check(self, model: str, caller: Caller, project: str) -> None:
        """Raise HeddleError for a model that nobody answers for, as far as can be told without asking it."""
        request = self._request({"model": model}, caller, project)
        await request.prepare()
        if request.failure is not None:
            raise request.failure
        if request.target.provider is None:
            await self._inference.resolve(request.target.model, Arrival(caller, project))

    async def create(self, inputs: Json, caller: Caller, project: str) -> Json:
        """The answer to some inputs of these routes; raises HeddleError, QuotaReached where it may not be asked for."""
        if self.count is not None:
            self.count(caller.key_id, project, "completions")
        return await self._request(inputs, caller, project).run()

    def _request(self, inputs: Json, caller: Caller, project: str) -> "CompletionRequest":
        body = validate(_BODY, {"project_id": project, "inputs": inputs, "track_llm_call": False})
        return CompletionRequest(self._settings, self._store, self._inference, caller, body, shown_elsewhere=True)


class CompletionRequest(TracedRequest):
    """One request of these routes, from its prompt to its stored call; `stream` and its options are the route's."""

    op_name = "weave.completions_create"
    kind = "llm"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        inference: Inference,
        caller: Caller,
        body: CompletionsCreateReq,
        *,
        shown_elsewhere: bool = False,
    ) -> None:
        super().__init__(settings, store, inference, caller, body)
        self._body = body
        self._traced = self.tracked or shown_elsewhere
        self.trace_id = body.trace_id or self.trace_id
        self._conversation_id = body.conversation_id or times.uuid7()
        self._request: Json = {}

    def inputs(self) -> Json:
        return self._body.inputs.model_dump(exclude_none=True, exclude=_SECRETS)

    def attributes(self) -> Json:
        return {
            "conversation": {"id": self._conversation_id, "name": self._body.conversation_name},
            "source": self._body.source,
            "inference_route": self._body.inference_route,
        }

    def trace_position(self) -> dict[str, str | None]:
        thread = self._body.conversation_id
        return {"parent_id": self._body.parent_id, "thread_id": thread, "turn_id": self.call_id if thread else None}

    @property
    def call_ids(self) -> Json:
        """The ids of the call, all null when it is not tracked."""
        known = {
            "weave_call_id": self.call_id,
            "span_id": self.call_id,
            "trace_id": self.trace_id,
            "conversation_id": self._conversation_id,
        }
        return known if self.tracked else dict.fromkeys(known)

    async def prepare(self) -> None:
        """Find out where it runs and with which messages; a failure is kept for the answer."""
        try:
            inputs = self._body.inputs
            _refuse(inputs.vertex_credentials, "vertex_credentials", "providers speak OpenAI's protocol here")
            targets = Targets(self.settings, self.tables, self.internal_project)
            target = await targets.find(inputs.model, inputs.extra_headers)
            target.check(max_tokens=inputs.max_tokens, max_completion_tokens=inputs.max_completion_tokens)
            if target.provider is None:
                for name in _FOR_PROVIDERS:
                    _refuse(getattr(inputs, name), name, "the engine of this server has no such field")
            self.target = target
            self._request = await self._build_request()
            self._seconds()
        except HeddleError as error:
            self.failure = error

    async def _build_request(self) -> Json:
        """The body of the chat completion request, with refs as the client wrote them."""
        inputs = self._body.inputs
        messages = await resolve_prompt(
            self.tables, self.caller, self.internal_project, inputs.prompt, inputs.messages, inputs.template_vars or {}
        )
        request = inputs.model_dump(exclude_none=True, exclude=_NOT_SENT)
        request |= {"model": self.target.model, "messages": messages}
        return cast(
            Json, await asyncio.to_thread(lambda: jsontext.loads(refs.convert_out(jsontext.dumps_bytes(request))))
        )

    def _seconds(self) -> float:
        given = self._body.inputs.timeout
        if given is None:
            return LONGEST_SECONDS
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise InvalidRequest(
                f"timeout must be a number of seconds above 0, got {str(given)[:100]!r}", param="timeout"
            )
        return min(seconds, LONGEST_SECONDS)

    async def run(self) -> Json:
        await self.prepare()
        if self.failure is not None:
            raise self.failure
        try:
            async with asyncio.timeout(self._seconds()):
                target = self.target
                if target.provider is None:
                    return cast(Json, await self._engine({"stream": False}))
                async with ProviderAccount(self.accounts, self._completion(target.provider, stream=False)) as account:
                    account.response = await self._client(target.provider).complete(self._request)
                    return account.response
        except TimeoutError:
            raise self._too_late() from None

    async def _chunks(self) -> AsyncGenerator[Json]:
        target = self.target
        if target.provider is None:
            made = await self._engine({"stream": True, "stream_options": {"include_usage": True}})
            async with contextlib.aclosing(cast(AsyncGenerator[Json], made)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with (
            ProviderAccount(self.accounts, self._completion(target.provider, stream=True)) as account,
            contextlib.aclosing(self._client(target.provider).stream(self._request)) as chunks,
        ):
            async for chunk in chunks:
                account.note_chunk(chunk)
                yield chunk

    async def _engine(self, extra: Json) -> Json | AsyncIterator[Json]:
        request, project = {**self._request, **extra}, self._body.project_id
        return await self.inference.complete(request, self.caller, project, traced=self._traced)

    def _completion(self, provider: Provider, stream: bool) -> Completion:
        user = self._body.inputs.user
        return self.completion(provider, self._request, stream=stream, user=user, traced=self._traced)

    def _client(self, provider: Provider) -> ProviderClient:
        return ProviderClient(provider, self.target.headers, self._seconds(), self._body.inputs.api_version)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the stream; the call is stored before the stream ends."""
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_LINES)
        # In a task of its own: when the client goes away that is cancelled once, and ends in order.
        task = self.accounts.spawn(self._send_lines(waiting))
        try:
            while (text := await waiting.get()) is not None:
                yield text
        finally:
            task.cancel()

    async def _send_lines(self, waiting: "asyncio.Queue[bytes | None]") -> None:
        said = Assembly()
        try:
            if self.tracked:
                await waiting.put(json_lines([{"_meta": self.call_ids}]))
            if self.failure is None:
                try:
                    async with asyncio.timeout(self._seconds()), contextlib.aclosing(self._chunks()) as made:
                        async for chunk in made:
                            said.add(chunk)
                            await waiting.put(json_lines([chunk]))
                except TimeoutError:
                    self.failure = self._too_late()
                except HeddleError as error:
                    self.failure = error
            await self.store(self.error_body() if said.is_empty else said.answer())
        except asyncio.CancelledError:
            self.failure = ClientGone("The client went away")
            await self.store(said.answer())
            raise
        except HeddleError as error:
            self.failure = error
        except Exception:  # a fault of ours: the log gets the traceback, the client a line
            logger.exception("a stream of completions failed")
            self.failure = HeddleError("Internal server error")
        if self.failure is not None:
            await waiting.put(json_lines([self.error_body()]))
        await waiting.put(None)

    def _too_late(self) -> HeddleError:
        return Unavailable(f"No answer within the timeout of {self._seconds():g} s")


def _refuse(value: Any, name: str, why: str) -> None:
    if value is not None and not (name == "modalities" and value == ["text"]):
        raise InvalidRequest(f"{name} cannot be used: {why}", param=name)

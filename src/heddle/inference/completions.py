"""POST /completions/create and /completions/create_stream: a completion for the trace service's clients.

It runs on this server's engine or on a provider of the settings. What goes wrong there is an answer with `error`; the
call in the project's trace shows either.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from heddle.auth import Caller, Scope
from heddle.errors import ExtraMissing, HeddleError, InvalidRequest, Unavailable, ValidationFailed
from heddle.http import NdLines, SettingsDep, StoreDep, Writer, answer, group, line
from heddle.inference.chat import while_connected
from heddle.inference.completion_models import CompletionsCreateReq, CompletionsCreateRes
from heddle.inference.dependencies import InferenceDep
from heddle.inference.prompt_objects import with_prompt
from heddle.inference.provider_account import ProviderAccount
from heddle.inference.providers import LONGEST_SECONDS, Provider, ProviderClient
from heddle.inference.service import Inference
from heddle.inference.targets import Target, Targets
from heddle.inference.tracing import assemble, usage_entry
from heddle.request_body import validated
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import ids, jsontext, refs
from heddle.wire.inference import Completion, InferenceCall
from heddle.wire.jsontypes import Json

logger = logging.getLogger("heddle.inference")
router: APIRouter = group("Completions")

_BODY: TypeAdapter[CompletionsCreateReq] = TypeAdapter(CompletionsCreateReq)
OP_NAME = "weave.completions_create"
_GONE = "The client went away"
_WAITING_LINES = 16
_SECRETS = {"vertex_credentials", "extra_headers"}
_NOT_SENT = _SECRETS | {"prompt", "template_vars", "timeout", "api_version", "stream", "stream_options"}
_FOR_PROVIDERS = ("extra_headers", "functions", "function_call", "api_version", "modalities")


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
    _check_scope(caller, body)
    work = CompletionWork(settings, store, inference, caller, body)
    response = await while_connected(request, work.whole())
    return answer({"response": response, **work.shown})


@router.post("/completions/create_stream", response_class=NdLines, response_model=Json)
async def completions_create_stream(
    body: CompletionsCreateReq, caller: Writer, settings: SettingsDep, store: StoreDep, inference: InferenceDep
) -> Response:
    """The same as JSON lines: `_meta` with the ids when it is tracked, then the chunks as they come."""
    _check_scope(caller, body)
    work = CompletionWork(settings, store, inference, caller, body)
    await work.prepare()
    return StreamingResponse(work.lines(), media_type=NdLines.media_type)


def _check_scope(caller: Caller, body: CompletionsCreateReq) -> None:
    """Raise Forbidden for a stored prompt where the key does not read: what a model makes of a prompt tells it."""
    if body.inputs.prompt:
        caller.require(Scope.READ)


class ModelCompletions:
    """The Completions of this server."""

    def __init__(self, settings: Settings, store: Store, inference: Inference) -> None:
        self._settings = settings
        self._store = store
        self._inference = inference

    async def create(self, inputs: Json, caller: Caller, project: str) -> Json:
        """The answer to some inputs of these routes; raises HeddleError."""
        body = validated(_BODY, {"project_id": project, "inputs": inputs, "track_llm_call": False})
        return await CompletionWork(
            self._settings, self._store, self._inference, caller, body, shown_elsewhere=True
        ).answered()


class CompletionWork:
    """One request of these routes, from its prompt to its stored call; `stream` and its options are the route's."""

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
        self._settings, self._store, self._inference = settings, store, inference
        self._caller, self._body = caller, body
        self._project = caller.open(body.project_id)
        self._accounts = inference.accounts
        self._tracked = body.track_llm_call is not False
        self._shown_elsewhere = shown_elsewhere
        self._call_id, self._trace_id = ids.uuid7(), body.trace_id or ids.uuid7()
        self._conversation_id = body.conversation_id or ids.uuid7()
        self._started_at = datetime.now(UTC)
        self._target = Target(body.inputs.model)
        self._request: Json = {}
        self._failure: HeddleError | None = None

    @property
    def shown(self) -> Json:
        """The ids of the call, all null when it is not tracked."""
        call_id = self._call_id if self._tracked else None
        return {
            "weave_call_id": call_id,
            "span_id": call_id,
            "trace_id": self._trace_id if self._tracked else None,
            "conversation_id": self._conversation_id if self._tracked else None,
        }

    async def prepare(self) -> None:
        """Find out where it runs and with which messages; a failure is kept for the answer."""
        try:
            self._target = await self._find()
            self._request = await self._built()
            self._seconds()
        except HeddleError as error:
            self._failure = error

    async def _find(self) -> Target:
        inputs = self._body.inputs
        _refuse(inputs.vertex_credentials, "vertex_credentials", "providers speak OpenAI's protocol here")
        targets = Targets(self._settings, self._store, self._project)
        target = await targets.find(inputs.model, inputs.extra_headers)
        target.check(max_tokens=inputs.max_tokens, max_completion_tokens=inputs.max_completion_tokens)
        if target.provider is None:
            for name in _FOR_PROVIDERS:
                _refuse(getattr(inputs, name), name, "the engine of this server has no such field")
        return target

    async def _built(self) -> Json:
        """The body of the chat completion request, with refs as the client wrote them."""
        inputs = self._body.inputs
        messages = await with_prompt(
            self._store, self._caller, self._project, inputs.prompt, inputs.messages, inputs.template_vars or {}
        )
        request = inputs.model_dump(exclude_none=True, exclude=_NOT_SENT)
        request |= {"model": self._target.model, "messages": messages}
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
            shown = str(given)[:100]
            raise InvalidRequest(f"timeout must be a number of seconds above 0, got {shown!r}", param="timeout")
        return min(seconds, LONGEST_SECONDS)

    async def whole(self) -> Json:
        """The answer, `{"error": text}` when there is none; the call is stored by then."""
        try:
            response = await self._answer()
        except asyncio.CancelledError:
            self._failure = HeddleError(_GONE)
            await self.store(self._refusal())
            raise
        await self.store(response)
        return response

    async def _answer(self) -> Json:
        await self.prepare()
        if self._failure is None:
            try:
                async with asyncio.timeout(self._seconds()):
                    return await self._complete()
            except TimeoutError:
                self._failure = self._too_late()
            except HeddleError as error:
                self._failure = error
        if isinstance(self._failure, ExtraMissing):
            raise self._failure
        return self._refusal()

    async def answered(self) -> Json:
        """The answer for a caller who shows it himself; raises HeddleError instead of answering with an error."""
        await self.prepare()
        if self._failure is not None:
            raise self._failure
        try:
            async with asyncio.timeout(self._seconds()):
                return await self._complete()
        except TimeoutError:
            raise self._too_late() from None

    async def _complete(self) -> Json:
        target = self._target
        if target.provider is None:
            return cast(Json, await self._engine({"stream": False}))
        async with ProviderAccount(self._accounts, self._record(target.provider, False)) as account:
            account.response = await self._client(target.provider).complete(self._request)
            return account.response

    async def _chunks(self) -> AsyncGenerator[Json]:
        target = self._target
        if target.provider is None:
            made = await self._engine({"stream": True, "stream_options": {"include_usage": True}})
            async with contextlib.aclosing(cast(AsyncGenerator[Json], made)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with (
            ProviderAccount(self._accounts, self._record(target.provider, True)) as account,
            contextlib.aclosing(self._client(target.provider).stream(self._request)) as chunks,
        ):
            async for chunk in chunks:
                account.arrived(chunk)
                yield chunk

    async def _engine(self, extra: Json) -> Json | AsyncIterator[Json]:
        request, project = {**self._request, **extra}, self._body.project_id
        traced = self._tracked or self._shown_elsewhere
        return await self._inference.complete(request, self._caller, project, traced=traced)

    def _client(self, provider: Provider) -> ProviderClient:
        return ProviderClient(provider, self._target.headers, self._seconds(), self._body.inputs.api_version)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the stream; the call is stored before the stream ends."""
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_LINES)
        # In a task of its own: when the client goes away that is cancelled once, and ends in order.
        task = self._accounts.spawn(self._pump(waiting))
        try:
            while (text := await waiting.get()) is not None:
                yield text
        finally:
            task.cancel()

    async def _pump(self, waiting: "asyncio.Queue[bytes | None]") -> None:
        chunks: list[Json] = []
        try:
            if self._tracked:
                await waiting.put(line({"_meta": self.shown}))
            if self._failure is None:
                await self._forward(chunks, waiting)
            await self.store(assemble(chunks) if chunks else self._refusal())
        except asyncio.CancelledError:
            self._failure = HeddleError(_GONE)
            await self.store(assemble(chunks))
            raise
        except HeddleError as error:
            self._failure = error
        except Exception:  # a fault of ours: the log gets the traceback, the client a line
            logger.exception("a stream of completions failed")
            self._failure = HeddleError("Internal server error")
        if self._failure is not None:
            await waiting.put(line(self._refusal()))
        await waiting.put(None)

    async def _forward(self, chunks: list[Json], waiting: "asyncio.Queue[bytes | None]") -> None:
        try:
            async with asyncio.timeout(self._seconds()), contextlib.aclosing(self._chunks()) as made:
                async for chunk in made:
                    chunks.append(chunk)
                    await waiting.put(line(chunk))
        except TimeoutError:
            self._failure = self._too_late()
        except HeddleError as error:
            self._failure = error

    def _too_late(self) -> HeddleError:
        return Unavailable(f"No answer within the timeout of {self._seconds():g} s")

    def _refusal(self) -> Json:
        return {"error": told(self._failure) if self._failure is not None else "The stream was empty"}

    async def store(self, response: Json) -> None:
        """Keep the call, when it is tracked; raises HeddleError when it cannot be."""
        if not self._tracked or self._accounts.sink is None:
            return
        body, target = self._body, self._target
        attributes = {
            "kind": "llm",
            "model": target.model,
            "provider": target.provider.name if target.provider is not None else None,
            "conversation": {"id": self._conversation_id, "name": body.conversation_name},
            "source": body.source,
            "inference_route": body.inference_route,
        }
        await self._accounts.sink.store(
            InferenceCall(
                caller=self._caller,
                project=body.project_id,
                op_name=OP_NAME,
                id=self._call_id,
                trace_id=self._trace_id,
                parent_id=body.parent_id,
                thread_id=body.conversation_id,
                turn_id=self._call_id if body.conversation_id else None,
                started_at=self._started_at,
                ended_at=datetime.now(UTC),
                inputs=body.inputs.model_dump(exclude_none=True, exclude=_SECRETS),
                output=response,
                exception=told(self._failure) if self._failure is not None else None,
                attributes={key: value for key, value in attributes.items() if value is not None},
                usage=usage_entry(target.model, response),
            )
        )

    def _record(self, provider: Provider, stream: bool) -> Completion:
        return Completion(
            request_id=self._call_id,
            caller=self._caller,
            project=self._body.project_id,
            model=self._body.inputs.model,
            served=self._target.model,
            base=f"provider:{provider.name}",
            started_at=self._started_at,
            request=self._request,
            stream=stream,
            user=self._body.inputs.user,
            traced=self._tracked or self._shown_elsewhere,
        )


def told(failure: HeddleError) -> str:
    """The text of a failure; one of validation names the places."""
    if not isinstance(failure, ValidationFailed):
        return failure.reason
    return "; ".join(f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in failure.detail)


def _refuse(value: Any, name: str, why: str) -> None:
    if value is not None and not (name == "modalities" and value == ["text"]):
        raise InvalidRequest(f"{name} cannot be used: {why}", param=name)

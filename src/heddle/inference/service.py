"""Inference as one service of the server: its model, its adapters, its engine, and the way of a completion."""

import asyncio
import contextlib
import importlib.util
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends

from heddle.errors import Busy, HeddleError, InvalidRequest, NotFound, Unavailable
from heddle.extras import install_command
from heddle.http.routing import Service, off_loop
from heddle.inference.accounts import Accounts, Ticket, failure_of
from heddle.inference.adapters import Adapters, Address, Version
from heddle.inference.chat.fields import refuse_ignored
from heddle.inference.chat.generation import Generation
from heddle.inference.chat.plan import Arrival, NamedModel, Plan, plan_completion
from heddle.inference.chat.response import CHAT
from heddle.inference.chat.wire import ParsedRequest, Wire, count_tokens
from heddle.inference.engine.base import Engine, EngineFailed
from heddle.inference.prompt.template import ContextExceeded
from heddle.inference.served_model import (
    ModelLoader,
    ModelSource,
    ServedModel,
    check_settings,
    find_model,
    named_adapters,
)
from heddle.settings import Settings
from heddle.store.control.coordination import Changes
from heddle.store.control.inference import Adapters as AdapterRows
from heddle.wire.inference import Completion
from heddle.wire.jsontypes import Json

_FRONT = ("tokenizers", "jinja2", "llguidance")
_NEEDED = {"local": ("inference", (*_FRONT, "torch", "safetensors")), "vllm": ("vllm", _FRONT)}
"""The extra of each engine, and the packages that it brings."""

MakeEngine = Callable[[Settings, ModelSource], Engine]


@dataclass(slots=True)
class Running:
    """A completion at work: its interface, its plan, its tokens, and the account that it is on."""

    wire: Wire
    parsed: ParsedRequest
    plan: Plan
    policy: str
    generation: Generation
    ticket: Ticket
    record: Completion
    ending: "asyncio.Task[None] | None" = None
    """What aborts it and settles its account, from the moment it ends."""


_FEW_TOKENS = 500
_UNKNOWN_MANY = 2**63
_ROOM_SHARE = 4
"""What part of the context a shortened prompt leaves for the answer, where that wants so much."""
logger = logging.getLogger("heddle.inference")


class Inference:
    """Answers completions of every interface; made with the server, loads when it is first needed."""

    def __init__(
        self,
        settings: Settings,
        table: AdapterRows,
        accounts: Accounts,
        make_engine: MakeEngine,
        changes: Changes | None = None,
    ) -> None:
        self._settings = settings
        self._make_engine = make_engine
        self.accounts = accounts
        self.adapters = Adapters(table, Path(settings.data), changes)
        self._model: ServedModel | None = None
        self._opening = asyncio.Lock()
        self._loading = ModelLoader(self._load, waits_for_engine=settings.engine != "local")
        self._extra, packages = _NEEDED[settings.engine]
        self.missing = [name for name in packages if importlib.util.find_spec(name) is None]

    async def start(self) -> None:
        """Begin to load in the background where the settings say so; raises HeddleError for what never could."""
        if self.is_off:
            return
        await asyncio.to_thread(check_settings, self._settings)
        if self._loads_at_start or self._settings.adapters != "none":
            self._loading.start()

    async def stop(self) -> None:
        """End what runs and give the engine's memory back."""
        await self._loading.stop()
        if self._model is not None:
            await self._model.engine.stop()
        await self.accounts.drain()

    @property
    def is_off(self) -> bool:
        """True when no model is served here."""
        return bool(self.missing) or self._settings.model == "none"

    @property
    def _loads_at_start(self) -> bool:
        """Servers of vLLM take a minute or more, which nobody should wait for with a request."""
        return self._settings.model_load == "start" or self._settings.engine == "vllm"

    @property
    def problem(self) -> str | None:
        """Why the server is not ready yet, as far as the model goes."""
        return self._loading.problem if self._loads_at_start and not self.is_off else None

    async def _load(self) -> None:
        """The model, the adapters of the settings, and the engine where it starts with the server."""
        model = await self.model()
        for address, folder in named_adapters(self._settings):
            if not await self.adapters.holds(address, folder):
                await self.add_adapter(address, folder, "settings", next_step=True)
        if self._loads_at_start:
            await model.engine.start()

    async def model(self) -> ServedModel:
        """The served model, its small files read; raises Unavailable when there is none."""
        if self.missing:
            command = install_command(self._extra)
            raise Unavailable(f"Chat completions require an extra that is not installed: {command}", retry_after=60)
        if self._settings.model == "none":
            raise Unavailable("This server does not serve a model; start it with --model", retry_after=60)
        if self._model is None:
            async with self._opening:
                if self._model is None:
                    model = await asyncio.to_thread(self._open)
                    await self.adapters.open(model.source.name)
                    self._model = model
        return self._model

    def _open(self) -> ServedModel:
        found = find_model(self._settings.model, self._settings.model_name)
        model = ServedModel.open(found, self._make_engine(self._settings, found))
        from heddle.inference.prompt.render import prepare

        for template in model.tokenizer.chat_templates.values():
            prepare(template)
        return model

    def engines(self) -> dict[str, Engine]:
        """The engine by the name of its base model; empty before the model was first asked for."""
        return {self._model.source.name: self._model.engine} if self._model is not None else {}

    async def resolve(self, name: str | None, arrival: Arrival) -> NamedModel:
        """The model and the adapter behind a name; raises NotFound."""
        model = await self.model()
        if name is None or name == model.source.name:
            return NamedModel(model, model.source.name, None)
        await self.follow()
        address = Address.parse(name)
        found = self.adapters.find(address, arrival.caller, arrival.project) if address is not None else None
        if found is not None:
            return NamedModel(model, name, found)
        folder = self.adapters.without_files(address, arrival.caller) if address is not None else None
        if folder is not None:
            raise Unavailable(
                f"The files of `{name[:200]}` are missing: {folder} was not found in this server's data folder, "
                "which all servers must share"
            )
        raise NotFound(f"The model `{name[:200]}` does not exist.", param="model")

    async def follow(self) -> None:
        """Take over the adapters that other servers added or took away until now."""
        await self.unload(await self.adapters.look())

    async def unload(self, versions: Iterable[Version]) -> None:
        """Let the engine forget versions that are not offered any more."""
        for version in versions:
            for engine in self.engines().values():
                with contextlib.suppress(EngineFailed):  # an engine that died holds nothing
                    await engine.unload_adapter(version.ref.id)

    async def begin(self, wire: Wire, body: Any, arrival: Arrival) -> Running:
        """Check a request, admit it and wait for its first tokens; raises HeddleError, and then nothing runs."""
        while True:
            running = await self.admit(wire, body, arrival)
            try:
                await self.begin_generation(running)
                return running
            except InvalidRequest:
                if not await self.means_another(running.parsed.chat.model, arrival, running.policy):
                    raise

    async def means_another(self, name: str | None, arrival: Arrival, policy: str) -> bool:
        """Whether a name means something else by now than this policy, which may be deleted; raises NotFound."""
        return (await self.resolve(name, arrival)).policy != policy

    async def admit(self, wire: Wire, body: Any, arrival: Arrival) -> Running:
        """Check a request and give it its place among those that run; raises HeddleError. It has to begin or to end."""
        parsed = await off_loop(arrival.size, lambda: wire.read(body))
        try:
            return await self._admit(wire, parsed, body, arrival)
        except InvalidRequest as error:
            raise wire.rename(error, parsed) from None

    async def _admit(self, wire: Wire, parsed: ParsedRequest, body: Any, arrival: Arrival) -> Running:
        request = parsed.chat
        named = await self.resolve(request.model, arrival)
        model = named.model
        laid_out = await self._plan(parsed, wire, arrival, named)
        if self.is_strict(arrival):
            refuse_ignored(laid_out.ignored, body)
        before = model.info.max_model_len
        await self.start_engine(model)
        if model.info.max_model_len < before:
            laid_out = await self._plan(parsed, wire, arrival, named)
        prompt_tokens = sum(len(prompt.prompt_token_ids) for prompt in laid_out.facts)
        record = arrival.record(
            named,
            body,
            request_id=laid_out.answer.shape.id,
            op_name=wire.op_name,
            thread_id=parsed.thread_id or arrival.session,
            user=request.user,
            stream=bool(request.stream),
            prompt_tokens=prompt_tokens,
        )
        generation = Generation(model.engine, laid_out.requests, laid_out.choices, laid_out.facts)
        wanted = laid_out.max_tokens
        ticket = await self.accounts.admit(arrival.caller, arrival.project, record.served, prompt_tokens, wanted)
        return Running(wire, parsed, laid_out, named.policy, generation, ticket, record)

    async def _plan(self, parsed: ParsedRequest, wire: Wire, arrival: Arrival, named: NamedModel) -> Plan:
        """The plan of a request; one that may be shortened loses as few of its oldest messages as leaves room."""
        chat = parsed.chat
        asked = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
        asked = _UNKNOWN_MANY if asked is None else asked

        async def attempt(dropped: int) -> Plan | None:
            shorter = parsed if parsed.shorten is None or not dropped else parsed.shorten(dropped)
            try:
                laid_out = await plan_completion(shorter, wire, arrival, named)
            except ContextExceeded:
                if parsed.shorten is None or dropped == parsed.most_dropped:
                    raise
                return None
            has_room = laid_out.max_tokens >= min(named.model.info.max_model_len // _ROOM_SHARE, asked)
            return laid_out if parsed.shorten is None or has_room or dropped == parsed.most_dropped else None

        found = await attempt(0)
        if found is not None:
            return found
        low, high = 1, parsed.most_dropped
        while low < high:
            middle = (low + high) // 2
            laid_out = await attempt(middle)
            found, low, high = (found, middle + 1, high) if laid_out is None else (laid_out, low, middle)
        found = found or await attempt(high)
        assert found is not None
        return found

    async def begin_generation(self, running: Running) -> None:
        """Wait for the first tokens; raises HeddleError, and then the request has ended."""
        try:
            await running.generation.begin()
        except (InvalidRequest, Busy) as error:
            await self.release(running)
            raise running.wire.rename(error, running.parsed) if isinstance(error, InvalidRequest) else error from None
        except BaseException as error:
            await self.end(running, error)
            raise

    def is_strict(self, arrival: Arrival) -> bool:
        """Whether a field without effect is refused."""
        return self._settings.strict_fields == "on" if arrival.strict_fields is None else arrival.strict_fields

    async def start_engine(self, model: ServedModel) -> None:
        """Wait until the engine has loaded; raises EngineFailed."""
        await model.engine.start()
        self._loading.succeeded()

    async def count_prompt(self, wire: Wire, body: Any, arrival: Arrival) -> int:
        """How many tokens the prompt of a request has; nothing runs, and nothing is counted. Raises HeddleError."""
        parsed = await off_loop(arrival.size, lambda: wire.read(body))
        named = await self.resolve(parsed.chat.model, arrival)
        try:
            laid_out = await self._plan(parsed, wire, arrival, named)
        except InvalidRequest as error:
            raise wire.rename(error, parsed) from None
        return sum(len(prompt.prompt_token_ids) for prompt in laid_out.facts)

    async def complete(
        self, body: Mapping[str, Any], caller: Any, project: str | None, *, traced: bool = False
    ) -> Json | AsyncIterator[Json]:
        """Answer a chat completion without HTTP: the body of the answer, or its chunks when it asks for a stream."""
        running = await self.begin(CHAT, dict(body), Arrival(caller, project, traced=traced))
        return self.chunks(running) if running.plan.wants_stream else await self.whole(running)

    async def whole(self, running: Running) -> Json:
        """The rest of a completion, and its body."""
        try:
            await running.generation.finish()
            body = await _body(running)
        except BaseException as error:
            await self.end(running, error)
            raise
        await self.end(running, body=body)
        return body

    async def chunks(self, running: Running) -> AsyncGenerator[Json]:
        """The events of a stream, one by one."""
        async with contextlib.aclosing(self.stream(running)) as several:
            async for events in several:
                for event in events:
                    yield event

    async def stream(self, running: Running, *, is_open: bool = False) -> AsyncGenerator[list[Json]]:
        """The events of a stream, together those that are there at the same moment; `is_open` leaves the first out.

        Raises HeddleError in the middle when the engine fails.
        """
        answer = running.plan.answer
        try:
            if not is_open:
                yield answer.opening()
            async for index, deltas in running.generation.steps():
                news = [event for delta in deltas for event in answer.delta(index, delta)]
                if news:
                    yield news
        except BaseException as error:
            await self.end(running, error)
            raise
        # What is acknowledged is counted: the account is settled before the last words.
        await self.end(running)
        last = answer.closing()
        if last:
            yield last

    async def end(self, running: Running, error: BaseException | None = None, body: Json | None = None) -> None:
        """Abort what still runs and settle the account, once, however the completion ended; all callers wait for that.

        It goes on where the waiting request is cancelled. Raises HeddleError to the first caller when the answer cannot
        be stored, unless there is an error already.
        """
        if running.ending is None:
            running.ending = self.accounts.spawn(self._settle(running, error, body))
            await asyncio.shield(running.ending)
        else:
            await asyncio.wait((running.ending,))

    async def release(self, running: Running) -> None:
        """Let go of a completion before anything was generated; nothing is counted."""
        running.ending = self.accounts.spawn(self._let_go(running))
        await asyncio.shield(running.ending)

    async def _let_go(self, running: Running) -> None:
        await running.generation.close()
        await running.ticket.release()

    async def _settle(self, running: Running, error: BaseException | None, body: Json | None) -> None:
        await running.generation.close()
        record, counts = running.record, count_tokens(running.plan.facts, running.plan.choices)
        record.completion_tokens = counts.output
        record.reasoning_tokens = counts.reasoning
        record.cached_tokens = counts.cached
        record.first_token_seconds = running.generation.first_token_seconds
        record.seconds = time.perf_counter() - running.generation.started
        if error is not None:
            failure = running.plan.answer.error = failure_of(error)
            record.status, record.error = failure.status, failure.reason
        record.response = await _body(running) if body is None else body
        keep = running.parsed.keep
        keeping = None if keep is None else self.accounts.spawn(keep(record.response))
        await running.ticket.close(record)
        if keeping is None:
            return
        try:
            await asyncio.shield(keeping)
        except HeddleError as problem:
            if record.error is None:
                raise
            logger.warning("the answer %s was not stored: %s", record.request_id, problem.reason)

    async def add_adapter(self, address: Address, folder: Path, user: str, next_step: bool) -> Version:
        """Make a PEFT folder the newest version of a name, ready in the engine; raises InvalidRequest."""
        model = await self.model()
        if not address.entity and address.name == model.source.name:
            raise InvalidRequest(f"{address.name!r} is the name of the base model", param="lora_name")
        async with self.adapters.adding(address, folder, model.source.name, user, next_step) as version:
            await model.engine.load_adapter(version.ref)
        return version

    async def remove_adapter(self, address: Address, user: str) -> list[Version]:
        """Forget an adapter; running requests end with it. Raises NotFound."""
        await self.model()
        removed = await self.adapters.remove(address, user)
        await self.unload(removed)
        for version in removed:
            await self.adapters.discard(version)
        return removed


async def _body(running: Running) -> Json:
    """The body of the answer; one that tells of many tokens is made off the event loop."""
    counts = count_tokens(running.plan.facts, running.plan.choices)
    make = running.plan.answer.body
    return make() if counts.prompt + counts.output <= _FEW_TOKENS else await asyncio.to_thread(make)


InferenceDep = Annotated[Inference, Depends(Service("inference"))]

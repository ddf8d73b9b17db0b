"""Inference as one service of the server: its model, its adapters, its engine, and the way of a completion."""

import asyncio
import contextlib
import importlib.util
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heddle.errors import Busy, HeddleError, InvalidRequest, NotFound, Unavailable
from heddle.inference.adapters.address import Address
from heddle.inference.adapters.registry import Adapters, Version
from heddle.inference.chat import request as fields
from heddle.inference.chat.generation import Generation
from heddle.inference.chat.plan import Arrival, Plan, plan
from heddle.inference.chat.response import Chunks, completion
from heddle.inference.engine.base import Engine, EngineBusy, EngineFailed, RequestRefused, as_answer
from heddle.inference.limits.accounts import Accounts, Ticket
from heddle.inference.models import source
from heddle.inference.models.loading import Loading
from heddle.inference.models.served_model import ServedModel
from heddle.inference.models.source import ModelSource
from heddle.request_body import OFF_LOOP_BYTES
from heddle.settings import Settings
from heddle.store.control.adapters import Adapters as AdapterRows
from heddle.store.control.changes import Changes
from heddle.wire.inference import Completion
from heddle.wire.jsontypes import Json

_FRONT = ("tokenizers", "jinja2", "llguidance")
_NEEDED = {"local": ("inference", (*_FRONT, "torch", "safetensors")), "vllm": ("vllm", _FRONT)}
"""The extra of each engine, and the packages that it brings."""

MakeEngine = Callable[[Settings, ModelSource], Engine]


@dataclass(slots=True)
class Running:
    """A completion at work: its plan, its tokens, and the account that it is on."""

    plan: Plan
    policy: str
    generation: Generation
    ticket: Ticket
    record: Completion
    ended: bool = False


_FEW_TOKENS = 500


class Inference:
    """Answers chat completions; made with the server, loads when it is first needed."""

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
        self._loading = Loading(self._load, waits_for_engine=settings.engine != "local")
        extra, packages = _NEEDED[settings.engine]
        self.missing = [name for name in packages if importlib.util.find_spec(name) is None]
        self._install = f"pip install 'heddle[{extra}]'"

    async def start(self) -> None:
        """Begin to load in the background where the settings say so."""
        if self.is_off:
            return
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
        for pair in self._settings.adapters.split(",") if self._settings.adapters != "none" else ():
            await self._offer(pair)
        if self._loads_at_start:
            await model.engine.start()

    async def _offer(self, pair: str) -> None:
        """Make an adapter of the settings a version, unless its newest one holds the same files."""
        name, _, folder = pair.strip().partition("=")
        address = Address.parse(name)
        if address is None or not folder:
            raise InvalidRequest(f"adapters: {pair!r} is not name=folder")
        if not await self.adapters.holds(address, Path(folder)):
            await self.add_adapter(address, Path(folder), "settings", next_step=True)

    async def model(self) -> ServedModel:
        """The served model, its small files read; raises Unavailable when there is none."""
        if self.missing:
            raise Unavailable(f"Chat completions need an extra that is not installed: {self._install}", retry_after=60)
        if self._settings.model == "none":
            raise Unavailable("This server serves no model; start it with --model", retry_after=60)
        if self._model is None:
            async with self._opening:
                if self._model is None:
                    model = await asyncio.to_thread(self._open)
                    await self.adapters.open(model.source.name)
                    self._model = model
        return self._model

    def _open(self) -> ServedModel:
        found = source.find(self._settings.model, self._settings.model_name)
        model = ServedModel.open(found, self._make_engine(self._settings, found))
        from heddle.inference.prompt.render import prepare

        for template in model.tokenizer.chat_templates.values():
            prepare(template)
        return model

    def engines(self) -> dict[str, Engine]:
        """The engine by the name of its base model; empty before the model was first asked for."""
        return {self._model.source.name: self._model.engine} if self._model is not None else {}

    async def resolve(self, name: str | None, arrival: Arrival) -> tuple[str, Version | None]:
        """The name to show and the adapter behind it, None for the base model; raises NotFound."""
        model = await self.model()
        if name is None or name == model.source.name:
            return model.source.name, None
        await self.follow()
        address = Address.parse(name)
        found = self.adapters.find(address, arrival.caller, arrival.project) if address is not None else None
        if found is not None:
            return name, found
        folder = self.adapters.without_files(address, arrival.caller) if address is not None else None
        if folder is not None:
            raise Unavailable(
                f"The files of `{name[:200]}` are missing: there is no {folder} in this server's data folder, "
                "which all servers share"
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

    async def begin(self, body: Any, arrival: Arrival) -> Running:
        """Check a request, admit it and wait for its first tokens; raises HeddleError, and then nothing runs."""
        is_short = 0 < arrival.size <= OFF_LOOP_BYTES
        request = fields.parse(body) if is_short else await asyncio.to_thread(fields.parse, body)
        shown, version = await self.resolve(request.model, arrival)
        model = await self.model()
        laid_out = await plan(request, arrival, model, shown, version)
        if await self._became_shorter(model):
            laid_out = await plan(request, arrival, model, shown, version)
        prompt_tokens = len(laid_out.facts.prompt_token_ids)
        record = Completion(
            request_id=laid_out.shape.id,
            caller=arrival.caller,
            project=arrival.project,
            model=shown,
            served=version.name if version is not None else model.source.name,
            policy=model.policy(version),
            base=model.source.name,
            user=request.user,
            started_at=datetime.now(UTC),
            request=body,
            stream=bool(request.stream),
            prompt_tokens=prompt_tokens,
            traced=arrival.traced,
        )
        wanted = laid_out.max_tokens * len(laid_out.requests)
        generation = Generation(model.engine, laid_out.requests, laid_out.choices, laid_out.facts)
        ticket = await self.accounts.admit(arrival.caller, arrival.project, record.served, prompt_tokens, wanted)
        running = Running(laid_out, model.policy(version), generation, ticket, record)
        try:
            await generation.begin()
        except (InvalidRequest, Busy):
            await generation.close()
            await ticket.release()
            raise
        except BaseException as error:
            await self.end(running, error)
            raise
        return running

    async def _became_shorter(self, model: ServedModel) -> bool:
        """Start the engine, if that has not been done; True when its memory holds a shorter context than was said."""
        before = model.info.max_model_len
        try:
            await model.engine.start()
        except EngineFailed as error:
            raise as_answer(error) from error
        self._loading.succeeded()
        return model.info.max_model_len < before

    async def complete(
        self, body: Mapping[str, Any], caller: Any, project: str | None, *, traced: bool = False
    ) -> Json | AsyncIterator[Json]:
        """Answer a request without HTTP: the body of the answer, or its chunks when it asks for a stream."""
        running = await self.begin(dict(body), Arrival(caller, project, traced=traced))
        return self.chunks(running) if running.plan.wants_stream else await self.whole(running)

    async def whole(self, running: Running) -> Json:
        """The rest of a completion, and its body."""
        try:
            await running.generation.finish()
        except BaseException as error:
            await self.end(running, error)
            raise
        body = await _completion(running)
        await self.end(running, body=body)
        return body

    async def chunks(self, running: Running) -> AsyncGenerator[Json]:
        """The chunks of a stream, one by one."""
        async with contextlib.aclosing(self.stream(running)) as several:
            async for chunks in several:
                for chunk in chunks:
                    yield chunk

    async def stream(self, running: Running) -> AsyncGenerator[list[Json]]:
        """The chunks of a stream, together those that are there at the same moment.

        Raises HeddleError in the middle when the engine fails.
        """
        made = Chunks(running.plan.shape, running.plan.facts, running.plan.choices)
        try:
            yield list(made.opening())
            async for index, deltas in running.generation.steps():
                news = [chunk for delta in deltas if (chunk := made.delta(index, delta)) is not None]
                if news:
                    yield news
        except BaseException as error:
            await self.end(running, error)
            raise
        # What is acknowledged is counted: the account is settled before the last words.
        await self.end(running)
        last = made.closing()
        if last is not None:
            yield [last]

    async def end(self, running: Running, error: BaseException | None = None, body: Json | None = None) -> None:
        """Abort what still runs and settle the account; once, however the completion ended."""
        if running.ended:
            return
        running.ended = True
        await running.generation.close()
        record, choices = running.record, running.plan.choices
        record.completion_tokens = sum(choice.completion_tokens for choice in choices)
        record.reasoning_tokens = sum(choice.reasoning_tokens for choice in choices)
        record.cached_tokens = running.plan.facts.cached_tokens
        record.first_token_seconds = running.generation.first_token_seconds
        record.seconds = time.perf_counter() - running.generation.started
        record.response = await _completion(running) if body is None else body
        if isinstance(error, HeddleError):
            record.status, record.error = error.status, error.reason
        elif isinstance(error, GeneratorExit | asyncio.CancelledError):
            record.status, record.error = 499, "The client went away"
        elif error is not None:
            record.status, record.error = 500, "Internal server error"
        await running.ticket.close(record)

    async def add_adapter(self, address: Address, folder: Path, user: str, next_step: bool) -> Version:
        """Make a PEFT folder the newest version of a name, ready in the engine; raises InvalidRequest."""
        model = await self.model()
        if not address.entity and address.name == model.source.name:
            raise InvalidRequest(f"{address.name!r} is the base model's own name", param="lora_name")
        async with self.adapters.adding(address, folder, model.source.name, user, next_step) as version:
            try:
                await model.engine.load_adapter(version.ref)
            except (EngineFailed, EngineBusy, RequestRefused) as error:
                raise as_answer(error) from error
        return version

    async def remove_adapter(self, address: Address, user: str) -> list[Version]:
        """Forget an adapter; running requests end with it. Raises NotFound."""
        await self.model()
        removed = await self.adapters.remove(address, user)
        await self.unload(removed)
        for version in removed:
            await self.adapters.discard(version)
        return removed


async def _completion(running: Running) -> Json:
    """The body of the answer; one that tells of many tokens is made off the event loop."""
    laid_out = running.plan
    tokens = len(laid_out.facts.prompt_token_ids) + sum(choice.completion_tokens for choice in laid_out.choices)
    if tokens <= _FEW_TOKENS:
        return completion(laid_out.shape, laid_out.facts, laid_out.choices)
    return await asyncio.to_thread(completion, laid_out.shape, laid_out.facts, laid_out.choices)

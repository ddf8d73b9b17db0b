"""The trace side of inference: completions stored as calls, and the prices of their tokens."""

import asyncio
from typing import Any, cast

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.write import CallWrites
from heddle.trace.prices import PricedUsage, Tokens, default_prices
from heddle.wire import jsontext, refs, times
from heddle.wire.inference import CostOf, InferenceCall, ModelPrice


class InferenceCalls:
    """A CompletionSink that stores calls as /calls/complete does, so that refs, files, sizes and usage all work."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    async def store(self, call: InferenceCall) -> None:
        """Store a whole call; raises HeddleError when it cannot be stored."""
        writes = LenientWrites(self._settings, self._store, cast(Caller, call.caller), call.project)
        body = _body(call)
        await writes.complete(await asyncio.to_thread(lambda: jsontext.dumps_bytes({"batch": [body]})))


class LenientWrites(CallWrites):
    """The same writes, for texts that a model or its user made: what only looks like a ref is kept as text."""

    def _parse(self, body: bytes) -> object:
        value = jsontext.loads(body)
        return lenient(value, self._caller) if b"weave" in body else value


def lenient(value: Any, caller: Caller) -> Any:
    """The value with refs in internal form; what only looks like a ref stays text."""
    if isinstance(value, dict):
        return {key: lenient(item, caller) for key, item in value.items()}
    if isinstance(value, list):
        return [lenient(item, caller) for item in value]
    if not isinstance(value, str) or not value.startswith((refs.EXTERNAL, refs.INTERNAL)):
        return value
    try:
        return refs.convert_in(value, caller.may_read)
    except InvalidRequest:
        return value if value.startswith(refs.EXTERNAL) else f"{refs.PRIVATE}{value[len(refs.INTERNAL) :]}"


def _body(call: InferenceCall) -> dict[str, Any]:
    return {
        "project_id": call.project,
        "id": call.id,
        "trace_id": call.trace_id,
        "parent_id": call.parent_id,
        "thread_id": call.thread_id,
        "turn_id": call.turn_id,
        "op_name": call.op_name,
        "display_name": call.display_name,
        "started_at": call.started_at.isoformat(),
        "ended_at": call.ended_at.isoformat(),
        "attributes": call.attributes,
        "inputs": call.inputs,
        "output": call.output,
        "exception": call.exception,
        "summary": {"usage": call.usage} if call.usage else {},
    }


class InferencePrices:
    """What tokens cost in a project, by its own prices and the default ones."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(self, project: str) -> CostOf:
        """The prices of a project (internal id; empty: the default prices)."""
        own = await self._store.costs.project_rows(project) if project else {}
        prices = default_prices()

        def cost(
            model: str,
            at: int,
            *,
            requests: int,
            prompt_tokens: int,
            completion_tokens: int,
            cached_tokens: int,
            created_tokens: int = 0,
        ) -> float | None:
            price = prices.pick(own, model, at)
            if price is None:
                return None
            total = prompt_tokens + completion_tokens
            tokens = Tokens(requests, prompt_tokens, completion_tokens, total, cached_tokens, created_tokens)
            return PricedUsage.of(tokens, price).total

        return cost

    async def changes(self, project: str) -> list[int]:
        """The instants at which the price of some model changes in a project (internal id), in order."""
        return default_prices().changes(await self._store.costs.project_rows(project) if project else {})

    def of_provider(self, provider: str) -> list[ModelPrice]:
        """The newest default price of every model of a provider, by name."""
        return [
            ModelPrice(
                model=row.llm_id,
                since=times.to_iso(row.effective_date)[:10],
                prompt=row.prompt_token_cost,
                completion=row.completion_token_cost,
                cache_read=row.cache_read_input_token_cost,
                cache_creation=row.cache_creation_input_token_cost,
            )
            for row in default_prices().of_provider(provider)
        ]

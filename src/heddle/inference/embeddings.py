"""Embeddings: the state of a model at the last token of a text, divided by its length.

This is what vLLM makes of a causal model that it converts for embedding (`--runner pooling`): the last position after
the last norm, normalised in float32.
"""

import asyncio
import base64
import contextlib
import math
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Literal

from heddle import aio
from heddle.errors import Busy, InvalidRequest
from heddle.http.routing import off_loop
from heddle.inference.accounts import Ticket, failure_of
from heddle.inference.chat.fields import Integer, Part, Texts, refuse_ignored, split_texts, unknown_fields
from heddle.inference.chat.plan import Arrival
from heddle.inference.chat.request import known_ids, parse_fields
from heddle.inference.engine.base import Engine, EngineFailed, RequestRefused, Sampling, TokenRequest
from heddle.inference.prompt.template import context_exceeded
from heddle.inference.served_model import ServedModel
from heddle.inference.service import Inference
from heddle.wire import times
from heddle.wire.inference import Completion
from heddle.wire.jsontypes import Json

MOST_INPUTS = 2048
AT_ONCE = 64
"""Texts of one request that the engine works on at the same time."""
_OWN_IDS = (
    "Token ids must come from the served model's tokenizer (/tokenize); send strings instead (LangChain's "
    "OpenAIEmbeddings: "
    "check_embedding_ctx_length=False)"
)
_LEAST_LENGTH = 1e-12
_FLOAT_BYTES = 4


class EmbeddingRequest(Part):
    """The body of `POST /v1/embeddings`."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Integer | None = None
    user: str | None = None
    add_special_tokens: bool | None = True
    truncate_prompt_tokens: Integer | None = None
    priority: Integer | None = 0
    request_id: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """An answer, and what belongs into its headers."""

    body: Json
    size: int
    """Bytes of the vectors."""
    policy: str
    ignored: tuple[str, ...]
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class _Pooled:
    state: "array[float]"
    cached_tokens: int


async def create_embeddings(inference: Inference, body: Any, arrival: Arrival) -> Embedded:
    """Answer a request; raises HeddleError."""
    request = await off_loop(arrival.size, lambda: parse_fields(EmbeddingRequest, body))
    ignored = tuple(unknown_fields(EmbeddingRequest, body))
    if inference.is_strict(arrival):
        refuse_ignored(ignored, body)
    named = await inference.resolve(request.model, arrival)
    model, _, version = named
    await inference.start_engine(model)
    given = split_texts(request.input)
    if len(given) > MOST_INPUTS:
        raise InvalidRequest(f"input has {len(given)} entries, at most {MOST_INPUTS} are allowed.", param="input")
    inputs = await off_loop(arrival.size, lambda: [_read_input(text, request, model) for text in given])
    _check_dimensions(request.dimensions, model.source.config)
    name = arrival.choose_id(request.request_id)
    priority, salt = arrival.choose_priority(request.priority, model.info), arrival.salt_cache(request.cache_salt)
    requests = [
        TokenRequest(
            id=f"{name}-{index}",
            prompt=tokens,
            sampling=Sampling(max_tokens=1, seed=0),
            pools=True,
            adapter=version.ref if version is not None else None,
            priority=priority,
            cache_salt=salt,
        )
        for index, tokens in enumerate(inputs)
    ]
    counted = sum(map(len, inputs))
    more = {"request_id": f"embd-{name}", "op_name": "heddle.embeddings", "user": request.user}
    record = arrival.record(named, body, prompt_tokens=counted, **more)
    ticket = await inference.accounts.admit(arrival.caller, arrival.project, record.served, counted, 0)
    started = time.perf_counter()
    try:
        pooled = await _pool_all(model.engine, requests)
        size = sum(len(item.state) for item in pooled) * _FLOAT_BYTES
        answer = await off_loop(size, lambda: _answer(request, record, pooled))
    except (InvalidRequest, Busy) as error:
        await ticket.release()
        is_refused = isinstance(error, InvalidRequest)
        if is_refused and await inference.means_another(request.model, arrival, named.policy):
            return await create_embeddings(inference, body, arrival)
        raise
    except BaseException as error:
        record.seconds = time.perf_counter() - started
        failure = failure_of(error)
        record.status, record.error = failure.status, failure.reason
        await ticket.close(record)
        raise
    record.seconds = time.perf_counter() - started
    record.cached_tokens = sum(item.cached_tokens for item in pooled)
    size_of_each = request.dimensions or len(pooled[0].state)
    shown = [{"index": index, "object": "embedding", "dimensions": size_of_each} for index in range(len(pooled))]
    record.response = {**answer, "data": shown}
    await ticket.close(record)
    return Embedded(answer, size, named.policy, ignored, ticket)


def _read_input(given: str | tuple[int, ...], request: EmbeddingRequest, model: ServedModel) -> tuple[int, ...]:
    limit, tokenizer, most = model.info.max_model_len, model.tokenizer, request.truncate_prompt_tokens
    if most is not None and (most < -1 or most == 0 or most > limit):
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or from 1 to {limit}, got {most}.", param="truncate_prompt_tokens"
        )
    if isinstance(given, str):
        if most is None and tokenizer.exceeds(given, limit):
            raise context_exceeded(limit)
        text = given if most is None else given[: limit * tokenizer.longest_token]
        given = tuple(tokenizer.encode(text, request.add_special_tokens is not False))
    try:
        given = known_ids("input", given, model.info.vocab_size)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error.reason}. {_OWN_IDS}", param=error.param) from None
    if most is not None:
        given = given[: limit if most == -1 else most]
    if len(given) > limit:
        raise context_exceeded(limit, len(given))
    if not given:
        raise InvalidRequest("input must not be empty", param="input")
    return given


def _check_dimensions(wanted: int | None, config: Json) -> None:
    """Refuse sizes that the vector does not have, or for which the model says it was not trained."""
    if wanted is None:
        return
    size, trained = config.get("hidden_size"), config.get("matryoshka_dimensions")
    most = size if isinstance(size, int) else 1 << 20
    if not 1 <= wanted <= most:
        raise InvalidRequest(f"dimensions must be from 1 to {most}, got {wanted}.", param="dimensions")
    if isinstance(trained, list) and wanted not in trained:
        known = ", ".join(map(str, trained))
        raise InvalidRequest(f"dimensions: this model has {known}, got {wanted}.", param="dimensions")


async def _pool_all(engine: Engine, requests: Sequence[TokenRequest]) -> list[_Pooled]:
    """The pooled state of each request; the first failure ends them all."""
    found: dict[int, _Pooled] = {}
    waiting = iter(enumerate(requests))

    async def work() -> None:
        for index, request in waiting:
            found[index] = await _pool(engine, request)

    tasks = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(requests)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        await aio.cancel(*tasks)
    return [found[index] for index in range(len(requests))]


async def _pool(engine: Engine, request: TokenRequest) -> _Pooled:
    async with contextlib.aclosing(engine.generate(request)) as events:  # type: ignore[type-var]
        async for event in events:
            if event.state is not None:
                return _Pooled(array("f", event.state), event.cached_tokens or 0)
    raise EngineFailed("the engine returned no embedding")


def _answer(request: EmbeddingRequest, record: Completion, pooled: Sequence[_Pooled]) -> Json:
    return {
        "id": record.request_id,
        "object": "list",
        "created": times.now() // 1_000_000,
        "model": record.model,
        "data": list(_entries(request, pooled)),
        "usage": {
            "prompt_tokens": record.prompt_tokens,
            "total_tokens": record.prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": sum(item.cached_tokens for item in pooled)},
        },
    }


def _entries(request: EmbeddingRequest, pooled: Sequence[_Pooled]) -> Iterator[Json]:
    for index, item in enumerate(pooled):
        state = item.state[: request.dimensions]
        length = max(math.sqrt(sum(map(mul, state, state))), _LEAST_LENGTH)
        if not math.isfinite(length):
            raise RequestRefused("the embedding has values that are not finite numbers")
        vector = array("f", [value / length for value in state])
        is_text = request.encoding_format == "base64"
        shown = base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist()
        yield {"index": index, "object": "embedding", "embedding": shown}

"""The trainable models of this server, as training sees them: its checkpoints become versions that answer."""

import logging
from dataclasses import replace
from typing import Any

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.inference.adapters import Address, artifact_name
from heddle.inference.chat.plan import Arrival
from heddle.inference.chat.text_completions import TextWire
from heddle.inference.chat.wire import ParsedRequest
from heddle.inference.engine.base import AdapterRef, EngineBusy, EngineFailed, PromptChoices
from heddle.inference.service import Inference
from heddle.store.control.inference import AdapterKey, AdapterRow
from heddle.wire import times
from heddle.wire.jsontypes import Json
from heddle.wire.training import BaseModel, Drawn, Draws, PolicyName

logger = logging.getLogger("heddle.inference")


class Policies:
    """A PolicyHost on the engine of this server."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def base_models(self) -> list[BaseModel]:
        """The served model; empty where none is served. Raises Unavailable when it cannot be opened."""
        if self._inference.is_off:
            return []
        model = await self._inference.model()
        source, info = model.source, model.info
        return [
            BaseModel(source.name, source.folder, source.digest, info.vocab_size, info.max_model_len, source.config)
        ]

    async def offer(self, policy: PolicyName, step: int, base_model: str, folder: str, user: str) -> None:
        """Make a step addressable from its PEFT folder, which stays where it is (relative to the data folder).

        Returns when it is listed, and loaded where the engine runs; an engine that dies meanwhile loads it when it is
        asked for. Raises InvalidRequest when the folder does not fit or the name cannot be an address, Conflict when
        the step is another one's, Unavailable where no model is served.
        """
        model = await self._inference.model()
        if base_model != model.source.name:
            raise InvalidRequest(
                f"The base model {base_model!r} is not served; the served model is {model.source.name!r}"
            )
        if Address.parse(artifact_name(*_key(policy))) != Address(policy.name, None, policy.entity, policy.project):
            raise InvalidRequest(f"Invalid model name {policy.name!r}: the characters '/', ':' and '@' are not allowed")

        async def ready(ref: AdapterRef) -> None:
            try:
                await model.engine.load_adapter(ref, start=False)
            except (EngineFailed, EngineBusy) as error:
                logger.warning("%s will be loaded on its first request: %s", ref.id, error)

        row = AdapterRow(*_key(policy), step, base_model, folder, times.now(), user)
        await self._inference.adapters.offer(row, ready)

    async def point(self, policy: PolicyName, step: int, instead_of: int | None = None) -> None:
        """Let the bare name mean a step, at once and durably; requests that run end with the step they began with.

        Raises NotFound for a step that is not offered, Conflict where the name does not mean the step `instead_of`.
        """
        await self._inference.model()
        await self._inference.adapters.point(_key(policy), step, instead_of)

    async def latest(self, policy: PolicyName) -> int | None:
        """The step that the bare name means; None for a name that is not trainable."""
        return await self._inference.adapters.pointed(_key(policy))

    async def withdraw(self, policy: PolicyName, steps: list[int], user: str) -> None:
        """Take steps away: from the engine, the list and the addresses. Their folders are the caller's to remove."""
        await self._inference.unload(await self._inference.adapters.withdraw(_key(policy), steps, user))

    async def forget(self, policy: PolicyName, user: str) -> None:
        """Take the whole name away, with all its steps."""
        await self._inference.unload(await self._inference.adapters.withdraw(_key(policy), None, user))

    async def draw(self, body: Json, caller: Caller, project: str) -> Draws:
        """Let a model write behind a prompt of token ids; counted and limited as other completions, but not traced."""
        running = await self._inference.begin(TOKENS, body, Arrival(caller, project, traced=True))
        await self._inference.whole(running)
        facts = running.plan.facts[0]
        sequences = [
            Drawn(
                choice.token_ids,
                [item.logprob for item in choice.logprobs],
                [item.top for item in choice.logprobs],
                choice.finish_reason != "length",
            )
            for choice in running.plan.choices
        ]
        told = facts.prompt_logprobs
        return Draws(
            sequences,
            None if told is None else [None if item is None else item.logprob for item in told],
            None if told is None else [None if item is None else item.top for item in told],
            facts.cached_tokens,
        )


class TokenWire(TextWire):
    """Prompts of token ids, for clients that train: an answer may be as long as there is room."""

    op_name = "heddle.draw"

    def read(self, body: Any) -> ParsedRequest:
        """As text completions, with `prompt_ids` and `prompt_draws` as `PromptChoices` has them."""
        ids, draws = body.get("prompt_ids") or (), body.get("prompt_draws") or 0
        plain = {name: value for name, value in body.items() if name not in ("prompt_ids", "prompt_draws")}
        chosen = PromptChoices(tuple(map(tuple, ids)), draws, body.get("seed") or 0) if ids or draws else None
        return replace(super().read(plain), clamps_max_tokens=True, prompt_choices=chosen)


TOKENS = TokenWire()


def _key(policy: PolicyName) -> AdapterKey:
    return (policy.entity, policy.project, policy.name)

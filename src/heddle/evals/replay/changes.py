"""What is other in a replay than in the recorded requests: model, prompt, parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.errors import InvalidRequest
from heddle.evals import template
from heddle.evals.model import CLASS_NAME, prompt_messages, structured
from heddle.evals.objects import ObjectReader, is_ref
from heddle.evals.replay.chats import Chat
from heddle.wire.jsontypes import Json

_SYSTEM = ("system", "developer")
_PROVIDER_MODEL = "ProviderModel"


@dataclass(frozen=True, slots=True)
class Changes:
    """The same for every call of a replay."""

    model: str | None
    prompt: Sequence[Json] | None
    """Messages that stand in the place of the recorded system messages."""
    params: Json

    def request(self, chat: Chat) -> Json:
        """The request to send; raises InvalidRequest where the call does not have what it takes."""
        model = self.model or chat.model
        if model is None:
            raise InvalidRequest("it names no model, and the replay names none")
        made: Json = {**chat.fields, **self.params, "model": model, "messages": chat.messages}
        if self.params.keys() & {"max_completion_tokens", "max_tokens"}:
            for name in {"max_completion_tokens", "max_tokens"} - self.params.keys():
                made.pop(name, None)
        if chat.variables:
            made["template_vars"] = chat.variables
        if self.prompt is None:
            return made | ({"prompt": chat.prompt} if chat.prompt else {})
        first = next((n for n, item in enumerate(chat.messages) if item["role"] not in _SYSTEM), len(chat.messages))
        filled = template.filled(list(self.prompt), chat.variables)
        return made | {"messages": [*filled, *chat.messages[first:]]}


async def read_changes(reader: ObjectReader, body: Mapping[str, Any]) -> Changes:
    """The changes that the body of a replay asks for; raises HeddleError for what cannot be read or used."""
    model, prompt, params = body.get("model"), None, dict(body.get("params") or {})
    if is_ref(model):
        found = await reader.read(str(model), "The model")
        if found.is_a(CLASS_NAME):
            stored = await structured(reader, found)
            model, prompt = stored.model_id, stored.messages(None) or None
            given = stored.request([])
            params = {name: given[name] for name in given if name not in ("model", "messages")} | params
        elif not found.is_a(_PROVIDER_MODEL):
            raise InvalidRequest(f"The model {found.target.name} is neither a {CLASS_NAME} nor a {_PROVIDER_MODEL}")
    if body.get("prompt"):
        named = await reader.read(body["prompt"], "The prompt")
        prompt = prompt_messages(named.value)
        if prompt is None:
            raise InvalidRequest(f"The prompt {named.target.name} has no messages")
    for message in prompt or ():
        try:
            template.names(message)
        except ValueError as error:
            raise InvalidRequest(f"The prompt cannot be filled in: {error}") from None
    return Changes(model, prompt, params)

"""Chat completions of one episode, put together to the conversations that they were."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.training.calls.rewards import value_at
from heddle.wire.jsontypes import Json

_REQUESTS = ("inputs", "inputs.kwargs", "inputs.body", "inputs.request")
"""Where the calls of the usual clients keep the request: messages, and tools beside them."""
_POLICY = re.compile(r"(?:^|[/-])(?P<name>[^/]*)@(?P<step>\d{1,15})$|policy-step-(?P<plain>\d{1,15})$")


@dataclass(slots=True)
class Completion:
    """One answered chat completion, as a call shows it."""

    messages: list[Json]
    tools: list[Json] | None
    choices: list[Json]
    step: int | None = None
    """The step of the policy that sampled it, where the call says so."""


@dataclass(slots=True)
class History:
    """One conversation: messages and sampled choices in their order."""

    items: list[Json]
    tools: list[Json] | None
    spoken: list[tuple[Any, ...]] = field(default_factory=list)
    """What the items say, to be compared with the messages of a later prompt."""
    sampled: int = 0

    def as_json(self) -> Json:
        """As a trajectory holds it."""
        return {"messages_and_choices": self.items, "tools": self.tools}


def is_completion(call: Json) -> bool:
    """True when the call's output is that of a chat completion."""
    choices = value_at(call, "output.choices")
    return (
        isinstance(choices, list) and bool(choices) and all(isinstance(value_at(c, "message"), dict) for c in choices)
    )


def completion_of(call: Json, policy: str | None = None) -> Completion | None:
    """The completion that a call shows; None when the messages of its prompt cannot be found.

    `policy` is the name of the trainable model whose steps count as policy versions (None: any).
    """
    asked = next((found for path in _REQUESTS if _is_request(found := value_at(call, path))), None)
    if asked is None:
        return None
    response, messages, tools = call["output"], asked["messages"], asked.get("tools")
    prompt_ids = response.get("prompt_token_ids")
    return Completion(
        messages=[_plain(message) for message in messages],
        tools=[_plain(tool) for tool in tools] if isinstance(tools, list) and tools else None,
        choices=[_choice(choice, number, prompt_ids) for number, choice in enumerate(response["choices"])],
        step=_step(call, response, policy),
    )


def histories(completions: Iterable[Completion]) -> list[History]:
    """The conversations of completions in the order of their time; the longest first.

    A completion continues the longest conversation whose messages its prompt begins with; every other one begins a
    conversation of its own, in which earlier answers are context and are not trained a second time.
    """
    made: list[History] = []
    for completion in completions:
        spoken = [_said(message) for message in completion.messages]
        for number, choice in enumerate(completion.choices):
            grown = _continued(made, spoken, completion.tools) if number == 0 else None
            if grown is None:
                grown = History([], completion.tools)
                made.append(grown)
            grown.items = [*grown.items, *completion.messages[len(grown.spoken) :], choice]
            grown.spoken = [*spoken, _said(choice["message"])]
            grown.sampled += 1
    return sorted(made, key=lambda history: (-history.sampled, -len(history.items)))


def _continued(made: list[History], spoken: list[tuple[Any, ...]], tools: list[Json] | None) -> History | None:
    fitting = [
        history for history in made if history.tools == tools and spoken[: len(history.spoken)] == history.spoken
    ]
    return max(fitting, key=lambda history: len(history.spoken), default=None)


def _is_request(value: Any) -> bool:
    messages = value_at(value, "messages")
    known = isinstance(messages, list) and bool(messages)
    return known and all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in messages)


def _choice(choice: Json, number: int, prompt_ids: Any) -> Json:
    """A choice as trajectories hold it; where the prompt's ids are known they stay with it."""
    message = {"content": None, **_plain(choice["message"])}
    message.setdefault("role", "assistant")
    made = {**_plain(choice), "message": message, "finish_reason": choice.get("finish_reason")}
    made.setdefault("index", number)
    if isinstance(prompt_ids, list) and "prompt_token_ids" not in made:
        made["prompt_token_ids"] = prompt_ids
    return made


def _plain(value: Mapping[str, Any]) -> Json:
    """Without the keys that say of which class a stored object is."""
    return {key: item for key, item in value.items() if not key.startswith("_")}


def _said(message: Json) -> tuple[Any, ...]:
    """What a message says, however its empty fields are written."""
    content = message.get("content")
    if isinstance(content, list):
        content = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part for part in content
        ]
        content = "".join(content) if all(isinstance(part, str) for part in content) else repr(content)
    calls = message.get("tool_calls")
    called = [(call.get("id"), repr(call.get("function"))) for call in calls or () if isinstance(call, dict)]
    return message.get("role"), content or "", tuple(called), message.get("tool_call_id")


def _step(call: Json, response: Json, policy: str | None) -> int | None:
    for text in (value_at(call, "attributes.policy"), response.get("system_fingerprint")):
        found = _POLICY.search(text) if isinstance(text, str) else None
        if found is None:
            continue
        if found["plain"] is not None:
            return int(found["plain"])
        if policy is None or found["name"] == policy or (found["name"] or "").endswith(f"-{policy}"):
            return int(found["step"])
    return None

"""What a client of messages receives: a message of content blocks, whole or as events."""

import hashlib
from collections.abc import Sequence

from heddle.errors import HeddleError
from heddle.http import failures
from heddle.inference.chat.generation import Choice, Delta, Facts
from heddle.inference.chat.wire import Answer, Shape, count_tokens
from heddle.inference.prompt.opaque_reasoning import encode_reasoning
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta, ReasoningDelta
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json


class MessagesAnswer(Answer):
    """A `message`, or its events: each block begins, grows and ends before the next one begins."""

    def __init__(
        self,
        shape: Shape,
        facts: Sequence[Facts],
        choices: Sequence[Choice],
        *,
        max_tokens: int,
        omits_thoughts: bool,
        continues: bool,
    ) -> None:
        """`max_tokens`: as the request has it; `omits_thoughts`: thoughts are sealed, not shown.

        `continues`: the answer goes on after the text of the last message.
        """
        super().__init__(shape, facts, choices)
        (self._choice,) = choices
        self._max_tokens = max_tokens
        self._omits_thoughts = omits_thoughts
        self._trims = shape.reasons and not continues
        """The lines between thoughts and text are no part of the text."""
        self._open: str | None = None
        """The type of the block that is being written."""
        self._index = -1
        self._thought = ""
        self._blank = ""
        """White space with which a text begins; alone it is none."""

    def body(self) -> Json:
        """The `message`."""
        blocks = [block for number in range(len(self._choice.sections)) for block in self._block(number)]
        return {**self._head(), "content": blocks, **self._ending(), "usage": self._usage()}

    def _block(self, number: int) -> list[Json]:
        """The block of one stretch of the output; none for a text of nothing but white space."""
        choice, section = self._choice, self._choice.sections[number]
        if section.kind == "call":
            call = choice.calls[section.start]
            return [{"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}]
        text = choice.text_of(number)
        if section.kind == "reasoning":
            shown = "" if self._omits_thoughts else text
            return [{"type": "thinking", "thinking": shown, "signature": self._signature(text)}]
        return [{"type": "text", "text": text.lstrip() if self._trims else text}] if text.strip() else []

    def opening(self) -> list[Json]:
        """The message without content, and a ping."""
        head = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
        return [
            {"type": "message_start", "message": {**head, "usage": {**self._usage(), "output_tokens": 0}}},
            {"type": "ping"},
        ]

    def delta(self, index: int, delta: Delta) -> list[Json]:  # noqa: ARG002 (there is one choice)
        """The blocks that a token begins, adds to and ends."""
        events: list[Json] = []
        for piece in delta.pieces:
            match piece:
                case ReasoningDelta(text):
                    self._blank = ""
                    if self._open != "thinking":
                        self._thought = ""
                    events += self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                    self._thought += text
                    if not self._omits_thoughts:
                        events.append(self._grow({"type": "thinking_delta", "thinking": text}))
                case ContentDelta(text):
                    events += self._write(text)
                case CallStart(_, call_id, name):
                    self._blank = ""
                    events += self._end()
                    events += self._begin("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
                case CallArguments(_, text):
                    events.append(self._grow({"type": "input_json_delta", "partial_json": text}))
        return events

    def closing(self) -> list[Json]:
        """The end of the last block, why it ended, and its tokens."""
        return [
            *self._end(),
            {"type": "message_delta", "delta": self._ending(), "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def failure(self, error: HeddleError) -> list[Json]:
        """The event `error`."""
        return [failures.anthropic_body(error)]

    def _write(self, text: str) -> list[Json]:
        if self._open != "text":
            self._blank += text
            if not self._blank.strip():
                return []
            text, self._blank = self._blank.lstrip() if self._trims else self._blank, ""
        events = self._begin("text", {"type": "text", "text": ""})
        return [*events, self._grow({"type": "text_delta", "text": text})]

    def _begin(self, kind: str, block: Json) -> list[Json]:
        if self._open == kind:
            return []
        ended = self._end()
        self._open = kind
        self._index += 1
        return [*ended, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _grow(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _end(self) -> list[Json]:
        if self._open is None:
            return []
        events: list[Json] = []
        if self._open == "thinking":
            events.append(self._grow({"type": "signature_delta", "signature": self._signature(self._thought)}))
        self._open = None
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def _signature(self, thought: str) -> str:
        if self._omits_thoughts:
            return encode_reasoning(thought)
        return hashlib.sha256(thought.encode("utf-8", "replace")).hexdigest()

    def _head(self) -> Json:
        return {"id": self.shape.id, "type": "message", "role": "assistant", "model": self.shape.model}

    def _ending(self) -> Json:
        """Why the answer ended; null as long as it has not."""
        choice = self._choice
        reason, sequence = choice.finish_reason, None
        if reason is None:
            shown = None
        elif reason == "length":
            shown = "max_tokens" if choice.completion_tokens >= self._max_tokens else "model_context_window_exceeded"
        elif choice.calls:
            shown = "tool_use"
        elif isinstance(choice.stop_reason, str):
            shown, sequence = "stop_sequence", choice.stop_reason
        else:
            shown = "end_turn"
        return {"stop_reason": shown, "stop_sequence": sequence, "stop_details": None}

    def _usage(self) -> Json:
        """Input tokens are those that did not come from the cache; nothing is counted for writing into it."""
        counts = count_tokens(self.facts, self.choices)
        usage: Json = {
            "input_tokens": counts.prompt - counts.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.output,
        }
        if self.shape.reasons:
            usage["output_tokens_details"] = {"thinking_tokens": counts.reasoning}
        return usage


def _input(arguments: str) -> Json:
    """The arguments of a call; what is no object, because the call was cut, under a name of its own."""
    try:
        found = jsontext.loads_text(arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unfinished": arguments}

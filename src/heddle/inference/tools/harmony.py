"""The channels of Harmony outputs: thoughts, the answer, and calls with a recipient."""

import re
from collections.abc import Callable, Collection
from typing import Literal

from heddle.inference.detokenizer import overlap
from heddle.inference.tools.calls import JsonCall
from heddle.inference.tools.channels import CALL, CHANNEL, CONSTRAIN, END, MARKS, MESSAGE, RETURN, START
from heddle.inference.tools.parser import ContentDelta, OutputParser, Piece, ReasoningDelta, new_call_id

_MARK = re.compile("|".join(re.escape(text) for text in MARKS))
_LONGEST = max(len(text) for text in MARKS)
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*([a-z]+)")
_FUNCTIONS = "functions."

_State = Literal["header", "body", "between"]
_Kind = Literal["reasoning", "content", "call"]


class HarmonyParser(OutputParser):
    """Splits one output into reasoning, content and calls.

    The channel `analysis` is reasoning, `final` and a `commentary` without recipient are content; whatever goes to a
    recipient is a call where it is a JSON object, and content as it stands otherwise.
    """

    def __init__(
        self, names: Collection[str], early: bool, only_first: bool = False, new_id: Callable[[], str] = new_call_id
    ) -> None:
        """`names`: the request's tools."""
        super().__init__(early, only_first, new_id)
        self._names = names
        self._state: _State = "header"
        self._kind: _Kind = "content"
        self._header = ""
        self._given = 0
        """Characters of the header that the prompt has written."""
        self._raw = ""
        """Header and body of a message to a recipient; content after all if it is no call."""
        self._blank = ""
        """White space between messages."""
        self._call = JsonCall()
        self._has_rest = False
        """Something follows the object of the call."""

    def begin_after(self, prompt: str) -> None:
        """Go on where a prompt ends: behind the head of a message, or inside one that is continued."""
        self.push(prompt[prompt.rfind(START) :] if START in prompt else "")
        self._given = len(self._header)

    @property
    def inside_reasoning(self) -> bool:
        return self._state == "body" and self._kind == "reasoning"

    def push(self, text: str) -> list[Piece]:
        self._pending += text
        while self._pending:
            found = _MARK.search(self._pending)
            if found is None:
                tail = self._pending[1 - _LONGEST :]
                held = max(overlap(tail, mark) for mark in MARKS)
                self._take_text(self._pending[: len(self._pending) - held])
                self._pending = self._pending[len(self._pending) - held :]
                break
            self._take_text(self._pending[: found.start()])
            self._pending = self._pending[found.end() :]
            self._take_mark(found[0])
        return self._take_pieces()

    def finish(self) -> list[Piece]:
        """What never had a body is content as it stands."""
        rest, self._pending = self._pending, ""
        self._take_text(rest)
        written = self._header[self._given :]
        if self._state == "header" and written.strip() not in ("", "assistant"):
            self._pieces.append(ContentDelta(written))
        self._header, self._given = "", 0
        self._end_message()
        return self._take_pieces()

    def _take_mark(self, found: str) -> None:
        if found == MESSAGE and self._state == "header":
            self._begin_body()
        elif found in (CHANNEL, CONSTRAIN) and self._state == "header":
            self._header += found
        elif found in (END, CALL, RETURN, START):
            self._end_message()
            self._state = "header" if found == START else "between"
        elif found == CHANNEL:
            # some outputs leave out the beginning of their next message
            self._end_message()
            self._state, self._header = "header", CHANNEL
        else:
            self._take_text(found)

    def _begin_body(self) -> None:
        channel, recipient = _CHANNEL_NAME.search(self._header), _RECIPIENT.search(self._header.replace(CHANNEL, " "))
        called = recipient[1].split("<|")[0] if recipient is not None else ""
        self._state = "body"
        if self._names and (called.startswith(_FUNCTIONS) or called in self._names):
            self._kind, self._has_rest = "call", False
            self._call = JsonCall(given_name=called.removeprefix(_FUNCTIONS))
            self._raw = f"{self._header[self._given :]}{MESSAGE}"
        elif channel is not None and channel[1] == "analysis":
            self._kind = "reasoning"
        else:
            self._kind = "content"
        self._header, self._given = "", 0

    def _take_text(self, text: str) -> None:
        if not text:
            return
        if self._state == "header":
            self._header += text
        elif self._state == "between":
            self._blank += text
            if self._blank.strip():
                # text outside of messages is told like an answer
                self._pieces.append(ContentDelta(self._blank))
                self._blank, self._state, self._kind = "", "body", "content"
        elif self._kind == "reasoning":
            self._pieces.append(ReasoningDelta(text))
        elif self._kind == "content":
            self._pieces.append(ContentDelta(text))
        else:
            self._take_call(text)

    def _take_call(self, text: str) -> None:
        call = self._call
        self._raw += text
        if not (call.done or call.broken):
            text = text[call.feed(text) :]
        self._has_rest |= call.done and bool(text.strip())
        if self._early and not call.broken and call.has_arguments():
            self._give_out(call)

    def _end_message(self) -> None:
        if self._state == "body" and self._kind == "call":
            call = self._call
            if call.done and not self._has_rest:
                self._give_out(call)
                self.num_complete += call.index is not None
            elif call.index is None and not call.hidden:
                self._pieces.append(ContentDelta(self._raw))
        self._raw, self._blank, self._kind, self._state = "", "", "content", "between"

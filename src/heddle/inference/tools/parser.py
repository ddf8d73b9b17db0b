"""Finding tool calls in the growing output of a model."""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from heddle.inference.tokenization.stop import overlap
from heddle.inference.tools.call import GrowingCall
from heddle.inference.tools.formats import CALL_ID, ToolFormat


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; the calls of one output are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, JSON text as the model wrote it."""

    index: int
    text: str


Piece = ContentDelta | CallStart | CallArguments


def new_call_id() -> str:
    """A fresh id in the form that clients know."""
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


class ToolParser:
    """Splits one output into content and calls; what comes out does not depend on how the text was cut into pieces.

    Text that turns out to be no call is content, as it stands; white space before the first call, between calls and
    after the last is dropped.
    """

    def __init__(
        self,
        style: ToolFormat,
        names: Collection[str],
        early: bool,
        only_first: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`names`: the request's tools; in the bare layout only these make a JSON object a call.

        `early`: a call is given out while it is being written (streams), otherwise once it is complete and valid.
        """
        self._style = style
        self._names = names
        self._early = early
        self._only_first = only_first
        self._new_id = new_id
        self._state: Literal["content", "between", "call"] = "content"
        self._pending = ""
        self._raw: list[str] = []
        """Read since the last content or complete call; content after all if no call comes of it."""
        self._call = GrowingCall()
        self._in_group = False
        """A call was complete since the last start mark."""
        self._blank = ""
        self._all_blank = True
        """No content but white space (kept in `_blank`) since the beginning or the last call."""
        self._pieces: list[Piece] = []
        self.num_calls = 0
        """Calls given out."""
        self.num_complete = 0
        """Calls given out that were written to their end."""

    def push(self, text: str) -> list[Piece]:
        """Add text; what is certain now."""
        self._pending += text
        steps = {"content": self._read_content, "between": self._read_between, "call": self._read_call}
        while self._pending and steps[self._state]():
            pass
        return self._take_pieces()

    def finish(self) -> list[Piece]:
        """What is still held back, at the end of the output; an unfinished call is content unless it was given out."""
        if not (self._state == "between" and self._in_group):
            self._give_up()
        self._add_content(self._read(len(self._pending)))
        if not self.num_calls and self._blank:
            self._pieces.append(ContentDelta(self._blank))
        self._blank = ""
        return self._take_pieces()

    def _read_content(self) -> bool:
        """Content up to a mark, or (bare) to a bracket with which the output begins. False when more text is needed."""
        begin = self._pending.lstrip()
        if self._style.layout == "bare" and self._at_beginning() and begin[:1] in ("{", "["):
            self._add_content(self._read(len(self._pending) - len(begin)))
            self._state, self._in_group = "between", False
            return True
        start = self._style.start
        before, mark, _ = self._pending.partition(start) if start else (self._pending, "", "")
        if mark:
            self._add_content(self._read(len(before)))
            self._raw.append(self._read(len(mark)))
            self._state, self._in_group = "between", False
            return True
        self._add_content(self._read(len(self._pending) - overlap(self._pending, start)))
        return False

    def _read_between(self) -> bool:
        """After a mark or a call: separators, then a call, a mark, or text that is content."""
        style = self._style
        rest = self._pending.lstrip(" \t\r\n,;[]" if style.layout in ("list", "bare") else " \t\r\n")
        self._raw.append(self._read(len(self._pending) - len(rest)))
        if not rest:
            return False
        for mark in filter(None, (style.end, style.start)):
            if rest.startswith(mark):
                return self._read_mark(mark)
            if mark.startswith(rest):
                return False
        if style.layout == "named":
            return self._read_name() if not self._in_group else self._give_up()
        if rest[0] != "{":
            return self._give_up()
        self._call, self._state = GrowingCall(), "call"
        return True

    def _read_mark(self, mark: str) -> bool:
        if self._in_group:
            self._raw = []
        self._raw.append(self._read(len(mark)))
        if mark == self._style.start:
            self._in_group = False
            return True
        if self._in_group:
            self._raw, self._state = [], "content"
            return True
        return self._give_up()

    def _read_name(self) -> bool:
        """Named layout: the name up to the separator or the bracket of the arguments."""
        separator = self._style.separator
        before, bracket, _ = self._pending.partition("{")
        if not bracket:
            return False
        self._raw.append(self._read(len(before)))
        name = before.split(separator)[0].split(CALL_ID)[0].strip()
        if not name:
            return self._give_up()
        self._call, self._state = GrowingCall(given_name=name), "call"
        return True

    def _read_call(self) -> bool:
        call = self._call
        self._raw.append(self._read(call.feed(self._pending)))
        if self._early and call.name() is not None and call.has_arguments():
            self._give_out(call)
        if call.scanner.broken:
            return self._give_up()
        if call.scanner.done:
            return self._complete(call)
        return True

    def _complete(self, call: GrowingCall) -> bool:
        bare = self._style.layout == "bare"
        if not call.is_call(needs_arguments=bare) or not self._allows(call):
            return self._give_up()
        self._give_out(call)
        if not call.shown and not call.hidden and call.index is not None:
            self._pieces.append(CallArguments(call.index, "{}"))
        self.num_complete += call.index is not None
        self._raw, self._blank, self._all_blank = [], "", True
        self._state, self._in_group = "between", True
        return True

    def _give_out(self, call: GrowingCall) -> None:
        """Show what is known of a call; a call too many is read and not shown."""
        name = call.name()
        if call.index is None and not call.hidden and name is not None and self._allows(call):
            call.hidden = self._only_first and self.num_calls > 0
            if not call.hidden:
                call.index = self.num_calls
                self.num_calls += 1
                self._pieces.append(CallStart(call.index, self._new_id(), name))
        if call.index is not None and (text := call.take_arguments()):
            self._pieces.append(CallArguments(call.index, text))

    def _allows(self, call: GrowingCall) -> bool:
        return self._style.layout != "bare" or call.name() in self._names

    def _give_up(self) -> bool:
        """What was read since the last content or call is content, unless it was given out as a call."""
        raw, self._raw = "".join(self._raw), []
        if not (self._state == "call" and (self._call.index is not None or self._call.hidden)):
            self._add_content(raw)
        self._state = "content"
        return True

    def _at_beginning(self) -> bool:
        return self._all_blank and not self.num_calls

    def _add_content(self, text: str) -> None:
        if self._all_blank:
            self._blank += text
            text = self._blank
            if not text.strip():
                return
            self._blank, self._all_blank = "", False
        if text:
            self._pieces.append(ContentDelta(text))

    def _read(self, length: int) -> str:
        read, self._pending = self._pending[:length], self._pending[length:]
        return read

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

"""Finding tool calls in the growing output of a model."""

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from heddle.inference.detokenizer import overlap
from heddle.inference.tools.calls import CallReader, JsonCall, PythonicCall
from heddle.inference.tools.element_calls import ElementCall
from heddle.inference.tools.formats import ToolFormat
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Thoughts of the model, where its syntax of messages marks them."""

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


Piece = ContentDelta | ReasoningDelta | CallStart | CallArguments


def new_call_id() -> str:
    """A fresh id in the form that clients know."""
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


def new_short_call_id() -> str:
    """A fresh id of nine letters and digits, the only form that templates of Mistral take."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class OutputParser(ABC):
    """Splits one output into its pieces while it grows; what comes out does not depend on how the text was cut."""

    def __init__(self, early: bool, only_first: bool, new_id: Callable[[], str]) -> None:
        """`early`: a call is given out while it is being written (streams), otherwise once it is complete and valid."""
        self._early = early
        self._only_first = only_first
        self._new_id = new_id
        self._pending = ""
        self._pieces: list[Piece] = []
        self.num_calls = 0
        """Calls given out."""
        self.num_complete = 0
        """Calls given out that were written to their end."""

    @property
    def inside_reasoning(self) -> bool:
        """Whether the output so far ends inside thoughts that this parser finds."""
        return False

    @abstractmethod
    def push(self, text: str) -> list[Piece]:
        """Add text; what is certain now."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """What is still held back, at the end of the output; an unfinished call is content unless it was given out."""

    def _allows(self, call: CallReader) -> bool:  # noqa: ARG002
        """Whether the request has such a function."""
        return True

    def _give_out(self, call: CallReader) -> None:
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

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


class ToolParser(OutputParser):
    """Splits one output into content and calls.

    Text that turns out to be no call is content, as it stands; white space before the first call, between calls and
    after the last is dropped.
    """

    def __init__(
        self,
        style: ToolFormat,
        schemas: Mapping[str, Json | None],
        early: bool,
        only_first: bool = False,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """`schemas`: the parameters of the request's tools; without marks only their names make a call."""
        super().__init__(early, only_first, new_id or (new_short_call_id if style.has_short_ids else new_call_id))
        self._style = style
        self._schemas = schemas
        self._state: Literal["content", "between", "call"] = "content"
        self._raw: list[str] = []
        """Read since the last content or complete call; content after all if no call comes of it."""
        self._call: CallReader = JsonCall()
        self._in_group = False
        """A call was complete since the last start mark."""
        self._blank = ""
        self._all_blank = True
        """No content but white space (kept in `_blank`) since the beginning or the last call."""

    def push(self, text: str) -> list[Piece]:
        self._pending += text
        steps = {"content": self._read_content, "between": self._read_between, "call": self._read_call}
        while self._pending and steps[self._state]():
            pass
        return self._take_pieces()

    def finish(self) -> list[Piece]:
        if not (self._state == "between" and self._in_group):
            self._give_up()
        self._add_content(self._read(len(self._pending)))
        if not self.num_calls and self._blank:
            self._pieces.append(ContentDelta(self._blank))
        self._blank = ""
        return self._take_pieces()

    def _read_content(self) -> bool:
        """Content up to a mark, or (without marks) to a bracket at its beginning. False when more text is needed."""
        begin = self._pending.lstrip()
        brackets = self._style.brackets
        if brackets and (self._all_blank and not self.num_calls) and begin[:1] and begin[0] in brackets:
            self._add_content(self._read(len(self._pending) - len(begin)))
            self._state, self._in_group = "between", False
            return True
        found = min(
            ((at, -len(mark), mark) for mark in self._style.openings if (at := self._pending.find(mark)) >= 0),
            default=None,
        )
        if found is not None:
            at, _, mark = found
            self._add_content(self._read(at))
            if mark in self._style.marks:  # any other opening belongs to the call itself
                self._raw.append(self._read(len(mark)))
            self._state, self._in_group = "between", False
            return True
        held = max((overlap(self._pending, mark) for mark in self._style.openings), default=0)
        self._add_content(self._read(len(self._pending) - held))
        return False

    def _read_between(self) -> bool:
        """After a mark or a call: separators, then a call, a mark, or text that is content."""
        marks = self._style.marks
        rest = self._pending.lstrip(self._style.separators)
        self._raw.append(self._read(len(self._pending) - len(rest)))
        if not rest:
            return False
        for mark in marks:
            if rest.startswith(mark):
                return self._read_mark(mark)
        if any(mark.startswith(rest) for mark in marks):
            return False
        return self._begin_call(rest)

    def _read_mark(self, mark: str) -> bool:
        style = self._style
        if self._in_group:
            self._raw = []
        self._raw.append(self._read(len(mark)))
        if mark in (style.start, style.section_start):
            self._in_group = False
            return True
        if not self._in_group:
            return self._give_up()
        self._raw = []
        if mark == style.section_end or not style.section_end:
            self._state = "content"
        return True

    def _begin_call(self, rest: str) -> bool:
        style = self._style
        match style.layout:
            case "named":
                return self._read_name() if not self._in_group else self._give_up()
            case "elements" if style.elements is not None:
                opening = style.elements.name
                if opening and opening.startswith(rest) and opening != rest:
                    return False
                if not rest.startswith(opening) or (not opening and self._in_group):
                    return self._give_up()
                self._call = ElementCall(style.elements, self._schemas)
            case "pythonic":
                if not rest[0].isidentifier():
                    return self._give_up()
                self._call = PythonicCall()
            case _:
                if rest[0] != "{":
                    return self._give_up()
                self._call = JsonCall()
        self._state = "call"
        return True

    def _read_name(self) -> bool:
        """Named layout: what stands before the bracket of the arguments."""
        before, bracket, _ = self._pending.partition("{")
        if not bracket:
            return False
        self._raw.append(self._read(len(before)))
        found = self._style.name_pattern.fullmatch(before.strip())
        if found is None:
            return self._give_up()
        self._call, self._state = JsonCall(given_name=found[1]), "call"
        return True

    def _read_call(self) -> bool:
        call = self._call
        self._raw.append(self._read(call.feed(self._pending)))
        if self._early and call.name() is not None and call.has_arguments():
            self._give_out(call)
        if call.broken:
            return self._give_up()
        if call.done:
            return self._complete(call)
        return True

    def _complete(self, call: CallReader) -> bool:
        if not call.is_call(needs_arguments=self._style.layout == "bare") or not self._allows(call):
            return self._give_up()
        self._give_out(call)
        if not call.shown and not call.hidden and call.index is not None:
            self._pieces.append(CallArguments(call.index, "{}"))
        self.num_complete += call.index is not None
        self._raw, self._blank, self._all_blank = [], "", True
        self._state, self._in_group = "between", True
        return True

    def _allows(self, call: CallReader) -> bool:
        return not self._style.needs_known_names or call.name() in self._schemas

    def _give_up(self) -> bool:
        """What was read since the last content or call is content, unless it was given out as a call."""
        raw, self._raw = "".join(self._raw), []
        if not (self._state == "call" and (self._call.index is not None or self._call.hidden)):
            self._add_content(raw)
        self._state = "content"
        return True

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

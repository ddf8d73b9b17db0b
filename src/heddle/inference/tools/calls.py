"""What every reader of a growing tool call offers, whatever syntax the model writes it in."""

from abc import ABC, abstractmethod


class CallReader(ABC):
    """One call while it is written: its name, and its arguments as JSON text."""

    def __init__(self) -> None:
        self.index: int | None = None
        """Its number, once it has been given out."""
        self.hidden = False
        """It is one call too many: read, but not given out."""
        self.shown = 0
        """Characters of the arguments that were given out."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """The call is written to its end."""

    @property
    @abstractmethod
    def broken(self) -> bool:
        """This will never be a call."""

    @abstractmethod
    def feed(self, text: str) -> int:
        """Read until the call ends or breaks; the number of characters read, however the text is cut."""

    @abstractmethod
    def name(self) -> str | None:
        """The function's name, once it is known."""

    @abstractmethod
    def written_arguments(self) -> str | list[str]:
        """The JSON text of the arguments so far, as one text or as its pieces; it only ever grows."""

    @abstractmethod
    def is_call(self, needs_arguments: bool) -> bool:
        """Whether what is written to its end is a call; `needs_arguments`: one without them is not."""

    def take_arguments(self) -> str:
        """Arguments written since the last time."""
        new = "".join(self.written_arguments()[self.shown :])
        self.shown += len(new)
        return new

    def has_arguments(self) -> bool:
        """Whether arguments can be given out already."""
        return bool(self.written_arguments())


class CharacterCallReader(CallReader):
    """A call that is read character by character, and that its syntax alone makes a call."""

    def __init__(self, state: str) -> None:
        """`state` is where reading begins; a subclass ends it in "done" or "broken"."""
        super().__init__()
        self._state = state
        self._held = ""
        """What is read of the part at hand."""
        self._written: list[str] = []

    @property
    def done(self) -> bool:
        return self._state == "done"

    @property
    def broken(self) -> bool:
        return self._state == "broken"

    def is_call(self, needs_arguments: bool) -> bool:  # noqa: ARG002 (with or without them)
        return self.done

    def written_arguments(self) -> list[str]:
        return self._written

    def feed(self, text: str) -> int:
        for number, character in enumerate(text):
            self._feed(character)
            if self.done or self.broken:
                return number + 1
        return len(text)

    @abstractmethod
    def _feed(self, character: str) -> None:
        """Read one more character."""

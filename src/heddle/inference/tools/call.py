"""One tool call while it is being written."""

from dataclasses import dataclass, field

from heddle.inference.tools.scan import ObjectScanner, parsed

ARGUMENT_KEYS = ("arguments", "parameters")
"""Models mix them up; both are read."""


@dataclass(slots=True)
class GrowingCall:
    """Reads `{"name": ..., "arguments": {...}}`, or only the arguments when the name went before them."""

    given_name: str | None = None
    scanner: ObjectScanner = field(default_factory=ObjectScanner)
    index: int | None = None
    """Its number, once it has been given out."""
    hidden: bool = False
    """It is one call too many: read, but not given out."""
    shown: int = 0
    """Characters of the arguments that were given out."""
    _text: list[str] = field(default_factory=list)
    _read_name: str | None = None
    """The member `name`; empty when it is not a text."""

    def feed(self, text: str) -> int:
        """Read until the object ends or breaks; the number of characters read."""
        for number, character in enumerate(text):
            self.scanner.feed(character)
            self._text.append(character)
            if self.scanner.done or self.scanner.broken:
                return number + 1
        return len(text)

    def name(self) -> str | None:
        """The function's name, once it is known."""
        if self.given_name is None and "name" in self.scanner.members and self._read_name is None:
            name = parsed(self.scanner.members["name"])
            self._read_name = name if isinstance(name, str) else ""
        return self.given_name or self._read_name or None

    def take_arguments(self) -> str:
        """Arguments written since the last time; only objects are seen before they are complete."""
        text = self._arguments()
        new = "".join(text[self.shown :])
        self.shown += len(new)
        return new

    def has_arguments(self) -> bool:
        """Whether arguments can be given out already."""
        return bool(self._arguments())

    def is_call(self, needs_arguments: bool) -> bool:
        """Whether the finished object is a call; `needs_arguments`: one without them is not."""
        return self.name() is not None and (self.has_arguments() or not (needs_arguments or self._stated()))

    def _stated(self) -> bool:
        """The object has a member for arguments, though not one that can be used."""
        return any(key in self.scanner.members for key in ARGUMENT_KEYS)

    def _arguments(self) -> str | list[str]:
        if self.given_name is not None:
            return self._text
        scanner = self.scanner
        if scanner.key in ARGUMENT_KEYS:
            return scanner.value if scanner.value[:1] == ["{"] else ""
        for key in ARGUMENT_KEYS:
            if key in scanner.members:
                return _as_object_text(scanner.members[key])
        return ""


def _as_object_text(value: str) -> str:
    """Arguments as the text of an object: they may be null or an object within a string; empty for anything else."""
    if value.startswith("{"):
        return value
    inner = parsed(value)
    if inner is None:
        return "{}"
    return inner if isinstance(inner, str) and isinstance(parsed(inner), dict) else ""

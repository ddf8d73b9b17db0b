"""What reading an export has in common, in either encoding: what is malformed, and how many parts there may be."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from heddle.errors import InvalidRequest, TooLarge
from heddle.wire.protobuf import Malformed

MAX_PARTS = 200_000
"""How many spans, events and links, log records or data points one export may hold together."""
MAX_DEPTH = 40
"""How deep values nest; the packages of OTLP stop at about 45."""


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Read a message of this name; raises InvalidRequest for a body that is none."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is no {message}: a text is not UTF-8 ({error.reason})") from None
    except Malformed as error:
        raise InvalidRequest(f"The body is no {message}: {error}") from None
    except IndexError:
        raise InvalidRequest(f"The body is no {message}: it ends within a field") from None


@dataclass(slots=True)
class Export:
    """One export while it is read; `items` is what it holds.

    `known` has short attributes by their bytes: most items repeat those of the item before.
    """

    items: str
    parts: int = 0
    known: dict[bytes, tuple[str, Any]] = field(default_factory=dict)

    def count_part(self) -> None:
        """Count one more part; raises TooLarge for more than one export may hold.

        An empty part takes two bytes of a body, hundreds of memory.
        """
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise TooLarge(f"Request too large: over {MAX_PARTS} {self.items} in one export; send smaller batches")

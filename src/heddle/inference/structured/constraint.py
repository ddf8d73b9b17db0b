"""What is asked of the output, as engines take it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must look like."""

    grammar: str
    """The llguidance grammar in its JSON form: `{"grammars": [{"lark_grammar": ...}]}`."""
    source: Mapping[str, Any]
    """The same in the words of the request (`{"json": ...}`), for engines with a compiler of their own."""
    after: tuple[int, ...] = ()
    """Token ids (the end of a reasoning block) that must be generated before the constraint begins; empty = at once."""

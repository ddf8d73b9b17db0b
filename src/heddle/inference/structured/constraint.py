"""What is asked of the output, as engines take it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must look like."""

    grammar: str
    """The llguidance grammar in its JSON form: `{"grammars": [{"lark_grammar": ...}]}`."""
    after: tuple[int, ...] = ()
    """Token ids (the end of a reasoning block) that must be generated before the constraint begins; empty = at once."""

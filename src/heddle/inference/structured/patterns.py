"""Patterns of JSON Schema in the syntax of the grammar compiler.

Schemas carry ECMA 262 expressions, validators in Python read them as Python's, the compiler reads Rust's. Where the
three differ about what a piece matches, the translation takes what all of them match.
"""

import re

# What all dialects, and what any of them, takes for a digit, a word character and a space.
_ALL = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\x0b"}
_ANY = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}\p{M}_", "s": r"\s\x1c-\x1f\x{FEFF}"}
_DOT = r"[^\n\r\x{2028}\x{2029}]"
_QUANTIFIER = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")


def translated(pattern: str) -> str:
    """The expression for the compiler; what that cannot do (such as look-around) is left in for it to refuse."""
    pieces: list[str] = []
    position = 0
    while position < len(pattern):
        piece, position = _piece(pattern, position)
        pieces.append(piece)
    return "".join(pieces)


def _piece(pattern: str, at: int) -> tuple[str, int]:
    character = pattern[at]
    if character == "\\":
        return _escape(pattern, at)
    if character == "[":
        return _class(pattern, at)
    if character == ".":
        return _DOT, at + 1
    if pattern.startswith("(?", at):
        return "(?", at + 2
    if character == "{":
        found = _QUANTIFIER.match(pattern, at)
        if not found:
            return ("{" if pattern.startswith("{,", at) else r"\{"), at + 1
        return found[0], _past_lazy(pattern, found.end())
    if character in "*+?":
        return character, _past_lazy(pattern, at + 1)
    return (r"\}" if character == "}" else character), at + 1


def _past_lazy(pattern: str, at: int) -> int:
    """A lazy quantifier matches the same texts as a greedy one."""
    return at + 1 if pattern.startswith("?", at) else at


def _escape(pattern: str, at: int) -> tuple[str, int]:
    following = pattern[at + 1 : at + 2]
    if following in _ALL:
        return f"[{_ALL[following]}]", at + 2
    if following and following.lower() in _ALL:
        return f"[^{_ANY[following.lower()]}]", at + 2
    return _character_escape(pattern, at)


def _character_escape(pattern: str, at: int) -> tuple[str, int]:
    """Escapes that mean the same inside and outside of brackets."""
    following = pattern[at + 1 : at + 2]
    if following == "0":
        return r"\x00", at + 2
    if following == "c" and pattern[at + 2 : at + 3].isascii() and pattern[at + 2 : at + 3].isalpha():
        return f"\\x{ord(pattern[at + 2].upper()) - 64:02x}", at + 3
    if following in "<>" and following:
        return following, at + 2
    return pattern[at : at + 2], at + 2


def _class(pattern: str, at: int) -> tuple[str, int]:
    pieces = ["["]
    position = at + 1
    negated = pattern.startswith("^", position)
    if negated:
        pieces.append("^")
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        character = pattern[position]
        if character == "\\":
            piece, position = _class_escape(pattern, position, negated)
            pieces.append(piece)
            continue
        doubled = character in "-&~" and pattern.startswith(character, position + 1)
        pieces.append("\\" + character if character in "[&~" or doubled else character)
        position += 1
    return "".join(pieces) + pattern[position : position + 1], position + 1


def _class_escape(pattern: str, at: int, negated: bool) -> tuple[str, int]:
    """In a negated class the larger set is the safe one."""
    following = pattern[at + 1 : at + 2]
    if following == "b":
        return r"\x08", at + 2
    if following in _ALL:
        return (_ANY if negated else _ALL)[following], at + 2
    if following and following.lower() in _ALL:
        return f"[^{(_ALL if negated else _ANY)[following.lower()]}]", at + 2
    return _character_escape(pattern, at)

"""Patterns and formats of JSON Schema in the syntax of the grammar compiler."""

import re

_LEAP_YEAR = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:[1-9][0-9]{{3}}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})"

_NUMBER = "[0-9]{1,6}"
_DAYS = f"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"
_HOURS = f"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"

_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,29}"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_MAILBOX = rf"{_ATOM}{{1,32}}(?:\.{_ATOM}{{1,15}}){{0,2}}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]"
_GROUP = f"{_HEX}{{1,4}}"

_PATH_CHARACTER = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_SEGMENTS = f"(?:/{_PATH_CHARACTER}*)*"
_ROOTED = f"(?:/(?:{_PATH_CHARACTER}+{_SEGMENTS})?)"
_AUTHORITY = f"//{_HOST}(?::[0-9]{{1,4}})?"
_TAIL = rf"(?:\?(?:{_PATH_CHARACTER}|[/?])*)?(?:#(?:{_PATH_CHARACTER}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}{_SEGMENTS}|{_ROOTED}|{_PATH_CHARACTER}+{_SEGMENTS}){_TAIL}"


def _ipv6() -> str:
    forms = [f"(?:{_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        left = f"(?:{_GROUP}:){{{before - 1}}}{_GROUP}" if before else ""
        behind = 7 - before - 1
        right = f"(?:{_GROUP}(?::{_GROUP}){{0,{behind}}})?" if behind >= 0 else ""
        forms.append(f"{left}::{right}")
    return "|".join(forms)


FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|{_NUMBER}W)",
    "email": f"{_MAILBOX}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": _ipv6(),
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": _URI,
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*",
}
# The wider formats are met by what the narrower ones allow.
FORMATS["idn-email"] = FORMATS["email"]
FORMATS["idn-hostname"] = FORMATS["hostname"]
FORMATS["iri"] = FORMATS["uri-reference"] = FORMATS["iri-reference"] = FORMATS["uri"]

INTEGER_FORMATS = {"int32": 2**31, "int64": 2**63}
"""Formats of OpenAPI on integers: values from -limit to limit - 1."""

HINTS = frozenset({"float", "double", "password"})
"""Formats that every number or text meets."""


# What all dialects, and what any of them, takes for a digit, a word character and a space.
_ALL = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\x0b"}
_ANY = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}\p{M}_", "s": r"\s\x1c-\x1f\x{FEFF}"}
_DOT = r"[^\n\r\x{2028}\x{2029}]"
_QUANTIFIER = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")


def translate_pattern(pattern: str) -> str:
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
        following = pattern[at + 1 : at + 2]
        if following in _ALL:
            return f"[{_ALL[following]}]", at + 2
        if following and following.lower() in _ALL:
            return f"[^{_ANY[following.lower()]}]", at + 2
        return _character_escape(pattern, at)
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
        return found[0], _skip_lazy(pattern, found.end())
    if character in "*+?":
        return character, _skip_lazy(pattern, at + 1)
    return (r"\}" if character == "}" else character), at + 1


def _skip_lazy(pattern: str, at: int) -> int:
    """A lazy quantifier matches the same texts as a greedy one."""
    return at + 1 if pattern.startswith("?", at) else at


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

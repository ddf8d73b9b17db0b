"""What the text of a setting may be, and the value that it becomes."""

import ipaddress
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from heddle.errors import HeddleError
from heddle.wire.keys import Grant

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": TIB, "tib": TIB}
_UNITS |= {"kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
MAIL_ADDRESS = r"[\w.!#$%&'*+/=^`{|}~-]+@[\w-]+(\.[\w-]+)*"
"""An address as the head of a mail holds it, without quotes, comments or encoded words."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """How the text of a setting becomes its value; `parse` raises ValueError for anything but `allowed`."""

    parse: Callable[[str], Any]
    allowed: str
    is_size: bool = False
    is_secret: bool = False


def choice(*words: str) -> Kind:
    """One of a few words."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return Kind(parse, "one of " + ", ".join(words))


def number(low: float, high: float, whole: bool = True) -> Kind:
    """A number between two bounds, both included."""

    def parse(text: str) -> int | float:
        value = int(text) if whole else float(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return Kind(parse, f"a {'whole ' if whole else ''}number from {low:g} to {high:g}")


def size(low: int = 1, high: int = TIB, none: str = "") -> Kind:
    """A number of bytes; `none` says what 0 means where it is allowed."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError
        value = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
        if not low <= value <= high and not (none and value == 0):
            raise ValueError
        return value

    zero = f", or 0 for {none}" if none else ""
    return Kind(
        parse, f"a size from {show_size(low)} to {show_size(high)}, such as 33554432 or 32MiB{zero}", is_size=True
    )


def text(allowed: str) -> Kind:
    """Any text but an empty one."""

    def parse(value: str) -> str:
        if not value.strip() or "\0" in value:
            raise ValueError
        return value.strip()

    return Kind(parse, allowed)


def command(plain: str = "") -> Kind:
    """Words as a shell splits them, or the word `plain`."""

    def parse(value: str) -> str:
        found = value.strip()
        if not found or "\0" in found or (found != plain and not shlex.split(found)):
            raise ValueError
        return found

    return Kind(parse, f"a command line, or {plain}" if plain else "a command line")


def secret(shortest: int) -> Kind:
    """A text of visible ASCII that is never shown, or the word `none`."""

    def parse(value: str) -> str:
        found = value.strip()
        if found != "none" and not re.fullmatch(rf"[!-~]{{{shortest},256}}", found):
            raise ValueError
        return found

    return Kind(parse, f"{shortest} to 256 visible ASCII characters without spaces, or none", is_secret=True)


def matching(pattern: str, allowed: str, plain: str = "", tail: str = "") -> Kind:
    """A text of a form that may hold an address, or the word `plain`; without what of `tail` is at its end."""

    def parse(value: str) -> str:
        found = value.strip()
        if found != plain and not re.fullmatch(pattern, found):
            raise ValueError
        urlsplit(found).port  # noqa: B018 - ValueError for what is no port
        return found.rstrip(tail) or found

    return Kind(parse, allowed)


def device() -> Kind:
    """Where tensors lie, as torch names it."""
    return matching(r"cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N", "auto")


def address(*schemes: str, plain: str) -> Kind:
    """The word `plain`, or an address `scheme://...` (of one of the schemes, where some are named)."""
    allowed = f"{plain}, or {' or '.join(f'{scheme}://...' for scheme in schemes) or 'scheme://...'}"
    return matching(rf"({'|'.join(schemes) or '[a-z][a-z0-9+.-]*'})://\S+", allowed, plain)


def several(pattern: str, allowed: str) -> Kind:
    """The word `none`, or texts of a form with commas between them."""

    def parse(value: str) -> str:
        found = [word.strip() for word in value.split(",") if word.strip()]
        if not found or (found != ["none"] and not all(re.fullmatch(pattern, word) for word in found)):
            raise ValueError
        return ",".join(found)

    return Kind(parse, f"{allowed}, separated by commas, or none")


def networks() -> Kind:
    """The word `none`, or IP addresses and networks with commas between them."""

    def parse(value: str) -> str:
        found = [word.strip() for word in value.split(",")]
        return "none" if found == ["none"] else ",".join(str(ipaddress.ip_network(word)) for word in found)

    return Kind(parse, "IP addresses or networks such as 10.0.0.0/8, separated by commas, or none")


ANY_ORIGIN = "any"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.\[\]:_-]+")


def origins() -> Kind:
    """The word `none` or `any`, or origins of pages with commas between them."""

    def parse(value: str) -> str:
        found = [word.strip().lower().rstrip("/") for word in value.split(",") if word.strip()]
        if found in (["none"], [ANY_ORIGIN], ["*"]):
            return ANY_ORIGIN if found == ["*"] else found[0]
        if not found or not all(map(_ORIGIN.fullmatch, found)):
            raise ValueError
        return ",".join(dict.fromkeys(found))

    return Kind(parse, "origins such as https://app.example.com, separated by commas, any, or none")


_PROVIDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*=https?://[^\s,;?#]+(,[A-Za-z_][A-Za-z0-9_]*)?")


def providers() -> Kind:
    """Named addresses with the variable that holds their key: `name=base_url,VARIABLE; ...`."""

    def parse(value: str) -> str:
        entries = [entry.strip() for entry in value.split(";") if entry.strip()]
        names = [entry.partition("=")[0] for entry in entries]
        if value.strip().lower() == "none":
            return "none"
        if not entries or len(set(names)) < len(names) or not all(map(_PROVIDER.fullmatch, entries)):
            raise ValueError
        return "; ".join(entries)

    return Kind(parse, "name=base_url,KEY_VARIABLE entries separated by ;, or none")


def read_group_roles(value: str) -> dict[str, tuple[Grant, ...]]:
    """What each group may do: `group=role:place,role; group=...`; raises ValueError."""
    found: dict[str, tuple[Grant, ...]] = {}
    for entry in filter(str.strip, value.split(";") if value != "none" else ()):
        group, separator, roles = entry.partition("=")
        if not separator or not group.strip():
            raise ValueError
        try:
            grants = tuple(Grant.parse(role.strip()) for role in roles.split(","))
        except HeddleError as error:
            raise ValueError(error.reason) from None
        found[group.strip()] = found.get(group.strip(), ()) + grants
    return found


def group_roles() -> Kind:
    """The word `none`, or roles of groups of people."""

    def parse(value: str) -> str:
        if value.strip().lower() != "none" and not read_group_roles(value):
            raise ValueError
        return value.strip()

    return Kind(parse, "group=role:place,role entries separated by ;, or none")


def show_size(value: int) -> str:
    """Bytes as people write them: 32MiB; what is no round number stays plain."""
    for name, unit in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)

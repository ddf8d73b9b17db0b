"""What the text of a setting may be, and how it becomes a value."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": TIB, "tib": TIB}
_UNITS |= {"kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """How the text of a setting becomes its value; `parse` raises ValueError for anything but `allowed`."""

    parse: Callable[[str], Any]
    allowed: str
    is_size: bool = False


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


def path() -> Kind:
    """A path of an address: begins with /, ends without one but for the root."""

    def parse(value: str) -> str:
        if not re.fullmatch(r"/|(/[A-Za-z0-9._~-]+)+/?", value.strip()):
            raise ValueError
        return value.strip().rstrip("/") or "/"

    return Kind(parse, "a path such as /heddle")


def address(*schemes: str, plain: str) -> Kind:
    """The word `plain`, or an address `scheme://...` (of one of the schemes, where some are named)."""

    def parse(value: str) -> str:
        found = re.match(r"([a-z][a-z0-9+.-]*)://[^\s]+\Z", value.strip())
        if value.strip() != plain and (found is None or (schemes and found[1] not in schemes)):
            raise ValueError
        urlsplit(value.strip()).port  # noqa: B018 - ValueError for what is no port
        return value.strip()

    return Kind(parse, f"{plain}, or {' or '.join(f'{scheme}://...' for scheme in schemes) or 'scheme://...'}")


def addresses() -> Kind:
    """The word `none`, or addresses of servers with commas between them."""

    def parse(value: str) -> str:
        found = [word.strip() for word in value.split(",") if word.strip()]
        if not found or (found != ["none"] and not all(re.fullmatch(r"https?://[^\s,;?#]+", word) for word in found)):
            raise ValueError
        return ",".join(found)

    return Kind(parse, "addresses that begin with http:// or https://, with commas between several, or none")


def public_url() -> Kind:
    """The word `none`, or where a server is: scheme, host and perhaps a port and a path."""

    def parse(value: str) -> str:
        if value.strip() != "none" and not re.fullmatch(
            r"https?://[A-Za-z0-9.\[\]:_-]+(/[A-Za-z0-9._~/-]*)?", value.strip()
        ):
            raise ValueError
        urlsplit(value.strip()).port  # noqa: B018 - ValueError for what is no port
        return value.strip().rstrip("/")

    return Kind(parse, "an address such as https://heddle.example.com, or none")


def networks() -> Kind:
    """The word `none`, or IP addresses and networks with commas between them."""

    def parse(value: str) -> str:
        found = [word.strip() for word in value.split(",")]
        return "none" if found == ["none"] else ",".join(str(ipaddress.ip_network(word)) for word in found)

    return Kind(parse, "IP addresses or networks such as 10.0.0.0/8, with commas between several, or none")


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

    return Kind(parse, "name=base_url,KEY_VARIABLE with ; between several, or none")


def show_size(value: int) -> str:
    """Bytes as people write them: 32MiB; what is no round number stays plain."""
    for name, unit in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)

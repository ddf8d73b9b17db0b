"""What a project or a key may send: quotas as people write them."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from heddle.setting_kinds import TIB, Kind, number, show_size, size

PROJECT, KEY = "project", "key"
LOCAL_KEY = "local"
"""Stands for the key where keys are not checked."""
NONE = "none"
ALL = "all"
REQUESTS, BYTES, FILES, DISK = "requests", "bytes", "files", "disk"
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
MOST_QUOTAS = 20
_size, _number = size(1, 1024 * TIB).parse, number(1, 10**15).parse
_FORM = re.compile(
    rf"([a-z0-9_]+) +({REQUESTS}|{BYTES}|{FILES}) +(\S+?) */ *({'|'.join(SECONDS)})|{DISK} +(\S+)", re.IGNORECASE
)
FORM = (
    f'"GROUP UNIT NUMBER/PERIOD" (a group of routes or {ALL}; {REQUESTS}, {BYTES} or {FILES}; {", ".join(SECONDS)}), '
    f'such as "{ALL} {REQUESTS} 600/minute" or "opentelemetry {BYTES} 2GiB/day", and for projects "{DISK} 50GiB"'
)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most of a unit that requests to a group of routes may bring in a period; of `disk`, what may be stored."""

    group: str
    unit: str
    most: int
    period: str

    @classmethod
    def parse(cls, text: str) -> "Quota":
        """A quota from its text; raises ValueError."""
        try:
            match = _FORM.fullmatch(text.strip())
            if match is None:
                raise ValueError
            if match[5]:
                return cls(ALL, DISK, _size(match[5]), "")
            group, unit, period = match[1].lower(), match[2].lower(), match[4].lower()
            return cls(group, unit, _size(match[3]) if unit == BYTES else _number(match[3]), period)
        except ValueError:
            raise ValueError(f"{text.strip()[:100]!r} is not a quota: {FORM}") from None

    @property
    def seconds(self) -> int:
        """The length of the period; 0 for what is stored."""
        return SECONDS.get(self.period, 0)

    @property
    def kind(self) -> str:
        """What is counted, whatever the number: one count for each."""
        return f"{self.group} {self.unit} {self.period}".strip()

    def counts(self, group: str, unit: str) -> bool:
        """True when it counts this unit on routes of this group."""
        return self.unit == unit and self.group in (group, ALL)

    def __str__(self) -> str:
        """Its text."""
        if self.unit == DISK:
            return f"{DISK} {show_size(self.most)}"
        most = show_size(self.most) if self.unit == BYTES else str(self.most)
        return f"{self.group} {self.unit} {most}/{self.period}"


def parse_quotas(text: str) -> tuple[Quota, ...]:
    """Quotas with commas between them, or the word `none`; raises ValueError, which says what is wrong."""
    if text.strip().lower() in (NONE, ""):
        return ()
    quotas = tuple(Quota.parse(part) for part in text.split(","))
    if len(quotas) > MOST_QUOTAS:
        raise ValueError(f"At most {MOST_QUOTAS} quotas are allowed")
    if len({quota.kind for quota in quotas}) < len(quotas):
        raise ValueError("Two quotas have the same group, unit and period")
    return quotas


def show_quotas(quotas: Iterable[Quota]) -> str:
    """The text that `parse_quotas` reads."""
    return ", ".join(map(str, quotas)) or NONE


def check_groups(quotas: Iterable[Quota], groups: Collection[str]) -> None:
    """Raise ValueError for a quota of a group that no route has."""
    for quota in quotas:
        if quota.group not in (ALL, *groups):
            raise ValueError(f"Unknown group of routes {quota.group!r}; expected one of {', '.join(sorted(groups))}")


def quotas(*, of_projects: bool) -> Kind:
    """The setting that holds for every project or key without its own."""

    def parse(value: str) -> str:
        found = parse_quotas(value)
        if not of_projects and any(quota.unit == DISK for quota in found):
            raise ValueError
        return show_quotas(found)

    stored = ', or "disk SIZE",' if of_projects else ""
    return Kind(parse, f'"GROUP UNIT NUMBER/PERIOD"{stored} separated by commas, or none')


def describe(name: tuple[str, str]) -> str:
    """A project or key in a sentence."""
    kind, which = name
    if kind == PROJECT:
        return f"project '{which}'" if which else "requests without a project"
    return f"key '{which}'"

"""Bounds of pages, and query parameters that a route does not have."""

from collections.abc import Iterator
from typing import Any

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from heddle.errors import InvalidRequest, TooLarge
from heddle.settings import Settings
from heddle.wire import jsontext

MOST_REPEATED_BYTES = 10_000


def not_negative(value: int | None, name: str) -> int | None:
    """The value; raises InvalidRequest when it is negative."""
    if value is not None and value < 0:
        raise InvalidRequest(f"{name} must not be negative")
    return None if value is None else min(value, 2**62)


def check_repeated(name: str, value: Any) -> None:
    """Raise InvalidRequest for a large value of a request that is stored anew with each of many calls."""
    size = len(jsontext.dumps_bytes(value))
    if size > MOST_REPEATED_BYTES:
        raise InvalidRequest(
            f"{name} has {size} bytes of JSON; at most {MOST_REPEATED_BYTES} can be stored with each of many calls",
            param=name,
        )


def page_limit(settings: Settings, limit: int | None) -> int | None:
    """The limit of a list; raises TooLarge beyond the setting max_page_rows. None is no limit."""
    most = settings.max_page_rows
    if limit is not None and limit > most:
        raise TooLarge(f"Request too large: a page can have at most {most} rows (limit max_page_rows), got {limit}")
    return limit


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise InvalidRequest for a query parameter that the route lacks: ignored, it would change the answer.

    Who has no key is refused as such.
    """
    if "heddle.caller" not in request.scope:
        return
    known = list(dict.fromkeys(_query_names(request.scope["route"].dependant)))
    for name in request.query_params:
        if name not in known:
            supported = ", ".join(known) or "none"
            raise InvalidRequest(
                f"The query parameter {name[:100]!r} is not supported here; supported: {supported}", param=name
            )


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


KNOWN_PARAMETERS = (Depends(refuse_unknown_parameters),)
"""`dependencies` of routes that refuse others: heddle's own, and those where a misspelt one would delete more."""

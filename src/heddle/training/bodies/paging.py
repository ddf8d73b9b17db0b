"""Pages as clients of the OpenAI kind turn them: `after` is the id of the last item seen (contract training.md, 1)."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

from fastapi import Query

from heddle.errors import InvalidRequest
from heddle.wire.jsontypes import Json

T = TypeVar("T")
MOST, USUAL = 100, 20

After = Annotated[str | None, Query(max_length=200, description="The id of the last item of the page before")]
Limit = Annotated[int, Query(ge=1, le=MOST)]
Order = Annotated[Literal["asc", "desc"], Query()]


def unknown_cursor(after: str) -> InvalidRequest:
    """The answer to an `after` that is no item of the list; to begin again silently would repeat items."""
    return InvalidRequest(f"after: there is no item {after[:100]!r} in this list", param="after")


def cut(rows: Sequence[T], name: Callable[[T], str], after: str | None, limit: int, order: str) -> tuple[list[T], bool]:
    """The rows (given in ascending order) of one page, and whether more follow; raises InvalidRequest."""
    ordered = list(rows) if order == "asc" else list(reversed(rows))
    start = 0
    if after:
        places = [place for place, row in enumerate(ordered) if name(row) == after]
        if not places:
            raise unknown_cursor(after)
        start = places[0] + 1
    return ordered[start : start + limit], len(ordered) > start + limit


def page(items: Sequence[Json], has_more: bool) -> Json:
    """The page object; an empty page has empty ids."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": list(items), "first_id": first, "last_id": last, "has_more": has_more}

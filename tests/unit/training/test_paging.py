"""Pages: every item once, in both orders, whatever the page size; an unknown cursor is refused."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
from heddle.store.control.training_models import LogRow
from heddle.training.routes import Page, page_json


def logs(*ids: str) -> list[LogRow]:
    """Rows of a list."""
    return [LogRow(id_, "model", 0, "val", {}, "", 0, 0, 0, "somebody") for id_ in ids]


@given(st.integers(0, 12), st.integers(1, 5), st.sampled_from(["asc", "desc"]))
def test_following_the_cursor_shows_every_item_once(count: int, limit: int, order: Literal["asc", "desc"]) -> None:
    rows = logs(*(f"id{number}" for number in range(count)))
    seen: list[str] = []
    after = None
    while True:
        chosen, has_more = Page(after, limit, order).cut(rows)
        answer = page_json([{"id": row.id} for row in chosen], has_more)
        seen += [item["id"] for item in answer["data"]]
        assert (answer["first_id"], answer["last_id"]) == ((chosen[0].id, chosen[-1].id) if chosen else ("", ""))
        if not has_more:
            break
        assert len(chosen) == limit
        after = answer["last_id"]
    assert seen == [row.id for row in (rows if order == "asc" else rows[::-1])]


def test_an_empty_cursor_is_the_start() -> None:
    rows = logs("a", "b")
    assert Page("", 1).cut(rows) == (rows[:1], True)


def test_an_unknown_cursor_is_refused() -> None:
    with pytest.raises(InvalidRequest) as raised:
        Page("c").cut(logs("a", "b"))
    assert raised.value.param == "after" and "'c'" in raised.value.reason

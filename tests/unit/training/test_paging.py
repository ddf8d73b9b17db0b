"""Pages: every item once, in both orders, whatever the page size; an unknown cursor is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
from heddle.training.bodies.paging import cut, page


@given(st.integers(0, 12), st.integers(1, 5), st.sampled_from(["asc", "desc"]))
def test_following_the_cursor_shows_every_item_once(count: int, limit: int, order: str) -> None:
    rows = [f"id{number}" for number in range(count)]
    seen: list[str] = []
    after = None
    while True:
        chosen, has_more = cut(rows, str, after, limit, order)
        answer = page([{"id": row} for row in chosen], has_more)
        seen += [item["id"] for item in answer["data"]]
        assert (answer["first_id"], answer["last_id"]) == ((chosen[0], chosen[-1]) if chosen else ("", ""))
        if not has_more:
            break
        assert len(chosen) == limit
        after = answer["last_id"]
    assert seen == (rows if order == "asc" else rows[::-1])


def test_an_empty_cursor_is_the_start() -> None:
    assert cut(["a", "b"], str, "", 1, "asc") == (["a"], True)


def test_an_unknown_cursor_is_refused() -> None:
    with pytest.raises(InvalidRequest) as raised:
        cut(["a", "b"], str, "c", 1, "asc")
    assert raised.value.param == "after" and "'c'" in raised.value.reason

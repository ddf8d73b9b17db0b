"""The prices that queries over agent spans compute costs with: those of the range of time that is asked about."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.store.control.agents.fields import SpanFilter
from heddle.trace.agents.select import MAX_PRICES, prices_for
from tests.unit.agents.test_timeline import price

OWN = {"m": tuple(price("m", at, at) for at in range(10, 10 * (MAX_PRICES + 2), 10))}
ANY = None


def found(after: int | None, before: int | None) -> list[int | None]:
    """From when the prices hold that spans of `[after, before)` are priced with; microseconds, newest first."""

    async def models(_: Any) -> list[str]:
        return ["m", "unpriced"]

    async def project_rows(_: str) -> Any:
        return OWN

    store: Any = SimpleNamespace(
        agent_spans=SimpleNamespace(models=models), costs=SimpleNamespace(project_rows=project_rows)
    )
    return [since for since, _ in asyncio.run(prices_for(store, SpanFilter("p", after, before)))]


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        (25, 45, [40, 30, 20]),
        (20, 40, [30, 20]),
        (19, 21, [20, 10]),
        (0, 20, [10, ANY]),
        (0, 5, [ANY]),
        (ANY, 15, [10, ANY]),
        (10 * MAX_PRICES, ANY, [10 * (MAX_PRICES + 1), 10 * MAX_PRICES]),
    ],
)
def test_only_prices_of_the_range_are_taken(after: int | None, before: int | None, expected: list[int | None]) -> None:
    assert found(after, before) == expected


def test_more_prices_than_a_query_can_hold_are_refused() -> None:
    """A shorter time has fewer."""
    with pytest.raises(InvalidRequest, match=rf"{MAX_PRICES + 2} prices; .* at most {MAX_PRICES}: choose a shorter"):
        found(ANY, ANY)
    assert len(found(20, ANY)) == MAX_PRICES

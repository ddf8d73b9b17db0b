"""The order of a trace, sums below a span, and the prices that hold over time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.store.control.agents.reads import Node
from heddle.store.control.agents.table import OWN_AGENT
from heddle.store.control.costs import PriceRow
from heddle.trace.agents.timeline import Pricing, Timeline
from heddle.trace.prices import Prices, ProjectPrices
from heddle.wire.buckets import pieces


def node(name: str, parent: str = "", at: int = 0, **more: Any) -> Node:
    """A span of a trace."""
    texts = dict.fromkeys(Node._fields, "")
    numbers = dict.fromkeys((field for field in Node._fields if field.endswith("_tokens")), None)
    places = {"span_id": name, "parent_span_id": parent, "started_at": at, "ended_at": at + 10}
    return Node(**{**texts, **numbers, **places, "own": 0, "is_counted": 1, **more})  # type: ignore[arg-type]


def price(model: str, effective: int, cost: float, level: str = "project") -> PriceRow:
    """A price per token, the same for every kind."""
    return PriceRow("id", model, "p", effective, cost, cost, cost, cost, "USD", "USD", "me", effective, level)


@st.composite
def forests(draw: st.DrawFn) -> list[Node]:
    """Spans with any parents: earlier ones, later ones, themselves, and such as are not there."""
    size = draw(st.integers(0, 12))
    parents = st.sampled_from(["", "gone", *map(str, range(size))])
    return [node(str(number), draw(parents), number) for number in range(size)]


@given(forests())
def test_every_span_is_entered_and_left_once(nodes: list[Node]) -> None:
    """Whatever the parents are; spans below another one are entered after it and left before it."""
    timeline = Timeline(nodes)
    assert sorted(timeline.events) == list(range(2 * len(nodes)))
    places = {event: place for place, event in enumerate(timeline.events)}
    depth: list[int] = []
    for event in timeline.events:
        if event % 2:
            assert depth.pop() == event // 2
        else:
            depth.append(event // 2)
    for index in range(len(nodes)):
        assert places[2 * index] < places[2 * index + 1]


def test_labels_and_root() -> None:
    """A span acts for its own agent, else for the nearest one above; the root is the only span without a parent."""
    named: dict[str, Any] = {"own": OWN_AGENT, "operation_name": "invoke_agent"}
    timeline = Timeline(
        [
            node("a", agent_name="boss", **named),
            node("b", "a", 1),
            node("c", "b", 2, agent_id="id7", **named),
            node("d", "c", 3, agent_name="inherited"),
            node("e", "gone", 4, operation_name="invoke_agent", span_name="invoke_agent by name"),
        ]
    )
    assert timeline.labels == ["boss", "boss", "id7", "id7", "by name"]
    assert timeline.root is not None and timeline.root.span_id == "a"
    latest = Timeline([node("x"), node("y", at=5)]).root
    assert latest is not None and latest.span_id == "y"
    assert Timeline([]).root is None


def test_of_spans_that_began_together_the_first_ended_is_first() -> None:
    """Clients of Node tell starts in whole milliseconds; a span is entered before those below it all the same."""
    nodes = [node("a"), node("chat", "a", ended_at=100), node("tool", "a", ended_at=1), node("below", "tool")]
    timeline = Timeline(nodes)
    entered = [nodes[event // 2].span_id for event in timeline.events if not event % 2]
    assert entered == ["a", "tool", "below", "chat"]


def test_sums_below_a_span() -> None:
    """Of the spans that count; of all where none does. A cost is unknown while no model has a price."""
    used: dict[str, Any] = {"input_tokens": 10, "output_tokens": 1}
    timeline = Timeline(
        [
            node("a", is_counted=0, **used),
            node("b", "a", 1, model="m", **used),
            node("c", "a", 2, model="unpriced", **used),
            node("d", at=9, is_counted=0, **used),
        ]
    )
    pricing = Pricing(Prices([]), {"m": (price("m", 0, 0.5),)})
    total = timeline.totals(pricing)
    assert (total.input_tokens, total.output_tokens, total.total_cost_usd) == (20, 2, pytest.approx(5.5))
    below = timeline.subtree(0, pricing)
    assert (below.input_tokens, below.input_cost_usd, below.output_cost_usd) == (
        20,
        pytest.approx(5),
        pytest.approx(0.5),
    )
    assert timeline.subtree(2, pricing).total_cost_usd is None
    assert timeline.subtree(3, pricing).input_tokens == 10


def test_steps_of_a_price_pick_what_the_price_of_the_moment_picks() -> None:
    """For every instant the first step that has begun is the price that `pick` chooses."""
    defaults = [price("m", 10, 1, "default"), price("m", 30, 2, "default")]
    own: ProjectPrices = {"m": (price("m", 20, 3), price("m", 40, 4))}
    prices = Prices(defaults)
    steps = prices.steps(own, "m")
    for at in range(0, 60, 5):
        chosen = next(row for since, row in steps if since is None or since <= at)
        assert chosen is prices.pick(own, "m", at), at
    assert prices.steps(own, "unknown") == []


def test_between_two_changes_one_price_holds() -> None:
    """Of every model, whether its prices are the project's, default ones, or both."""
    prices = Prices([price("m", 10, 1, "default"), price("m", 30, 2, "default"), price("d", 25, 1, "default")])
    own: ProjectPrices = {"m": (price("m", 20, 3),), "d": (price("d", 40, 4), price("d", 45, 5))}
    changes = prices.changes(own)
    assert changes == sorted(set(changes)) and {20, 25, 40, 45} <= set(changes)
    for begin, end in pieces(0, 60, changes):
        for model in ("m", "d"):
            chosen = {prices.pick(own, model, at) for at in range(begin, end)}
            assert len(chosen) == 1, (model, begin, end)
    assert prices.changes({}) == [10, 30]

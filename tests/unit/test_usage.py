"""Usage rolled up along parents."""

from hypothesis import given
from hypothesis import strategies as st

from heddle.trace.calls.packing import usage_entries
from heddle.trace.stats import own_usage, roll_up
from heddle.wire.calls import Usage, UsageRow

counts = st.integers(0, 1000)


@st.composite
def traces(draw: st.DrawFn) -> list[UsageRow]:
    """Calls with random parents among them (or outside), each with usage of up to two models."""
    size = draw(st.integers(1, 12))
    rows = []
    for number in range(size):
        parent = draw(st.one_of(st.none(), st.just("outside"), st.integers(0, max(0, number - 1)).map(str)))
        models = draw(st.lists(st.sampled_from("ab"), unique=True))
        usage = [Usage(model, 1, draw(counts), draw(counts), None, draw(counts), 0) for model in models]
        rows.append(UsageRow(str(number), parent if parent != str(number) else None, True, number, usage))
    return draw(st.permutations(rows))


def below(rows: list[UsageRow], call_id: str) -> list[UsageRow]:
    """A call and all its descendants."""
    found = [row for row in rows if row.id == call_id]
    for row in rows:
        if row.parent_id == call_id:
            found.extend(below(rows, row.id))
    return found


@given(traces())
def test_each_call_has_its_own_and_all_below_it(rows: list[UsageRow]) -> None:
    rolled = roll_up(rows, {row.id: own_usage(row, None) for row in rows})
    for row in rows:
        everything = [usage for found in below(rows, row.id) for usage in found.usage]
        for model in "ab":
            mine = [usage for usage in everything if usage.model == model]
            entry = rolled[row.id].get(model)
            assert (entry is not None) == bool(mine)
            if entry is not None:
                assert entry["prompt_tokens"] == sum(usage.prompt for usage in mine)
                assert entry["total_tokens"] == sum(usage.prompt + usage.completion for usage in mine)
                assert entry["requests"] == len(mine)


def test_a_cycle_of_parents_ends() -> None:
    rows = [UsageRow("a", "b", True, 0, [Usage("m", 1, 1, 1, 2, 0, 0)]), UsageRow("b", "a", True, 0, [])]
    assert roll_up(rows, {row.id: own_usage(row, None) for row in rows})["a"]["m"]["total_tokens"] == 2


def test_entries_of_zeros_are_dropped() -> None:
    assert own_usage(UsageRow("a", None, True, 0, [Usage("m", 0, 0, 0, 0, 0, 0)]), None) == {}


def test_reported_tokens_are_read_whatever_their_form() -> None:
    summary = {
        "usage": {
            "m": {
                "prompt_tokens": "5",
                "input_tokens": 2,
                "completion_tokens": 3.9,
                "requests": True,
                "total_tokens": None,
            },
            "odd": {"prompt_tokens": "many", "total_tokens": 10**30},
            "none": 5,
        }
    }
    assert usage_entries(summary) == [Usage("m", 1, 7, 3, None, 0, 0), Usage("odd", 0, 0, 0, 10**12, 0, 0)]
    assert usage_entries({"usage": [1]}) == []

"""Which price holds for a call, and what its usage comes to."""

import json
from dataclasses import replace
from importlib.resources import files

import pytest

from heddle.store.control.costs import DEFAULT_LEVEL, PROJECT_LEVEL, PriceRow
from heddle.trace.prices import PricedUsage, Prices, call_costs, default_prices
from heddle.wire import times
from heddle.wire.calls import Usage, to_tokens

PRICES = files("heddle.trace").joinpath("prices.json")


def at(text: str) -> int:
    """Microseconds of ISO text."""
    micros = times.parse(text)
    assert micros is not None
    return micros


def price(effective: str, level: str = PROJECT_LEVEL, prompt: float = 0.01, name: str = "m") -> PriceRow:
    """A price of model `m` that is told from others by its date and prompt price."""
    return PriceRow(
        id=f"{level} {effective} {prompt}",
        llm_id=name,
        provider_id="house",
        effective_date=at(effective),
        prompt_token_cost=prompt,
        completion_token_cost=0.1,
        cache_read_input_token_cost=0.001,
        cache_creation_input_token_cost=0.02,
        prompt_token_cost_unit="USD",
        completion_token_cost_unit="USD",
        created_by="ada",
        created_at=at("2024-01-02T03:04:05.678901Z"),
        pricing_level=level,
        pricing_level_id="team/project" if level == PROJECT_LEVEL else level,
    )


def picked(own: list[PriceRow], defaults: list[PriceRow], started: str, model: str = "m") -> str | None:
    """The id of the price that a call gets."""
    found = Prices(defaults).pick({"m": tuple(own)} if own else {}, model, at(started))
    return None if found is None else found.id


def test_the_newest_price_in_force_holds() -> None:
    """Of several dates the last one not after the call."""
    own = [price("2023-01-01"), price("2024-01-01"), price("2025-01-01")]
    assert picked(own, [], "2024-06-01") == own[1].id
    assert picked(own, [], "2024-01-01") == own[1].id
    assert picked(own, [], "2026-06-01") == own[2].id
    assert picked(own[::-1], [], "2024-06-01") == own[1].id


def test_a_projects_price_comes_before_a_default_one() -> None:
    """Even when the default one is newer."""
    own, default = price("2020-01-01"), price("2024-01-01", DEFAULT_LEVEL)
    assert picked([own], [default], "2024-06-01") == own.id


def test_a_default_in_force_comes_before_a_projects_future_price() -> None:
    """A price dated after the call is the last choice, but better than none."""
    own, default = price("2030-01-01"), price("2024-01-01", DEFAULT_LEVEL)
    assert picked([own], [default], "2024-06-01") == default.id
    assert picked([own], [], "2024-06-01") == own.id
    assert picked([own], [price("2029-01-01", DEFAULT_LEVEL)], "2024-06-01") == own.id


def test_of_two_prices_of_one_date_the_later_made_one_holds() -> None:
    """It corrects the first."""
    first, second = price("2024-01-01", prompt=1), price("2024-01-01", prompt=2)
    assert picked([first, second], [], "2024-06-01") == second.id


def test_models_match_exactly() -> None:
    """No other spelling, no prefix."""
    for model in ("M", "m-2024", "openai/m", ""):
        assert picked([price("2020-01-01")], [price("2020-01-01", DEFAULT_LEVEL)], "2024-01-01", model) is None


def test_the_newest_price_whatever_the_time() -> None:
    """What `/calls/stats` uses: the project's before the default ones."""
    own = price("2030-01-01")
    prices = Prices([price("2040-01-01", DEFAULT_LEVEL), price("2010-01-01", DEFAULT_LEVEL)])
    assert prices.pick({"m": (price("2020-01-01"), own)}, "m", None) == own
    found = prices.pick({}, "m", None)
    assert found is not None and found.effective_date == at("2040-01-01")


def test_an_entry_has_the_fields_of_the_contract() -> None:
    """Names, order and values of `summary.weave.costs[model]`."""
    row = price("2024-01-01")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "requests": 1, "total_tokens": 15}
    found = call_costs({"m": usage}, lambda model: row)
    assert found.unpriced == []
    assert found.costs == {
        "m": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "requests": 1,
            "total_tokens": 15,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "prompt_tokens_total_cost": pytest.approx(0.1),
            "completion_tokens_total_cost": pytest.approx(0.5),
            "cache_read_input_tokens_total_cost": 0.0,
            "cache_creation_input_tokens_total_cost": 0.0,
            "prompt_token_cost": 0.01,
            "completion_token_cost": 0.1,
            "cache_read_input_token_cost": 0.001,
            "cache_creation_input_token_cost": 0.02,
            "prompt_token_cost_unit": "USD",
            "completion_token_cost_unit": "USD",
            "effective_date": "2024-01-01T00:00:00.000000Z",
            "provider_id": "house",
            "pricing_level": "project",
            "pricing_level_id": "team/project",
            "created_at": "2024-01-02T03:04:05.678901Z",
            "created_by": "ada",
        }
    }


@pytest.mark.parametrize(
    ("usage", "uncached"),
    [
        ({"prompt_tokens": 1000, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100}, 300),
        ({"input_tokens": 1000, "cache_read_input_tokens": 1000}, 0),
        ({"input_tokens": 20, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100}, 20),
        ({"prompt_tokens": 0, "cache_read_input_tokens": 600}, 0),
        ({"prompt_tokens": 3, "input_tokens": 4}, 7),
    ],
)
def test_cached_tokens_inside_and_beside_the_prompt(usage: dict[str, int], uncached: int) -> None:
    """Cached tokens that fit into the prompt count are part of it; more than that stand beside it. Never below 0."""
    row = price("2024-01-01")
    entry = call_costs({"m": usage}, lambda model: row).costs["m"]
    assert entry["prompt_tokens_total_cost"] == pytest.approx(uncached * 0.01)
    assert entry["cache_read_input_tokens_total_cost"] == pytest.approx(usage.get("cache_read_input_tokens", 0) * 0.001)
    written = usage.get("cache_creation_input_tokens", 0)
    assert entry["cache_creation_input_tokens_total_cost"] == pytest.approx(written * 0.02)


def test_models_without_a_price_are_named_and_have_no_entry() -> None:
    """An unknown price is not 0."""
    row = price("2024-01-01")
    usage = {"z": {"prompt_tokens": 1}, "m": {"prompt_tokens": 1}, "a": {}, "odd": 5}
    found = call_costs(usage, lambda model: row if model == "m" else None)
    assert list(found.costs) == ["m"]
    assert found.unpriced == ["a", "z"]


def test_numbers_are_read_forgivingly() -> None:
    """Texts of digits count, other things are 0."""
    odd = {"prompt_tokens": "5", "input_tokens": 2.9, "requests": True, "total_tokens": None}
    assert Usage.of("m", odd) == Usage("m", 1, 7, 0, None, 0, 0)
    odd = {"prompt_tokens": "many", "completion_tokens": [1], "total_tokens": float("inf"), "requests": {}}
    assert Usage.of("m", odd) == Usage("m", 0, 0, 0, 0, 0, 0)


def test_usage_is_priced_in_four_parts() -> None:
    """Nothing without a price."""
    used = Usage("m", 0, prompt=10, completion=5, total=None, cache_read=4, cache_creation=1)
    priced = PricedUsage.of(used, price("2024-01-01"))
    assert priced == pytest.approx((5 * 0.01, 5 * 0.1, 4 * 0.001, 1 * 0.02))
    assert priced.total == pytest.approx(sum(priced))
    assert PricedUsage.of(used, None) == PricedUsage()


def test_the_default_prices_hold_together() -> None:
    """The data file: many models, plausible prices, cached tokens never free where prompt tokens cost something."""
    prices = default_prices()
    models = prices.models()
    assert len(models) >= 150
    assert len(models) == len(set(models))
    now = times.now()
    for model in models:
        row = prices.pick({}, model, now)
        assert row is not None and row.llm_id == model
        assert (row.pricing_level, row.pricing_level_id, row.created_by) == ("default", "default", "system")
        assert row.created_at == row.effective_date
        assert 0 <= row.prompt_token_cost < 0.01 and 0 <= row.completion_token_cost < 0.01
        assert (row.cache_read_input_token_cost > 0) == (row.prompt_token_cost > 0)


def test_a_projects_own_price_of_a_known_model_is_used() -> None:
    """Default rows and own rows meet under the same name."""
    prices = default_prices()
    model = prices.models()[0]
    own = replace(price("2000-01-01"), llm_id=model)
    assert prices.pick({model: (own,)}, model, times.now()) == own
    default = prices.pick({}, model, times.now())
    assert default is not None and default.pricing_level == "default"


def test_the_picker_of_a_call_asks_by_its_time() -> None:
    """Every model of a call is priced as of its start."""
    old, new = price("2023-01-01"), price("2024-01-01")
    pick = Prices([]).picker({"m": (old, new)}, at("2023-06-01"))
    assert pick("m") == old and pick("other") is None


def test_the_steps_of_a_model_go_back_in_time() -> None:
    """Each with the instant from which it holds; the first price ever holds before, too."""
    first, default, own = price("2023-01-01"), price("2024-01-01", DEFAULT_LEVEL), price("2025-01-01")
    prices = Prices([default])
    assert prices.steps({"m": (own,)}, "m") == [
        (own.effective_date, own),
        (default.effective_date, default),
        (None, own),
    ]
    # The default one comes later than the project's, and so never holds.
    assert prices.steps({"m": (first,)}, "m") == [(first.effective_date, first), (None, first)]
    assert Prices([]).steps({"m": (first, own)}, "m")[-1] == (None, own)
    assert prices.steps({}, "other") == []


def test_two_prices_of_one_date_are_one_step() -> None:
    """Of which only the one that holds is named; the other changes nothing."""
    wrong, right, later = price("2024-01-01", prompt=1), price("2024-01-01", prompt=2), price("2025-01-01")
    assert Prices([]).steps({"m": (wrong, right, later)}, "m") == [
        (later.effective_date, later),
        (right.effective_date, right),
        (None, later),
    ]


def test_the_changes_of_all_models_are_in_order() -> None:
    """Those of the project's models, and of default ones with more than one price."""
    own = price("2024-01-01"), price("2022-01-01")
    defaults = [price(date, DEFAULT_LEVEL, name=name) for name, date in (("a", "2021-01-01"), ("b", "2020-01-01"))]
    defaults += [price("2023-01-01", DEFAULT_LEVEL, name="a")]
    assert Prices(defaults).changes({"m": own}) == [at(f"{year}-01-01") for year in (2021, 2022, 2023, 2024)]
    assert Prices([]).changes({}) == []


def test_a_provider_has_its_own_models_only() -> None:
    """By name, each at its newest price."""
    older, newer = price("2020-01-01", DEFAULT_LEVEL, name="b"), price("2021-01-01", DEFAULT_LEVEL, name="b")
    other = replace(price("2020-01-01", DEFAULT_LEVEL, name="a"), provider_id="elsewhere")
    prices = Prices([older, newer, other])
    assert prices.of_provider("house") == [newer]
    assert prices.of_provider("elsewhere") == [other]
    assert prices.models() == ["a", "b"]


def test_a_default_price_is_that_of_the_data_file() -> None:
    """All four parts of every model."""
    for row in json.loads(PRICES.read_text("utf-8"))["prices"]:
        found = default_prices().pick({}, row["llm_id"], at(row["effective_date"]))
        assert found is not None and found.provider_id == row["provider"]
        assert found.prompt_token_cost == row["input"] and found.completion_token_cost == row["output"]
        assert found.cache_read_input_token_cost == row["cache_read"]
        assert found.cache_creation_input_token_cost == row["cache_write"]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("9" * 19, 10**12),
        ("9" * 20, 0),
        ("-7", -7),
        (" 12 ", 12),
        ("٣", 0),
        ("--7", 0),
        ("+-7", 0),
        (10**12, 10**12),
        (-(10**15), -(10**12)),
        (float("nan"), 0),
    ],
)
def test_a_count_stays_within_its_bounds(value: object, count: int) -> None:
    """Sums over millions of calls fit 64 bits."""
    assert to_tokens(value) == count

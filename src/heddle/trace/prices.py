"""What tokens cost: which price holds for a call, and what its usage comes to (contract: trace-core, 6.3)."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from heddle.store.control.costs import DEFAULT_LEVEL, PriceRow, order_prices
from heddle.store.control.costs import ProjectPrices as ProjectPrices
from heddle.wire import times
from heddle.wire.calls import ModelUsage, Usage, UsageSum

Pick = Callable[[str], PriceRow | None]
"""The price row of a model, None when it has no price."""


class PricedUsage(NamedTuple):
    """What tokens come to, in the price's unit."""

    prompt_tokens_total_cost: float = 0.0
    completion_tokens_total_cost: float = 0.0
    cache_read_input_tokens_total_cost: float = 0.0
    cache_creation_input_tokens_total_cost: float = 0.0

    @classmethod
    def of(cls, used: Usage | ModelUsage | UsageSum, price: PriceRow | None) -> "PricedUsage":
        """The cost of tokens; nothing without a price.

        Some providers count cached tokens inside the prompt tokens, some beside them; more cached tokens than prompt
        tokens can only stand beside.
        """
        if price is None:
            return cls()
        cached = used.cache_read + used.cache_creation
        return cls(
            (used.prompt - cached if cached <= used.prompt else used.prompt) * price.prompt_token_cost,
            used.completion * price.completion_token_cost,
            used.cache_read * price.cache_read_input_token_cost,
            used.cache_creation * price.cache_creation_input_token_cost,
        )

    @property
    def total(self) -> float:
        """All four parts together."""
        prompt = self.prompt_tokens_total_cost + self.cache_read_input_tokens_total_cost
        return prompt + self.cache_creation_input_tokens_total_cost + self.completion_tokens_total_cost


class CallCosts(NamedTuple):
    """The entries of `summary.weave.costs` by model, and the models without a price, sorted."""

    costs: dict[str, dict[str, Any]]
    unpriced: list[str]


def call_costs(usage: Mapping[str, Any], pick: Pick) -> CallCosts:
    """What the usage of a call (`summary.usage`) comes to, model by model."""
    entries: dict[str, dict[str, Any]] = {}
    unpriced: list[str] = []
    for llm_id, reported in usage.items():
        if not isinstance(reported, Mapping):
            continue
        price = pick(llm_id)
        if price is not None:
            entries[llm_id] = cost_entry(Usage.of(llm_id, reported), price)
        elif not reported or any(count is not None for count in reported.values()):
            # Spans without tokens have an entry of nulls.
            unpriced.append(llm_id)
    return CallCosts(entries, sorted(unpriced))


def cost_entry(used: Usage, price: PriceRow) -> dict[str, Any]:
    """One entry of `summary.weave.costs`."""
    return describe_tokens(used) | PricedUsage.of(used, price)._asdict() | _shown(price)


def describe_tokens(used: Usage) -> dict[str, int]:
    """The counts of an answer; a total that was not reported is 0."""
    return {
        "requests": used.requests,
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.total or 0,
        "cache_read_input_tokens": used.cache_read,
        "cache_creation_input_tokens": used.cache_creation,
    }


@lru_cache(maxsize=1024)
def _shown(price: PriceRow) -> dict[str, Any]:
    """What costs tell of their price."""
    instants = {name: times.to_iso(getattr(price, name)) for name in ("effective_date", "created_at")}
    return {name: value for name, value in asdict(price).items() if name not in ("id", "llm_id")} | instants


class Prices:
    """The default prices by model, and the choice between them and a project's own."""

    def __init__(self, rows: Iterable[PriceRow]) -> None:
        self._defaults = order_prices(rows)

    def pick(self, project_rows: ProjectPrices, llm_id: str, started_at: int | None) -> PriceRow | None:
        """The price of a model for a call that started then (microseconds), None when it has none.

        Prices in force come before later ones (all are where the time of the call is None), the project's before
        default ones, newer before older.
        """
        own, defaults = project_rows.get(llm_id, ()), self._defaults.get(llm_id, ())
        in_force = _newest(own, started_at) or _newest(defaults, started_at)
        return in_force or _newest(own, None) or _newest(defaults, None)

    def picker(self, project_rows: ProjectPrices, started_at: int) -> Pick:
        """The choice of a price for the models of one call."""
        return lambda llm_id: self.pick(project_rows, llm_id, started_at)

    def steps(self, project_rows: ProjectPrices, llm_id: str) -> list[tuple[int | None, PriceRow]]:
        """The prices of a model, newest first, each with the instant from which it holds; the last one holds before.

        Empty for a model without a price.
        """
        rows = (*self._defaults.get(llm_id, ()), *project_rows.get(llm_id, ()))
        found: list[tuple[int | None, PriceRow]] = []
        for at in sorted({row.effective_date for row in rows}):
            price = self.pick(project_rows, llm_id, at)
            if price is not None and (not found or found[-1][1] is not price):
                found.append((at, price))
        first = self.pick(project_rows, llm_id, min((row.effective_date for row in rows), default=0) - 1)
        return [] if first is None else [*found[::-1], (None, first)]

    def changes(self, project_rows: ProjectPrices) -> list[int]:
        """The instants at which the price of some model changes, in order."""
        found = set(self._default_changes)
        for llm_id in project_rows:
            found.update(at for at, _ in self.steps(project_rows, llm_id) if at is not None)
        return sorted(found)

    @cached_property
    def _default_changes(self) -> frozenset[int]:
        steps = (self.steps({}, llm_id) for llm_id, rows in self._defaults.items() if len(rows) > 1)
        return frozenset(at for found in steps for at, _ in found if at is not None)

    def models(self) -> list[str]:
        """Every model with a default price, sorted."""
        return sorted(self._defaults)

    def of_provider(self, provider: str) -> list[PriceRow]:
        """The newest default price of each of a provider's models, by name."""
        rows = (self.pick({}, llm_id, None) for llm_id in self.models())
        return [row for row in rows if row is not None and row.provider_id == provider]


def _newest(rows: Sequence[PriceRow], at: int | None) -> PriceRow | None:
    """The last of a model's prices that is in force then, None where none is."""
    place = len(rows) if at is None else bisect_right(rows, at, key=lambda row: row.effective_date)
    return rows[place - 1] if place else None


@cache
def default_prices() -> Prices:
    """The prices of the data file `prices.json` that comes with heddle."""
    text = files("heddle.trace").joinpath("prices.json").read_text("utf-8")
    return Prices(_default_row(entry) for entry in json.loads(text)["prices"])


def _default_row(entry: Mapping[str, Any]) -> PriceRow:
    effective = times.parse(entry["effective_date"])
    if effective is None:
        raise ValueError(f"prices.json: {entry['llm_id']}: effective_date is not a date: {entry['effective_date']!r}")

    return PriceRow(
        id=f"default/{entry['llm_id']}/{entry['effective_date']}",
        llm_id=entry["llm_id"],
        provider_id=entry["provider"],
        effective_date=effective,
        prompt_token_cost=float(entry["input"]),
        completion_token_cost=float(entry["output"]),
        cache_read_input_token_cost=float(entry["cache_read"]),
        cache_creation_input_token_cost=float(entry["cache_write"]),
        prompt_token_cost_unit="USD",
        completion_token_cost_unit="USD",
        created_by="system",
        created_at=effective,
        pricing_level=DEFAULT_LEVEL,
        pricing_level_id=DEFAULT_LEVEL,
    )

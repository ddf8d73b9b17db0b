"""Writes `src/heddle/trace/prices.json`, the default price table, from the registry package `genai-prices`.

    python tools/make_prices.py            # needs: pip install genai-prices
    python tools/make_prices.py --check    # prints what would be written and writes nothing

Only facts are taken: model names as the providers' APIs spell them, prices, and the day a price began.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any

from genai_prices import types
from genai_prices.data import providers

TARGET = Path(__file__).resolve().parent.parent / "src/heddle/trace/prices.json"
MILLION = Decimal(1_000_000)
UNKNOWN_START = date(2020, 1, 1)

# An llm_id that two providers use belongs to the first one named here: the maker before the hosts.
PROVIDERS = (
    "openai anthropic google mistral cohere deepseek x-ai meta moonshotai zai minimax perplexity voyageai aws groq "
    "cerebras together fireworks azure openrouter"
)
OPENROUTER_FAMILIES = (
    "openai anthropic google meta-llama mistralai deepseek qwen x-ai cohere amazon moonshotai "
    "z-ai minimax nvidia microsoft"
)

# Dated API names that the package knows only as "begins with"; each is priced through the package's own matching.
DATED = {
    "openai": (
        "gpt-4-0613 gpt-4-0314 gpt-4-32k-0613 gpt-4-1106-preview gpt-4-0125-preview gpt-4-turbo-2024-04-09 "
        "gpt-3.5-turbo-0125 gpt-3.5-turbo-1106 gpt-4o-2024-05-13 gpt-4o-2024-08-06 gpt-4o-2024-11-20 "
        "gpt-4o-mini-2024-07-18 gpt-4.1-2025-04-14 gpt-4.1-mini-2025-04-14 gpt-4.1-nano-2025-04-14 "
        "o1-2024-12-17 o1-mini-2024-09-12 o1-preview-2024-09-12 o3-2025-04-16 o3-mini-2025-01-31 "
        "o4-mini-2025-04-16 gpt-5-2025-08-07 gpt-5-mini-2025-08-07 gpt-5-nano-2025-08-07"
    ),
    "anthropic": (
        "claude-3-opus-20240229 claude-3-opus-latest claude-3-sonnet-20240229 claude-3-haiku-20240307 "
        "claude-3-5-sonnet-20240620 claude-3-5-sonnet-20241022 claude-3-5-sonnet-latest "
        "claude-3-5-haiku-20241022 claude-3-5-haiku-latest claude-3-7-sonnet-20250219 "
        "claude-3-7-sonnet-latest claude-sonnet-4-20250514 claude-sonnet-4-0 claude-opus-4-20250514 "
        "claude-opus-4-0 claude-opus-4-1-20250805 claude-opus-4-1 claude-sonnet-4-5-20250929 "
        "claude-sonnet-4-5 claude-haiku-4-5-20251001 claude-haiku-4-5 claude-opus-4-5-20251101 "
        "claude-opus-4-5"
    ),
    "google": (
        "gemini-1.5-pro-002 gemini-1.5-flash-002 gemini-1.5-flash-8b-001 gemini-2.0-flash-001 "
        "gemini-2.0-flash-lite-001 gemini-2.5-pro gemini-2.5-flash gemini-2.5-flash-lite "
        "gemini-2.5-pro-preview-06-05 gemini-2.5-flash-preview-05-20"
    ),
    "mistral": (
        "mistral-large-2411 mistral-large-2407 mistral-small-2501 mistral-small-2503 mistral-small-2506 "
        "mistral-medium-2505 mistral-medium-2508 open-mistral-nemo-2407 codestral-2501 pixtral-large-2411 "
        "pixtral-12b-2409 ministral-3b-2410 ministral-8b-2410 magistral-medium-2506 magistral-small-2506"
    ),
    "cohere": (
        "command-r-08-2024 command-r-plus-08-2024 command-r-plus-04-2024 command-r-03-2024 "
        "command-r7b-12-2024 command-a-03-2025"
    ),
    "x-ai": ("grok-3-latest grok-3-mini-latest grok-4-0709 grok-4-latest grok-2-1212 grok-2-vision-1212"),
    "deepseek": "deepseek-chat deepseek-reasoner",
}
# Typed as they are written by openrouter; ":free" costs nothing and ":batch" is a discount, not the model's price.
SKIPPED_SUFFIXES = (":free", ":batch", ":beta", ":extended")
DAY = re.compile(r"(20[12]\d)-?(0[1-9]|1[0-2])-?(0[1-9]|[12]\d|3[01])(?!\d)")


def base_price(price: object) -> Decimal | None:
    """The price of the first tier, in USD per million tokens; None where the package names none."""
    value = price.base if isinstance(price, types.TieredPrices) else price
    return value if isinstance(value, Decimal) else None


def equal_clauses(match: object) -> Iterator[str]:
    """The names that a matching rule spells out in full."""
    if isinstance(match, types.ClauseEquals):
        yield match.equals
    for inner in getattr(match, "or_", None) or ():
        yield from equal_clauses(inner)


def names_of(provider: types.Provider, model: types.ModelInfo) -> list[str]:
    """The llm_ids under which this provider's API answers as `model`."""
    dated = [name for name in DATED.get(provider.id, "").split() if provider.find_model(name) is model]
    spelled = list(equal_clauses(model.match))
    # The hosts' own short ids are no API names where the rule spells another one (fireworks: accounts/...).
    own = [] if provider.id == "fireworks" and spelled else [model.id]
    names = dict.fromkeys(own + spelled + dated)
    return [name for name in names if keep_name(provider.id, name)]


def keep_name(provider: str, name: str) -> bool:
    """False for free and discounted variants, fine-tuning prefixes, and families left out."""
    if name.endswith(SKIPPED_SUFFIXES) or name.startswith("ft:") or " " in name:
        return False
    return provider != "openrouter" or name.partition("/")[0] in OPENROUTER_FAMILIES.split()


def first_day(names: list[str]) -> date:
    """The earliest day written in these names, else the start of the table."""
    days = []
    for name in names:
        if found := DAY.search(name):
            try:
                days.append(date(*map(int, found.groups())))
            except ValueError:
                continue
    return min(days, default=UNKNOWN_START)


def hours_of(window: types.TimeOfDateConstraint) -> float:
    """How many hours of a day the window holds."""
    begin, end = (moment.hour + moment.minute / 60 for moment in (window.start_time, window.end_time))
    return (end - begin) % 24


def dated_prices(model: types.ModelInfo, start: date) -> Iterator[tuple[date, types.ModelPrice]]:
    """Pairs of first day and price; of prices for hours of the day the one that holds longer than half a day stays."""
    conditional = model.prices if isinstance(model.prices, list) else [types.ConditionalPrice(prices=model.prices)]
    begins = [c.constraint.start_date for c in conditional if isinstance(c.constraint, types.StartDateConstraint)]
    if begins and min(begins) <= start:
        start = UNKNOWN_START
    by_hour = [(e.constraint, e.prices) for e in conditional if isinstance(e.constraint, types.TimeOfDateConstraint)]
    standard = next((prices for window, prices in by_hour if hours_of(window) > 12), None)
    for entry in conditional:
        if entry.constraint is None:
            yield start, standard or entry.prices
        elif isinstance(entry.constraint, types.StartDateConstraint):
            yield entry.constraint.start_date, entry.prices


def token_prices(price: types.ModelPrice) -> dict[str, float | None] | None:
    """USD per single token of the five kinds; None where the model is not priced by text tokens or is free.

    A cache price that the provider does not name is the prompt price: that is what it bills.
    """
    prompt = base_price(price.input_mtok)
    completion = base_price(price.output_mtok)
    if prompt is None or not (prompt or completion):
        return None
    read, write = base_price(price.cache_read_mtok), base_price(price.cache_write_mtok)
    reasoning = base_price(getattr(price, "output_reasoning_mtok", None))
    per_million = {
        "input": prompt,
        "output": completion or Decimal(0),
        "cache_read": prompt if read is None else read,
        "cache_write": prompt if write is None else write,
        "reasoning": reasoning,
    }
    return {kind: None if value is None else float(f"{value / MILLION:.8g}") for kind, value in per_million.items()}


def price_rows() -> list[dict[str, Any]]:
    """All rows of the table, the providers in their order, names in alphabetical order."""
    by_id = {provider.id: provider for provider in providers}
    taken: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for provider in (by_id[name] for name in PROVIDERS.split()):
        found: dict[str, list[dict[str, Any]]] = {}
        for model in provider.models:
            for name in names_of(provider, model):
                if name not in taken:
                    found.setdefault(name, []).extend(rows_of(provider.id, model, name))
        for name in sorted(name for name, entries in found.items() if entries):
            taken[name] = provider.id
            rows.extend(found[name])
    return rows


def rows_of(provider: str, model: types.ModelInfo, name: str) -> list[dict[str, Any]]:
    """The rows of one llm_id, oldest first; a change that leaves the token prices as they were is no row."""
    start = first_day([name]) if DAY.search(name) else first_day(list(equal_clauses(model.match)))
    rows: list[dict[str, Any]] = []
    last: dict[str, float | None] | None = None
    for day, price in sorted(dated_prices(model, start), key=lambda pair: pair[0]):
        prices = token_prices(price)
        if prices is not None and prices != last:
            rows.append({"llm_id": name, "provider": provider, "effective_date": f"{day}T00:00:00Z", **prices})
            last = prices
    return rows


def table_text(rows: list[dict[str, Any]], day: str) -> str:
    """The file: a head of few lines, then one price per line."""
    notes = [
        "Prices are USD per single token, of the providers' standard tier: no batch, flex or priority rates, "
        "and of prices by the hour of the day the one that "
        "holds longest.",
        "Where a price depends on the length of the prompt or on the life of a cache entry, this is the first tier.",
        "A kind of cached token for which the provider names no price has the price of a prompt token.",
        "reasoning null: reasoning tokens cost what completion tokens cost.",
        "effective_date: the day the source gives, else the day in the model's name, else 2020-01-01.",
    ]
    head = {
        "source": f"PyPI genai-prices {metadata.version('genai-prices')} (MIT), by tools/make_prices.py",
        "date": day,
        "currency": "USD",
        "notes": notes,
    }
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return json.dumps(head, indent=1)[:-2] + ',\n "prices": [\n' + lines + "\n]}\n"


def main() -> None:
    """Write the table and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only print the counts")
    parser.add_argument("--date", default=datetime.now(UTC).date().isoformat(), help="the date written into the file")
    arguments = parser.parse_args()
    rows = price_rows()
    text = table_text(rows, arguments.date)
    json.loads(text)
    if not arguments.check:
        TARGET.write_text(text, encoding="utf-8")
    print(f"{len(rows)} prices of {len({row['llm_id'] for row in rows})} models, {len(text.encode()) / 1000:.0f} kB")
    print(dict(Counter(row["provider"] for row in rows)))


if __name__ == "__main__":
    main()

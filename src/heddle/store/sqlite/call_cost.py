"""A condition on what a call cost: its usage, priced by a function of the caller."""

import sqlite3

from heddle.wire.calls import CostTest
from heddle.wire.inference import CostOf

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


FIGURES = "n.v, u.started_at, u.requests, u.prompt, u.completion, u.cache_read, u.cache_creation"
"""What `call_cost` takes, of a row `u` of usage and the name `n` of its model."""


def set_price(raw: sqlite3.Connection, price: CostOf) -> None:
    """Make the prices a function `call_cost` of the connection."""

    def cost(model: str, at: int, requests: int, prompt: int, completion: int, read: int, created: int) -> float | None:
        return price(
            model,
            at,
            requests=requests,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=read,
            created_tokens=created,
        )

    raw.create_function("call_cost", 7, cost)


def condition(raw: sqlite3.Connection, test: CostTest) -> str:
    """The SQL of a test on the dollars of the current call `c`; the prices become a function of the connection."""
    set_price(raw, test.price)
    return f"""ifnull((SELECT sum(call_cost({FIGURES})) FROM usage u JOIN names n ON n.k = u.model
        WHERE u.project = c.project AND u.started_at = c.started_at AND u.rid = c.rid), 0)
        {_OPERATORS[test.op]} {float(test.dollars)!r}"""

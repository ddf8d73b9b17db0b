"""Prices of a project: create, query, purge, and what they do to the costs of calls."""

import uuid
from typing import Any

import pytest

from tests.conftest import Wire

ON_BOTH_STORES = True

Json = Any
PRICE = {"prompt_token_cost": 0.01, "completion_token_cost": 0.1}
UNITS = {"prompt_token_cost_unit": "USD", "completion_token_cost_unit": "USD"}
PURGE_REASON = "Can only purge costs by specifying one or more cost ids"


def field(path: str) -> Json:
    """A field operand."""
    return {"$getField": path}


def literal(value: Json) -> Json:
    """A constant operand."""
    return {"$literal": value}


def eq(path: str, value: Json) -> Json:
    """A field equals a constant."""
    return {"$eq": [field(path), literal(value)]}


def create(wire: Wire, **costs: Json) -> dict[str, str]:
    """The ids of created prices by model."""
    made = wire.post("/cost/create", costs=costs)["ids"]
    assert [model for _, model in made] == list(costs)
    return {model: cost_id for cost_id, model in made}


def found(wire: Wire, **body: Json) -> list[Json]:
    """The selected prices."""
    return list(wire.post("/cost/query", **body)["results"])


def models(wire: Wire, **body: Json) -> list[str]:
    """The models of the selected prices."""
    return [row["llm_id"] for row in found(wire, **body)]


def failure(wire: Wire, path: str, **body: Json) -> tuple[int, Json]:
    """Status and reason of a refused request."""
    answer = wire.client.post(path, json={"project_id": wire.project, **body})
    return answer.status_code, answer.json().get("reason")


def test_what_is_created_is_read_back(wire: Wire) -> None:
    """With defaults filled in, in the order of creation."""
    full = {
        "prompt_token_cost": 5e-06,
        "completion_token_cost": 1.5e-05,
        "cache_read_input_token_cost": 1e-06,
        "cache_creation_input_token_cost": 2e-06,
        "prompt_token_cost_unit": "EUR",
        "completion_token_cost_unit": "EUR",
        "effective_date": "2024-05-01T12:00:00+02:00",
        "provider_id": "house",
    }
    ids = create(wire, full=full, short=PRICE)
    first, second = found(wire)
    assert first == {"id": ids["full"], "llm_id": "full", **full, "effective_date": "2024-05-01T10:00:00.000000Z"}
    assert second.pop("effective_date") > "2025"
    assert second == {
        "id": ids["short"],
        "llm_id": "short",
        **PRICE,
        "cache_read_input_token_cost": 0,
        "cache_creation_input_token_cost": 0,
        **UNITS,
        "provider_id": "default",
    }


def test_creating_again_adds_a_row(wire: Wire) -> None:
    """Nothing is merged; null units and providers get the defaults."""
    create(wire, m=PRICE)
    create(wire, m={**PRICE, "prompt_token_cost_unit": None, "provider_id": None, "effective_date": None})
    assert models(wire) == ["m", "m"]
    assert len({row["id"] for row in found(wire)}) == 2
    assert {row["prompt_token_cost_unit"] for row in found(wire)} == {"USD"}
    assert wire.post("/cost/create", costs={}) == {"ids": []}


def test_queries_see_only_the_project(wire: Wire) -> None:
    """A query does not replace the restriction to the project."""
    create(wire, m=PRICE)
    other = f"{wire.project}-other"
    wire.post("/cost/create", project_id=other, costs={"n": PRICE})
    everything = {"$expr": {"$eq": [literal(1), literal(1)]}}
    assert models(wire, query=everything) == ["m"]
    assert models(wire, project_id=other, query=everything) == ["n"]
    assert models(wire, query={"$expr": eq("pricing_level_id", wire.project)}) == ["m"]
    assert models(wire, query={"$expr": eq("pricing_level", "project")}) == ["m"]
    assert models(wire, query={"$expr": eq("pricing_level", "default")}) == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"$eq": [literal("1"), literal("1")]}, ["a", "b", "c"]),
        ({"$eq": [literal(1), literal(2)]}, []),
        ({"$eq": [literal(1), literal("1")]}, []),
        (eq("llm_id", "b"), ["b"]),
        ({"$in": [field("llm_id"), [literal("a"), literal("c"), literal("z"), literal(5)]]}, ["a", "c"]),
        ({"$in": [field("llm_id"), []]}, []),
        ({"$not": [{"$in": [field("llm_id"), []]}]}, ["a", "b", "c"]),
        ({"$gt": [field("prompt_token_cost"), literal(1)]}, ["b", "c"]),
        ({"$gte": [literal(2), field("prompt_token_cost")]}, ["a", "b"]),
        ({"$lt": [field("prompt_token_cost"), literal("1")]}, []),
        ({"$gt": [field("effective_date"), literal("2024-01-01")]}, ["b", "c"]),
        ({"$lte": [field("effective_date"), literal(1704067200)]}, ["a"]),
        (eq("effective_date", "2024-01-01T00:00:00Z"), ["a"]),
        (eq("effective_date", "no date"), []),
        ({"$not": [eq("effective_date", "no date")]}, ["a", "b", "c"]),
        ({"$in": [field("effective_date"), [literal("2024-01-01"), literal("2025-01-01")]]}, ["a", "b"]),
        ({"$contains": {"input": field("provider_id"), "substr": literal("OU"), "case_insensitive": True}}, ["b"]),
        ({"$contains": {"input": field("provider_id"), "substr": literal("OU")}}, []),
        ({"$and": [eq("provider_id", "default"), {"$not": [eq("llm_id", "a")]}]}, ["c"]),
        ({"$or": [eq("llm_id", "a"), eq("llm_id", "b")]}, ["a", "b"]),
        (eq("created_by", None), []),
        ({"$eq": [{"$convert": {"input": field("prompt_token_cost"), "to": "string"}}, literal("2")]}, ["b"]),
        ({"$eq": [{"$convert": {"input": field("prompt_token_cost"), "to": "int"}}, literal(2)]}, ["b"]),
        ({"$eq": [field("prompt_token_cost"), field("completion_token_cost")]}, ["c"]),
    ],
)
def test_queries(wire: Wire, condition: Json, expected: list[str]) -> None:
    """Columns of every type with every operator."""
    create(
        wire,
        a={"prompt_token_cost": 1, "completion_token_cost": 0.5, "effective_date": "2024-01-01T00:00:00Z"},
        b={
            "prompt_token_cost": 2,
            "completion_token_cost": 1,
            "effective_date": "2025-01-01T00:00:00Z",
            "provider_id": "house",
        },
        c={"prompt_token_cost": 2.5, "completion_token_cost": 2.5},
    )
    assert models(wire, query={"$expr": condition}) == expected


def test_order_pages_and_fields(wire: Wire) -> None:
    """Fields that were not asked for are null."""
    create(wire, a={**PRICE, "prompt_token_cost": 2}, b={**PRICE, "prompt_token_cost": 3}, c=PRICE)
    by_price = [{"field": "prompt_token_cost", "direction": "desc"}]
    assert models(wire, sort_by=by_price) == ["b", "a", "c"]
    assert models(wire, sort_by=by_price, limit=1, offset=1) == ["a"]
    assert models(wire, limit=0) == []
    assert models(wire, offset=2) == ["c"]
    assert models(wire, offset=9) == []
    rows = found(wire, fields=["llm_id", "created_by"], limit=1)
    assert rows == [dict.fromkeys(found(wire)[0]) | {"llm_id": "a"}]


def test_refused_queries(wire: Wire) -> None:
    """Unknown fields, negative pages, a number where text is needed."""
    assert failure(wire, "/cost/query", fields=["nonsense"]) == (400, "Unknown field: nonsense")
    assert failure(wire, "/cost/query", query={"$expr": eq("nonsense", 1)}) == (400, "Unknown field: nonsense")
    nonsense = [{"field": "nonsense", "direction": "asc"}]
    assert failure(wire, "/cost/query", sort_by=nonsense) == (400, "Unknown field: nonsense")
    assert failure(wire, "/cost/query", limit=-1) == (400, "Limit must be non-negative")
    assert failure(wire, "/cost/query", offset=-1) == (400, "Offset must be non-negative")
    number = {"$contains": {"input": field("llm_id"), "substr": literal(5)}}
    assert failure(wire, "/cost/query", query={"$expr": number})[0] == 400
    assert failure(wire, "/cost/create", costs={"m": {"prompt_token_cost": 1}})[0] == 422
    assert failure(wire, "/cost/create", costs={"m": {**PRICE, "prompt_token_cost": "dear"}})[0] == 422
    for number in ("NaN", "Infinity", "-inf", -0.1, 1e300):
        assert failure(wire, "/cost/create", costs={"m": {**PRICE, "completion_token_cost": number}})[0] == 422
    early = {"m": {**PRICE, "effective_date": "0001-01-01T00:00:00+14:00"}}
    assert failure(wire, "/cost/create", costs=early)[0] == 400
    assert found(wire) == []


def test_purge_takes_ids_only(wire: Wire) -> None:
    """`$eq`, `$in` and `$or` of `$eq`; everything else is refused and deletes nothing."""
    ids = create(wire, a=PRICE, b=PRICE, c=PRICE, d=PRICE, e=PRICE)
    for refused in (
        eq("llm_id", "a"),
        {"$eq": [literal(ids["a"]), field("id")]},
        eq("id", 5),
        {"$in": [field("llm_id"), [literal("a")]]},
        {"$in": [field("id"), [field("id")]]},
        {"$and": [eq("id", ids["a"])]},
        {"$not": [eq("id", ids["a"])]},
        {"$or": [eq("id", ids["a"]), eq("llm_id", "b")]},
        {"$gte": [field("id"), literal("")]},
    ):
        assert failure(wire, "/cost/purge", query={"$expr": refused}) == (400, PURGE_REASON)
    assert models(wire) == ["a", "b", "c", "d", "e"]
    assert wire.post("/cost/purge", query={"$expr": eq("id", ids["a"])}) == {}
    assert models(wire) == ["b", "c", "d", "e"]
    wire.post("/cost/purge", query={"$expr": {"$in": [field("id"), [literal(ids["b"]), literal("unknown")]]}})
    assert models(wire) == ["c", "d", "e"]
    wire.post("/cost/purge", query={"$expr": {"$or": [eq("id", ids["c"]), eq("id", ids["d"])]}})
    assert models(wire) == ["e"]
    wire.post("/cost/purge", query={"$expr": {"$in": [field("id"), []]}})
    wire.post("/cost/purge", project_id=f"{wire.project}-other", query={"$expr": eq("id", ids["e"])})
    assert models(wire) == ["e"]


def call_with(wire: Wire, usage: Json, started: str = "2024-06-01T00:00:00Z") -> str:
    """The id of a finished call that used tokens."""
    call_id = str(uuid.uuid4())
    call = {
        "project_id": wire.project,
        "id": call_id,
        "trace_id": str(uuid.uuid4()),
        "op_name": "ask",
        "started_at": started,
        "ended_at": "2024-06-01T00:00:01Z",
        "attributes": {},
        "inputs": {},
        "output": None,
        "summary": {"usage": usage},
    }
    answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [call]})
    assert answer.status_code == 200, answer.text
    return call_id


def costs_of(wire: Wire, call_id: str) -> Json:
    """The costs that a call shows; None without any."""
    return wire.call(call_id, include_costs=True)["summary"]["weave"].get("costs")


def test_costs_of_a_call_follow_the_prices(wire: Wire) -> None:
    """A new price, and its purge, change what is shown at once."""
    call_id = call_with(wire, {"house-model": {"prompt_tokens": 10, "completion_tokens": 5}})
    assert costs_of(wire, call_id) is None
    ids = create(wire, **{"house-model": {**PRICE, "effective_date": "2024-01-01T00:00:00Z"}})
    entry = costs_of(wire, call_id)["house-model"]
    assert entry["prompt_tokens_total_cost"] == pytest.approx(0.1)
    assert entry["completion_tokens_total_cost"] == pytest.approx(0.5)
    assert (entry["pricing_level"], entry["pricing_level_id"]) == ("project", wire.project)
    assert entry["effective_date"] == "2024-01-01T00:00:00.000000Z"
    newer = {**PRICE, "prompt_token_cost": 1, "effective_date": "2024-05-01T00:00:00Z"}
    later = {**PRICE, "prompt_token_cost": 9, "effective_date": "2024-07-01T00:00:00Z"}
    create(wire, **{"house-model": newer})
    create(wire, **{"house-model": later})
    assert costs_of(wire, call_id)["house-model"]["prompt_tokens_total_cost"] == pytest.approx(10)
    for row in found(wire):
        wire.post("/cost/purge", query={"$expr": eq("id", row["id"])})
    assert ids["house-model"] and found(wire) == []
    assert costs_of(wire, call_id) is None


def test_cached_tokens_are_priced_apart(wire: Wire) -> None:
    """Inside the prompt count, and beside it."""
    cached = {"cache_read_input_token_cost": 0.001, "cache_creation_input_token_cost": 0.02}
    create(wire, m={**PRICE, **cached, "effective_date": "2024-01-01T00:00:00Z"})
    tokens = {"output_tokens": 10, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100}
    inside = costs_of(wire, call_with(wire, {"m": {**tokens, "input_tokens": 1000}}))["m"]
    beside = costs_of(wire, call_with(wire, {"m": {**tokens, "input_tokens": 20}}))["m"]
    assert inside["prompt_tokens_total_cost"] == pytest.approx(300 * 0.01)
    assert beside["prompt_tokens_total_cost"] == pytest.approx(20 * 0.01)
    for entry in (inside, beside):
        assert entry["cache_read_input_tokens_total_cost"] == pytest.approx(0.6)
        assert entry["cache_creation_input_tokens_total_cost"] == pytest.approx(2)
        assert entry["completion_tokens_total_cost"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("details", "read", "written"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 600, "audio_tokens": None}}, 600, 0),
        ({"input_tokens_details": {"cached_tokens": 600}}, 600, 0),
        ({"prompt_tokens_details": {"cached_tokens": 600, "cache_creation_tokens": 100}}, 600, 100),
        ({"prompt_tokens_details": {"cached_tokens": "600", "cache_write_tokens": 100}}, 600, 100),
        # What is told twice counts once.
        ({"cache_read_input_tokens": 500, "prompt_tokens_details": {"cached_tokens": 600}}, 500, 0),
        ({"prompt_tokens_details": {"cached_tokens": None}}, 0, 0),
        ({"prompt_tokens_details": [600]}, 0, 0),
    ],
)
def test_cached_tokens_may_be_told_as_parts_of_the_prompt(wire: Wire, details: Json, read: int, written: int) -> None:
    """As OpenAI and its gateways tell them; the call, its trace and sums of the project agree."""
    cached = {"cache_read_input_token_cost": 0.001, "cache_creation_input_token_cost": 0.02}
    create(wire, m={**PRICE, **cached, "effective_date": "2024-01-01T00:00:00Z"})
    call_id = call_with(wire, {"m": {"prompt_tokens": 1000, "completion_tokens": 10, **details}})
    expected = {
        "prompt_tokens_total_cost": pytest.approx((1000 - read - written) * 0.01),
        "completion_tokens_total_cost": pytest.approx(1),
        "cache_read_input_tokens_total_cost": pytest.approx(read * 0.001),
        "cache_creation_input_tokens_total_cost": pytest.approx(written * 0.02),
    }
    of_call = costs_of(wire, call_id)["m"]
    of_trace = wire.post("/calls/usage", call_ids=[call_id], include_costs=True)["call_usage"][call_id]["m"]
    for entry in (of_call, of_trace):
        assert {name: entry[name] for name in expected} == expected
        assert (entry["cache_read_input_tokens"], entry["cache_creation_input_tokens"]) == (read, written)


def test_thoughts_beside_the_completion_are_paid_as_output(wire: Wire) -> None:
    """As weave tells Gemini's tokens: its total has them all."""
    create(wire, m={**PRICE, "effective_date": "2024-01-01T00:00:00Z"})
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "thoughts_tokens": 40, "total_tokens": 150}
    entry = costs_of(wire, call_with(wire, {"m": usage}))["m"]
    assert entry["completion_tokens_total_cost"] == pytest.approx(50 * 0.1)
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["total_tokens"]) == (100, 50, 150)


def test_models_without_a_price_have_no_entry(wire: Wire) -> None:
    """Others of the same call do."""
    usage = {"nobody-knows-it": {"prompt_tokens": 7}, "gpt-4o-2024-08-06": {"prompt_tokens": 1000}}
    assert list(costs_of(wire, call_with(wire, usage, "2025-06-01T00:00:00Z"))) == ["gpt-4o-2024-08-06"]

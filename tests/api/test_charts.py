"""Figures for charts: every measure by any field, over time and by size, against sums made by hand; dashboards."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Wire

ON_BOTH_STORES = True

Json = Any
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
MODELS = ("gpt-4o", "gpt-4o-mini", "made.of/words")
PRICE = {"prompt_token_cost": 0.001, "completion_token_cost": 0.002, "effective_date": "2025-01-01T00:00:00Z"}
SCORER = "wandb.runnable.tone"


def _call(project: str, number: int, chance: random.Random) -> Json:
    started = BEGIN + timedelta(minutes=7 * number)
    model = chance.choice(MODELS)
    city = chance.choice(["Kiel", "Ulm", "Rom", "北京", None])
    usage = {model: {"prompt_tokens": chance.randrange(100), "completion_tokens": chance.randrange(9), "requests": 1}}
    return {
        "project_id": project,
        "id": f"018f0000-0000-7000-8000-{number:012d}",
        "trace_id": f"trace{number}",
        "op_name": chance.choice(["chat", "search"]),
        "started_at": started.isoformat(),
        "ended_at": (started + timedelta(milliseconds=chance.randrange(1, 900))).isoformat(),
        "attributes": {"tenant": chance.choice(["a", "b"])},
        "inputs": {"size": chance.choice([1, 2.5, "4", "many", None]), **({"city": city} if city else {})},
        "output": {"ok": chance.choice([True, False, None])},
        "summary": {"usage": usage} if number % 3 else {},
        "exception": "ValueError: no" if number % 5 == 0 else None,
    }


@pytest.fixture
def calls(wire: Wire) -> list[Json]:
    """Sixty calls over seven hours, and a price for each model."""
    chance = random.Random(7)
    made = [_call(wire.project, number, chance) for number in range(60)]
    answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": made})
    assert answer.status_code == 200, answer.text
    wire.post("/cost/create", costs=dict.fromkeys(MODELS[:2], PRICE))
    return made


def ask(wire: Wire, **body: Json) -> Json:
    """The figures of the time in which there are calls."""
    times = {"start": BEGIN.isoformat(), "end": (BEGIN + timedelta(hours=8)).isoformat(), "granularity": 3600}
    return wire.post("/calls/aggregate", **{**times, **body})


def _number(value: Json) -> float | None:
    if isinstance(value, bool | int | float):
        return float(value)
    return float(value) if value == "4" else None


def _hour(call: Json) -> int:
    return (datetime.fromisoformat(call["started_at"]) - BEGIN) // timedelta(hours=1)


def test_counts_add_up_by_any_field_and_time(wire: Wire, calls: list[Json]) -> None:
    paths = {
        "op_name": lambda call: call["op_name"],
        "inputs.city": lambda call: call["inputs"].get("city") or "",
        "attributes.tenant": lambda call: call["attributes"]["tenant"],
        "summary.weave.status": lambda call: "error" if call["exception"] else "success",
        "output.ok": lambda call: {True: "true", False: "false", None: ""}[call["output"]["ok"]],
    }
    for path, read in paths.items():
        found = ask(wire, measures=[{"field": "calls"}, {"field": "errors"}], group_by=path)
        counts: dict[str, list[int]] = {}
        for call in calls:
            counts.setdefault(read(call), [0] * 8)[_hour(call)] += 1
        assert {one["group"]: one["values"] for one in found["series"] if one["measure"] == 0} == counts
        assert all(one["value"] == sum(one["values"]) for one in found["series"])
        assert sum(one["value"] for one in found["series"] if one["measure"] == 1) == 12
        assert found["groups"] == sorted(counts, key=lambda name: (-sum(counts[name]), name))


def test_the_others_are_one_group(wire: Wire, calls: list[Json]) -> None:
    measures = [{"field": "latency_ms", "aggregation": "p50"}, {"field": "calls"}]
    found = ask(wire, measures=measures, group_by="inputs.city", limit=2, granularity=0)
    assert len(found["groups"]) == 3 and found["groups"][2] is None and found["buckets"] == []
    kept = [group for group in found["groups"] if group is not None]
    rest = [call for call in calls if (call["inputs"].get("city") or "") not in kept]
    median, count = [one for one in found["series"] if one["is_other"]]
    assert count["value"] == len(rest)
    took = sorted(
        (datetime.fromisoformat(c["ended_at"]) - datetime.fromisoformat(c["started_at"])) / timedelta(milliseconds=1)
        for c in rest
    )
    middle = (took[(len(took) - 1) // 2] + took[len(took) // 2]) / 2
    assert median["value"] == pytest.approx(middle)


def test_numbers_of_any_field(wire: Wire, calls: list[Json]) -> None:
    sizes = [size for call in calls if (size := _number(call["inputs"]["size"])) is not None]
    truths = [call["output"]["ok"] for call in calls if call["output"]["ok"] is not None]
    expected = {
        ("inputs.size", "sum"): sum(sizes),
        ("inputs.size", "avg"): sum(sizes) / len(sizes),
        ("inputs.size", "count"): len(sizes),
        ("inputs.size", "max"): 4.0,
        ("inputs.size", "p100"): 4.0,
        ("output.ok", "avg"): sum(truths) / len(truths),
        ("output.ok", "count_true"): sum(truths),
        ("error_share", None): 12 / 60,
    }
    for (field, aggregation), value in expected.items():
        found = ask(wire, measures=[{"field": field, "aggregation": aggregation}], granularity=0)
        assert [one["value"] for one in found["series"]] == [pytest.approx(value)], (field, aggregation)


def test_sums_of_whole_numbers_beyond_64_bits(wire: Wire) -> None:
    """The sum of the starts of some thousand calls was such a one, and no answer at all."""
    made = [_call(wire.project, number, random.Random(7)) for number in range(40)]
    made = [call | dict.fromkeys(("started_at", "ended_at"), "9998-01-01T00:00:00Z") for call in made]
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": made}).status_code == 200
    micros = 253_339_228_800_000_000
    for aggregation, value in {"sum": 40.0 * micros, "avg": float(micros), "max": float(micros)}.items():
        measures = [{"field": "started_at", "aggregation": aggregation}]
        found = wire.post("/calls/aggregate", measures=measures, granularity=0, end="9999-01-01T00:00:00Z")
        assert [one["value"] for one in found["series"]] == [value]


def test_scores_are_fields(wire: Wire, calls: list[Json]) -> None:
    for at, kind in enumerate((0.25, 0.75, True)):
        wire.post(
            "/feedback/create",
            weave_ref=f"weave:///{wire.project}/call/{calls[at]['id']}",
            feedback_type=SCORER,
            payload={"output": {"kind": kind}},
            runnable_ref=f"weave:///{wire.project}/object/tone:{'a' * 43}",
        )
    path = f"feedback.[{SCORER}].payload.output.kind"
    found = ask(wire, measures=[{"field": path}, {"field": path, "aggregation": "count"}], granularity=0)
    assert [one["value"] for one in found["series"]] == [pytest.approx(2 / 3), 3]


def test_cost_and_tokens_by_model_and_by_field(wire: Wire, calls: list[Json]) -> None:
    used = [(call, model, usage) for call in calls for model, usage in call["summary"].get("usage", {}).items()]
    costs: dict[str, float] = {}
    tokens: dict[str, int] = {}
    for call, model, usage in used:
        tokens[model] = tokens.get(model, 0) + usage["prompt_tokens"]
        if model in MODELS[:2]:
            tenant = call["attributes"]["tenant"]
            dollars = 0.001 * usage["prompt_tokens"] + 0.002 * usage["completion_tokens"]
            costs[tenant] = costs.get(tenant, 0) + dollars
    found = ask(wire, measures=[{"field": "cost"}], group_by="attributes.tenant")
    assert {one["group"]: one["value"] for one in found["series"]} == pytest.approx(costs)
    assert found["unpriced_models"] == [MODELS[2]]
    for one in found["series"]:
        assert sum(value or 0 for value in one["values"]) == pytest.approx(one["value"])
    found = ask(wire, measures=[{"field": "input_tokens"}, {"field": "calls"}], group_by="model")
    assert {one["group"]: one["value"] for one in found["series"] if one["measure"] == 0} == tokens
    assert sum(one["value"] for one in found["series"] if one["measure"] == 1) == len(used)
    totals = ask(wire, measures=[{"field": "total_tokens"}])["series"][0]
    assert totals["value"] == sum(usage["prompt_tokens"] + usage["completion_tokens"] for _, _, usage in used)
    found = ask(wire, measures=[{"field": "latency_ms", "aggregation": "max"}], group_by="model", limit=1)
    assert [one["is_other"] for one in found["series"]] == [False, True]


def test_sizes_are_counted_in_round_steps(wire: Wire, calls: list[Json]) -> None:
    found = ask(wire, measures=[{"field": "inputs.size"}], bins=4, group_by="attributes.tenant")
    assert found["series"] == [] and sorted(found["groups"]) == ["a", "b"]
    for one in found["bins"]:
        inside = [size for call in calls if (size := _number(call["inputs"]["size"])) is not None]
        assert sum(one["counts"]) == sum(one["lower"] <= size < one["upper"] for size in inside)
    assert sum(count for one in found["bins"] for count in one["counts"]) == sum(
        _number(call["inputs"]["size"]) is not None for call in calls
    )


@pytest.mark.parametrize(
    "values",
    [
        [1.7e308, -1.7e308, 0, 5e-324],
        [5e-324, 1e-323, 2e-323],
        [1e16, 1e16 + 2],
        [1e-20, 2e-20, 5e-20],
        [1.7e308],
        [5e-324],
        [0],
    ],
    ids=repr,
)
@pytest.mark.parametrize("bins", [1, 7])
def test_each_number_has_its_step_however_large_or_small(wire: Wire, values: list[float], bins: int) -> None:
    batch = [
        _call(wire.project, number, random.Random(1)) | {"inputs": {"size": value}}
        for number, value in enumerate(values)
    ]
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": batch}).status_code == 200
    found = ask(wire, measures=[{"field": "inputs.size"}], bins=bins)["bins"]
    assert sum(count for one in found for count in one["counts"]) == len(values)
    for one in found[:-1]:
        assert one["counts"] == [sum(one["lower"] <= value < one["upper"] for value in values)]
    assert found[0]["lower"] <= min(values) and found[-1]["upper"] >= max(values)


def test_calls_at_both_ends_of_the_calendar_leave_a_chart(wire: Wire) -> None:
    """One call with a wrong clock made charts of everything a 400."""
    ends = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")
    made = [
        _call(wire.project, number, random.Random(7)) | dict.fromkeys(("started_at", "ended_at"), at)
        for number, at in enumerate(ends)
    ]
    assert wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": made}).status_code == 200
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        found = wire.post("/calls/aggregate", timezone=zone)
        assert (found["buckets"][0][:4], found["series"][0]["value"]) == ("0001", 1)
        last = wire.post(
            "/calls/aggregate", timezone=zone, start="9999-12-30T00:00:00Z", end=ends[1], granularity=86_400
        )
        assert last["buckets"][-1][:4] == "9999"


def test_filters_and_queries_hold(wire: Wire, calls: list[Json]) -> None:
    query = {"$expr": {"$eq": [{"$getField": "attributes.tenant"}, {"$literal": "a"}]}}
    found = ask(wire, query=query, filter={"op_names": ["chat"]}, group_by="op_name", granularity=0)
    wanted = [call for call in calls if call["attributes"]["tenant"] == "a" and call["op_name"] == "chat"]
    assert [(one["group"], one["value"]) for one in found["series"]] == [("chat", len(wanted))]
    assert ask(wire, filter={"op_names": ["none"]}, group_by="op_name")["series"] == []
    assert wire.post("/calls/aggregate")["series"][0]["value"] == 60


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"measures": [{"field": "nonsense"}]}, "measures"),
        ({"measures": [{"field": "calls", "aggregation": "p95"}]}, "measures"),
        ({"measures": [{"field": "inputs.a", "aggregation": "p101"}]}, "measures"),
        ({"measures": []}, "measures"),
        ({"group_by": "summary.weave.nothing"}, "nothing"),
        ({"timezone": "Nowhere"}, "Nowhere"),
        ({"limit": 0}, "limit"),
        ({"granularity": 1}, "granularity"),
        ({"bins": 5}, "bins"),
        ({"end": BEGIN.isoformat(), "start": "2026-03-02T00:00:00Z"}, "end"),
    ],
)
def test_what_makes_no_chart_is_refused(wire: Wire, calls: list[Json], body: Json, place: str) -> None:
    answer = wire.client.post("/calls/aggregate", json={"project_id": wire.project, **body, **_spread(body)})
    assert 400 <= answer.status_code < 500, answer.text
    assert place in answer.text


def _spread(body: Json) -> Json:
    """Many groups make many points."""
    return {"group_by": "id", "limit": 100} if "granularity" in body else {}


CHART = {"id": "c1", "kind": "line", "measures": [{"field": "latency_ms", "aggregation": "p95"}]}


def publish(wire: Wire, **value: Json) -> Any:
    """Store a dashboard."""
    obj = {
        "project_id": wire.project,
        "object_id": "board",
        "val": {"name": "board", **value},
        "builtin_object_class": "Dashboard",
    }
    return wire.client.post("/obj/create", json={"obj": obj})


def test_dashboards_are_objects_with_versions(wire: Wire) -> None:
    first = publish(wire, charts=[CHART]).json()["digest"]
    query = {"$expr": {"$eq": [{"$getField": "inputs.a"}, {"$literal": 1}]}}
    assert publish(wire, charts=[CHART | {"query": query, "group_by": "model"}], period="24h").json()["digest"] != first
    read = wire.post("/objs/query", filter={"base_object_classes": ["Dashboard"]})["objs"]
    assert [one["version_index"] for one in read] == [0, 1]
    stored = read[1]["val"]
    assert stored["charts"][0]["query"] == query and stored["charts"][0]["limit"] == 8
    again = wire.client.post(
        "/obj/create", json={"obj": {"project_id": wire.project, "object_id": "board", "val": stored}}
    )
    assert again.json()["digest"] == read[1]["digest"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"charts": [CHART | {"kind": "pie"}]}, "charts.0.kind"),
        ({"charts": [CHART, CHART | {"id": "c2", "measures": [{"field": "nope"}]}]}, "charts.1.measures.0"),
        ({"charts": [CHART | {"group_by": "nope"}]}, "charts.0.group_by"),
        ({"charts": [CHART | {"query": {"$expr": {"$nope": []}}}]}, "charts.0.query"),
        ({"charts": [CHART | {"width": 5}]}, "charts.0.width"),
        ({"charts": [CHART | {"colour": "red"}]}, "charts.0.colour"),
        ({"charts": [CHART, CHART]}, "charts"),
        ({"period": "yesterday"}, "period"),
        (
            {"_type": "Dashboard", "_class_name": "Dashboard", "_bases": ["BaseObject", "BaseModel"], "period": "x"},
            "period",
        ),
    ],
)
def test_what_is_no_dashboard_is_refused(wire: Wire, value: Json, place: str) -> None:
    answer = publish(wire, **value)
    assert answer.status_code == 400 and place in answer.json()["reason"], answer.text
    assert wire.post("/objs/query", filter={"base_object_classes": ["Dashboard"]})["objs"] == []

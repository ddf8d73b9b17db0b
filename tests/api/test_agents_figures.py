"""Every figure of the agents reads, held against plain Python over the same random spans."""

import math
import random
import statistics
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.conftest import Wire
from tests.support.random_spans import BEGIN, DAYS, Span, instant, iso, made, settle
from tests.support.server import HeddleProcess

Json = Any


@pytest.fixture(scope="module", params=[1, 2])
def exported(server: HeddleProcess, request: pytest.FixtureRequest) -> Iterator[tuple[Wire, list[Span]]]:
    """Random spans, exported in any order in several exports, some of them twice; the tests only read them."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/figures")
    chance = random.Random(request.param)
    found = made(chance, traces=40, each=12)
    order = found + chance.sample(found, len(found) // 4)
    chance.shuffle(order)
    for start in range(0, len(order), 37):
        resource: Json = {"scopeSpans": [{"spans": [span.exported for span in order[start : start + 37]]}]}
        answer = wire.client.post(
            "/agents/otel/v1/traces", json={"resourceSpans": [resource]}, headers={"project_id": wire.project}
        )
        assert answer.json() == {"partial_success": None}
    settle(found)
    yield wire, found
    wire.client.close()


@pytest.fixture
def wire(exported: tuple[Wire, list[Span]]) -> Wire:
    """Raw HTTP to the project of the spans."""
    return exported[0]


@pytest.fixture
def spans(exported: tuple[Wire, list[Span]]) -> list[Span]:
    """The spans that are stored."""
    return exported[1]


def grouped(spans: Iterable[Span], key: Callable[[Span], Json]) -> dict[Json, list[Span]]:
    """The spans of each group."""
    found: dict[Json, list[Span]] = defaultdict(list)
    for span in spans:
        found[key(span)].append(span)
    return dict(found)


def tokens(spans: Iterable[Span], name: str) -> int:
    """The sum of tokens that are not repeated."""
    return sum(span.tokens.get(name, 0) for span in spans if span.is_counted)


def sums(spans: list[Span]) -> Json:
    """The figures that every group shows."""
    return {
        "span_count": len(spans),
        "invocation_count": sum(span.invokes for span in spans),
        "total_input_tokens": tokens(spans, "input_tokens"),
        "total_output_tokens": tokens(spans, "output_tokens"),
        "total_duration_ms": pytest.approx(sum(span.elapsed or 0 for span in spans), abs=1),
        "error_count": sum(span.is_error for span in spans),
        "first_seen": iso(min(span.started for span in spans)),
        "last_seen": iso(max(span.started for span in spans)),
    }


def rank(values: list[float], percentile: float) -> float | None:
    """A percentile, interpolated linearly."""
    if not values:
        return None
    ordered, place = sorted(values), percentile / 100 * (len(values) - 1)
    return ordered[int(place)] + (place % 1) * (ordered[math.ceil(place)] - ordered[int(place)])


def shown(row: Json, wanted: Json) -> Json:
    """Those figures of a row that are wanted."""
    return {name: row[name] for name in wanted}


def test_agents_and_versions(wire: Wire, spans: list[Span]) -> None:
    """Figures by agent, and by version of each, with what their models cost."""
    by_agent = grouped((span for span in spans if span.agent), lambda span: span.agent)
    found = wire.post("/agents/query", include_costs=True)
    assert found["total_count"] == len(found["agents"]) == len(by_agent)
    for row in found["agents"]:
        mine = by_agent[row["agent_name"]]
        assert shown(row, sums(mine)) == sums(mine)
        assert row["total_cost_usd"] == pytest.approx(cost(mine))
        versions = grouped(mine, lambda span: span.version)
        seen = wire.post("/agents/agent-versions/query", agent_name=row["agent_name"])["versions"]
        assert {item["agent_version"] for item in seen} == set(versions) and len(seen) == len(versions)
        for item in seen:
            assert shown(item, sums(mine)) == sums(versions[item["agent_version"]])
    ends = [row["last_seen"] for row in found["agents"]]
    assert ends == sorted(ends, reverse=True)


def cost(spans: Iterable[Span]) -> float | None:
    """US dollars of spans whose model has a price."""
    prices = {"gpt-4o": (2.5e-6, 1.25e-6, 1e-5), "gpt-4o-mini": (1.5e-7, 7.5e-8, 6e-7)}
    total: float | None = None
    for span in spans:
        if span.is_counted and span.model in prices:
            prompt, cached, completion = prices[span.model]
            read = span.tokens.get("cache_read_input_tokens", 0)
            taken = span.tokens.get("input_tokens", 0) - read
            total = (total or 0) + taken * prompt + read * cached + span.tokens.get("output_tokens", 0) * completion
    return total


MEASURES = [
    {"alias": "n", "aggregation": "count"},
    {"alias": "tokens", "aggregation": "sum", "value": {"key": "output_tokens"}, "value_type": "number"},
    {"alias": "mean", "aggregation": "avg", "value": {"source": "derived", "key": "duration_ms"}},
    {"alias": "models", "aggregation": "count_distinct", "value": {"key": "request_model"}},
    {"alias": "late", "aggregation": "max", "value": {"key": "started_at"}, "value_type": "datetime"},
    {"alias": "low", "aggregation": "min", "value": {"source": "custom_attrs_float", "key": "score"}},
    {"alias": "hits", "aggregation": "count_true", "value": {"source": "custom_attrs_bool", "key": "cached"}},
    {
        "alias": "failed_tokens",
        "aggregation": "sum",
        "value": {"key": "input_tokens"},
        "filter": {"$expr": {"$eq": [{"$getField": "status_code"}, {"$literal": "ERROR"}]}},
    },
]


def measured(spans: list[Span]) -> Json:
    """What the measures give for a group."""
    elapsed = [span.elapsed for span in spans if span.elapsed is not None]
    scores = [span.custom["score"] for span in spans if "score" in span.custom]
    has_output = any("output_tokens" in span.tokens for span in spans if span.is_counted)
    failed = [span for span in spans if span.is_error and span.is_counted and "input_tokens" in span.tokens]
    return {
        "n": len(spans),
        "tokens": tokens(spans, "output_tokens") if has_output else None,
        "mean": pytest.approx(statistics.fmean(elapsed)) if elapsed else None,
        "models": len({span.model for span in spans if span.model}),
        "late": iso(max(span.started for span in spans)),
        "low": min(scores, default=None),
        "hits": sum(span.custom.get("cached") is True for span in spans),
        "failed_tokens": sum(span.tokens["input_tokens"] for span in failed) if failed else None,
    }


@pytest.mark.parametrize(
    ("refs", "key"),
    [
        ([{"key": "conversation_id"}], lambda span: (span.conversation,)),
        (
            [{"key": "agent_name"}, {"key": "operation_name", "alias": "op"}],
            lambda span: (span.agent, span.operation),
        ),
        ([{"source": "custom_attrs_string", "key": "env"}], lambda span: (span.custom.get("env"),)),
        ([{"source": "custom_attrs_int", "key": "retries"}], lambda span: (span.custom.get("retries"),)),
        ([{"source": "custom_attrs_bool", "key": "cached"}], lambda span: (span.custom.get("cached"),)),
    ],
)
def test_groups_and_measures(wire: Wire, spans: list[Span], refs: Json, key: Callable[[Span], Json]) -> None:
    """Groups by fields and custom attributes; pages of them hold each once."""
    wanted = grouped(spans, key)
    names = [ref.get("alias", ref["key"]) for ref in refs]
    rows: list[Json] = []
    for offset in range(0, len(wanted) + 2, 2):
        found = wire.post("/agents/spans/query", group_by=refs, measures=MEASURES, limit=2, offset=offset)
        assert found["total_count"] == len(wanted)
        rows += found["groups"]
    assert Counter(tuple(row["group_keys"][name] for name in names) for row in rows) == Counter(list(wanted))
    for row in rows:
        mine = wanted[tuple(row["group_keys"][name] for name in names)]
        assert shown(row, sums(mine)) == sums(mine) and row["metrics"] == measured(mine)
        assert row["agent_names"] == sorted({span.agent for span in mine if span.agent})
        assert row["conversation_count"] == len({span.conversation for span in mine if span.conversation})
        assert row["total_cache_read_input_tokens"] == tokens(mine, "cache_read_input_tokens")
    sizes = [row["metrics"]["n"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)


METRICS = [
    {
        "alias": "ms",
        "value_type": "number",
        "value": {"source": "derived", "key": "duration_ms"},
        "aggregations": ["count", "avg", "max"],
        "percentiles": [0, 50, 97.5, 100],
    },
    {"alias": "in", "value_type": "number", "value": {"key": "input_tokens"}, "aggregations": ["sum", "count"]},
    {
        "alias": "bad",
        "value_type": "boolean",
        "value": {"source": "derived", "key": "is_error"},
        "aggregations": ["count_true", "count_false"],
    },
]


def charted(spans: list[Span]) -> Json:
    """What the metrics give for the spans of a bucket."""
    elapsed = [span.elapsed for span in spans if span.elapsed is not None]
    near = {f"p{name}_ms": rank(elapsed, value) for name, value in (("0", 0), ("50", 50), ("97_5", 97.5), ("100", 100))}
    return {
        "count_ms": len(elapsed),
        "avg_ms": pytest.approx(statistics.fmean(elapsed)) if elapsed else None,
        "max_ms": max(elapsed, default=None),
        **{name: None if value is None else pytest.approx(value) for name, value in near.items()},
        "sum_in": tokens(spans, "input_tokens"),
        "count_in": sum("input_tokens" in span.tokens for span in spans),
        "count_true_bad": sum(span.is_error for span in spans),
        "count_false_bad": sum(not span.is_error for span in spans),
    }


@pytest.mark.parametrize(
    ("zone", "granularity"),
    [("UTC", 3600), ("Europe/Berlin", 86400), ("Europe/Berlin", 21600), ("Asia/Kolkata", 86400)],
)
def test_charts(wire: Wire, spans: list[Span], zone: str, granularity: int) -> None:
    """Buckets lie without gaps in the time zone, also where its clocks change; each holds its spans' figures."""
    start, end = BEGIN + timedelta(hours=7, minutes=20), BEGIN + timedelta(days=DAYS - 1)
    body = {"start": start.isoformat(), "end": end.isoformat(), "granularity": granularity, "timezone": zone}
    found = wire.post("/agents/spans/stats", **body, metrics=METRICS)
    moments = [instant(row["timestamp"]) for row in found["rows"]]
    assert moments == sorted(set(moments)) and moments[0] <= instant(start.isoformat()) and len(moments) < 200
    if granularity == 86400:
        hours = {datetime.fromisoformat(row["timestamp"]).astimezone(ZoneInfo(zone)).time() for row in found["rows"]}
        assert [(hour.hour, hour.minute) for hour in hours] == [(0, 0)]
    mine = [span for span in spans if instant(start.isoformat()) <= span.started < instant(end.isoformat())]
    held = grouped(mine, lambda span: max(moment for moment in moments if moment <= span.started))
    for row, moment in zip(found["rows"], moments, strict=True):
        assert shown(row, charted([])) == charted(held.get(moment, []))
    by_agent = wire.post("/agents/spans/stats", **body, metrics=METRICS, group_by=[{"key": "agent_name"}])["rows"]
    for row in by_agent:
        inside = [span for span in held.get(instant(row["timestamp"]), []) if span.agent == row["agent_name"]]
        assert shown(row, charted([])) == charted(inside)
    assert len(by_agent) == len(moments) * len({span.agent for span in mine})


def test_ranges_of_a_number(wire: Wire, spans: list[Span]) -> None:
    """Histograms of a custom attribute, and of a figure of conversations."""
    body = {"start": BEGIN.isoformat(), "end": (BEGIN + timedelta(days=DAYS)).isoformat()}
    value = {"source": "custom_attrs_float", "key": "score"}
    rows = wire.post("/agents/spans/stats", **body, bucket_by={"type": "number", "bins": 7, "value": value})["rows"]
    scores = [span.custom["score"] for span in spans if "score" in span.custom]
    assert (rows[0]["bucket_min"], rows[-1]["bucket_max"]) == (min(scores), max(scores))
    assert [row["count"] for row in rows] == histogram(scores, 7)
    by_talk = {"type": "number", "bins": 3, "group_by": [{"key": "conversation_id"}], "measure": MEASURES[0]}
    rows = wire.post("/agents/spans/stats", **body, bucket_by=by_talk)["rows"]
    sizes = [len(mine) for mine in grouped(spans, lambda span: span.conversation).values()]
    assert [row["count"] for row in rows] == histogram([float(size) for size in sizes], 3)


def histogram(values: list[float], bins: int) -> list[int]:
    """How many values lie in each of so many ranges; the last range includes its end."""
    low, width = min(values), (max(values) - min(values)) / bins
    places = Counter(min(bins - 1, int((value - low) / width)) for value in values)
    return [places[index] for index in range(bins)]


def test_custom_attributes_and_pages(wire: Wire, spans: list[Span]) -> None:
    """The schema counts spans per key; pages of spans hold each once, in the asked order."""
    kinds = {"env": "string", "retries": "int", "score": "float", "cached": "bool"}
    counts = Counter((kinds[key], key) for span in spans for key in span.custom)
    found = wire.post("/agents/spans/custom-attrs/schema")["attributes"]
    assert {(item["value_type"], item["key"]): item["span_count"] for item in found} == counts
    order = [{"field": "custom_attrs_int.retries", "direction": "asc"}, {"field": "duration_ms"}]
    seen: list[Json] = []
    for offset in range(0, len(spans) + 30, 30):
        page = wire.post("/agents/spans/query", sort_by=order, limit=30, offset=offset)
        assert page["total_count"] == len(spans)
        seen += page["spans"]
    assert Counter(int(item["span_id"], 16) for item in seen) == Counter(span.number for span in spans)
    by_number = {span.number: span for span in spans}
    retries = [by_number[int(item["span_id"], 16)].custom.get("retries") for item in seen]
    said = [value for value in retries if value is not None]
    assert said == sorted(said)
    for item in seen:
        span = by_number[int(item["span_id"], 16)]
        assert (item["agent_name"], item["agent_version"]) == (span.agent, span.version if span.agent else "")
        assert item["conversation_id"] == span.conversation

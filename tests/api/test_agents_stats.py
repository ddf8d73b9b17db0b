"""Figures over spans of agents for charts, over HTTP."""

import time
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support import otlp
from tests.support.agents import Trace, eq, export, hour, travelled

Json = Any


@pytest.fixture
def travel(wire: Wire) -> Trace:
    """A turn of the agent `planner`."""
    return travelled(wire)


def stats(wire: Wire, **body: Json) -> Json:
    """Figures of the last two hours in one bucket, unless asked otherwise."""
    return wire.post("/agents/spans/stats", **{"start": hour(-1), "end": hour(1), "granularity": 14400, **body})


def metric(alias: str, key: str, source: str = "derived", value_type: str = "number", **more: Json) -> Json:
    """A metric of a value."""
    return {"alias": alias, "value_type": value_type, "value": {"source": source, "key": key}, **more}


@pytest.mark.usefixtures("travel")
def test_figures_over_time(wire: Wire) -> None:
    """Every bucket of the range has a row; sums of nothing are 0, others null; columns say what they hold."""
    asked = [
        metric("ms", "duration_ms", aggregations=["sum", "avg", "min", "max"], percentiles=[50, 99.5]),
        metric("failed", "is_error", value_type="boolean", aggregations=["count_true", "count_false"]),
        metric("tools", "tool_name", "field", "string", aggregations=["count", "count_distinct"]),
        metric("seen", "started_at", "field", "datetime", aggregations=["max"]),
    ]
    answer = stats(wire, metrics=asked, granularity=1800)
    assert (answer["bucket_type"], answer["granularity"], answer["timezone"]) == ("time", 1800, "UTC")
    assert len(answer["rows"]) in (4, 5)
    assert [column["name"] for column in answer["columns"]] == [
        "timestamp", "sum_ms", "avg_ms", "min_ms", "max_ms", "p50_ms", "p99_5_ms", "count_true_failed",
        "count_false_failed", "count_tools", "count_distinct_tools", "max_seen",
    ]  # fmt: skip
    assert answer["columns"][-1] == {
        "name": "max_seen", "role": "metric", "value_type": "datetime", "metric": "seen", "aggregation": "max"
    }  # fmt: skip
    [full] = [row for row in answer["rows"] if row["sum_ms"]]
    assert (full["sum_ms"], full["avg_ms"], full["min_ms"], full["max_ms"]) == (515, 128.75, 5, 500)
    assert full["p50_ms"] == 5 and 490 < full["p99_5_ms"] < 500
    assert (full["count_true_failed"], full["count_false_failed"], full["count_tools"]) == (1, 3, 1)
    empty = next(row for row in answer["rows"] if not row["sum_ms"])
    assert empty["avg_ms"] is None and empty["count_true_failed"] == 0 and empty["max_seen"] is None


@pytest.mark.usefixtures("travel")
def test_figures_by_group(wire: Wire) -> None:
    """The largest groups, each with a row in every bucket; custom attributes are null where a span lacks them."""
    count = metric("spans", "is_error", value_type="boolean", aggregations=["count"])
    answer = stats(wire, metrics=[count], group_by=[{"key": "operation_name"}])
    assert answer["columns"][1] == {
        "name": "operation_name", "role": "group", "value_type": "string", "metric": None, "aggregation": None
    }  # fmt: skip
    found = {row["operation_name"]: row["count_spans"] for row in answer["rows"] if row["count_spans"]}
    assert found == {"chat": 2, "execute_tool": 1, "invoke_agent": 1}
    most = stats(wire, metrics=[count], group_by=[{"key": "operation_name"}], group_limit=1)["rows"]
    [largest] = {row["operation_name"] for row in most}
    assert largest == "chat"
    retries = {"source": "custom_attrs_int", "key": "retries", "alias": "tries"}
    rows = stats(wire, metrics=[count], group_by=[retries, {"key": "status_code"}])["rows"]
    found = {(row["tries"], row["status_code"]): row["count_spans"] for row in rows if row["count_spans"]}
    assert found == {(None, "UNSET"): 3, (2, "ERROR"): 1}
    only = stats(wire, metrics=[count], query=eq("operation_name", "chat"))
    assert sum(row["count_spans"] for row in only["rows"]) == 2


def test_group_filters_of_figures(wire: Wire) -> None:
    """Spans of conversations that pass every filter."""
    for name, failures in (("calm", 0), ("rough", 2)):
        trace = Trace(name)
        for number in range(3):
            trace.chat(error="no" if number < failures else "")
        export(wire, trace)
    count = metric("spans", "is_error", value_type="boolean", aggregations=["count"])
    failed = {"alias": "f", "aggregation": "count_true", "value": {"source": "derived", "key": "is_error"}}
    seen = {"alias": "s", "aggregation": "max", "value": {"key": "started_at"}}

    def counted(*filters: Json) -> int:
        return sum(row["count_spans"] for row in stats(wire, metrics=[count], group_filters=list(filters))["rows"])

    assert counted() == 6
    assert counted({"measure": failed, "min": 1}) == 3
    assert counted({"measure": failed, "min": 1}, {"measure": seen, "min": hour(1)}) == 0
    assert counted({"measure": failed, "max": 0}, {"measure": seen, "min": hour(-1)}) == 3
    by_span = {"measure": {"alias": "n", "aggregation": "count"}, "min": 4, "group_by": [{"key": "conversation_id"}]}
    assert counted(by_span) == 0


@pytest.mark.parametrize("values", [[-1.7e308, 0.0, 1.7e308], [5e-324, 1e-323]], ids=repr)
def test_ranges_of_numbers_of_any_size(wire: Wire, values: list[float]) -> None:
    spans = [
        otlp.span(
            *(number, number),
            start_time_unix_nano=time.time_ns(),
            end_time_unix_nano=time.time_ns(),
            attributes={"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c", "size": value},
        )
        for number, value in enumerate(values, 1)
    ]
    headers = {"project_id": wire.project, "content-type": "application/x-protobuf"}
    content = otlp.request(*spans).SerializeToString()
    assert wire.client.post("/agents/otel/v1/traces", content=content, headers=headers).status_code == 200
    size = {"source": "custom_attrs_float", "key": "size"}
    rows = stats(wire, bucket_by={"type": "number", "bins": 2, "value": size})["rows"]
    assert sum(row["count"] for row in rows) == len(values)
    assert (rows[0]["bucket_min"], rows[-1]["bucket_max"]) == (min(values), max(values))
    spread = {"alias": "spread", "value": size, "bins": 2}
    groups = wire.post("/agents/spans/query", group_by=[{"key": "conversation_id"}], group_distributions=[spread])[
        "groups"
    ]
    assert [sum(one["count"] for one in each["distributions"]["spread"]["bins"]) for each in groups] == [len(values)]


def test_figures_by_ranges_of_a_number(wire: Wire) -> None:
    """Ranges between the smallest and the largest value, or given bounds; of spans or of figures of groups."""
    for conversation, sizes in (("a", [0, 1, 2, 3]), ("b", [4]), ("c", [10, 10])):
        trace = Trace(conversation)
        for size in sizes:
            trace.chat(size=size)
        trace.tool("t", "", "")
        export(wire, trace)
    value = {"source": "custom_attrs_int", "key": "size"}
    answer = stats(wire, bucket_by={"type": "number", "value": value, "bins": 5, "alias": "size"})
    assert (answer["bucket_type"], answer["granularity"]) == ("number", None)
    shown = [(row["bucket_index"], row["bucket_min"], row["bucket_max"], row["count"]) for row in answer["rows"]]
    assert shown == [(0, 0, 2, 2), (1, 2, 4, 2), (2, 4, 6, 1), (3, 6, 8, 0), (4, 8, 10, 2)]
    assert answer["columns"][0] == {
        "name": "bucket_index", "role": "bucket", "value_type": "number", "metric": "size", "aggregation": None
    }  # fmt: skip
    inside = stats(wire, bucket_by={"type": "number", "value": value, "bins": 2, "min": 0, "max": 4})
    assert [row["count"] for row in inside["rows"]] == [2, 3]
    sizes = metric("sizes", "size", "custom_attrs_int", aggregations=["sum"], percentiles=[100])
    summed = stats(wire, bucket_by={"type": "number", "value": value, "bins": 2}, metrics=[sizes])
    assert [(row["sum_sizes"], row["p100_sizes"]) for row in summed["rows"]] == [(10, 4), (20, 10)]
    most = {"alias": "most", "aggregation": "max", "value": value}
    grouped = {"type": "number", "bins": 2, "group_by": [{"key": "conversation_id"}], "measure": most}
    assert [row["count"] for row in stats(wire, bucket_by=grouped)["rows"]] == [2, 1]
    many = {"measure": {"alias": "n", "aggregation": "count"}, "min": 3}
    assert [row["count"] for row in stats(wire, bucket_by=grouped, group_filters=[many])["rows"]] == [1, 1]
    nothing = {"type": "number", "value": {"source": "custom_attrs_int", "key": "unknown"}}
    assert stats(wire, bucket_by=nothing)["rows"] == []

"""The read models behind the pages of costs, prices and ops: sums, prices of their time, limits of what they take."""

import datetime
import uuid
from typing import Any

import pytest

from tests.conftest import Wire

NOON = datetime.datetime(2026, 3, 10, 12, 30, tzinfo=datetime.UTC)
RANGE = {"start": NOON.timestamp() - 86_400, "end": NOON.timestamp() + 3600}


def _call(op: str, at: datetime.datetime, *, failed: bool = False, **usage: int) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": op,
        "started_at": at.isoformat(),
        "ended_at": (at + datetime.timedelta(seconds=2)).isoformat(),
        "attributes": {"weave": {"kind": "tool"}} if op == "look" else {},
        "inputs": {},
        "exception": "boom" if failed else None,
        "summary": {"usage": {"house": usage}} if usage else {},
    }


def _store(wire: Wire, *calls: dict[str, Any]) -> None:
    entity, project = wire.project.split("/")
    batch = [call | {"project_id": wire.project} for call in calls]
    answer = wire.client.post(f"/v2/{entity}/{project}/calls/complete", json={"batch": batch})
    assert answer.status_code == 200, answer.text


def _read(wire: Wire, path: str, **query: Any) -> Any:
    answer = wire.client.get(path, params={"project": wire.project, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_sum_is_charged_at_the_price_of_its_time(wire: Wire) -> None:
    before = NOON - datetime.timedelta(hours=20)
    _store(wire, _call("ask", before, prompt_tokens=1000), _call("ask", NOON, prompt_tokens=1000, completion_tokens=10))
    for at, price in ((NOON - datetime.timedelta(days=9), 1e-6), (NOON - datetime.timedelta(hours=2), 1e-5)):
        rates = {"prompt_token_cost": price, "completion_token_cost": price, "effective_date": at.isoformat()}
        wire.post("/cost/create", costs={"house": rates})
    found = _read(wire, "/_ui/api/costs", **RANGE)
    assert found["step"] == 3600
    [group] = found["groups"]
    assert (group["name"], group["calls"], group["prompt"], group["unpriced"]) == ("house", 2, 2000, [])
    assert group["cost"] == pytest.approx(1000e-6 + 1010e-5)
    assert list(group["cells"].values()) == pytest.approx([1000e-6, 1010e-5])
    prices = {entry["model"]: entry for entry in _read(wire, "/_ui/api/prices", model="unused")["models"]}
    assert prices["house"]["price"]["prompt"] == pytest.approx(10) and prices["house"]["default"] is None
    assert prices["unused"] == {"model": "unused", "calls": 0, "price": None, "default": None}


LATELY = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("seconds", [-7 * 86_400, -86_401, -86_400 * 2 + 1, -43_200.000001, -43_200, -90_061.5])
def test_every_side_charges_calls_at_the_price_of_their_moment(wire: Wire, seconds: float) -> None:
    """Wherever in an hour or day the price changes: a microsecond earlier the old one holds."""
    change, instant = LATELY + datetime.timedelta(seconds=seconds), datetime.timedelta(microseconds=1)
    for at, price in ((change - datetime.timedelta(days=9), 1e-6), (change, 3e-6)):
        rates = {"prompt_token_cost": price, "completion_token_cost": price, "effective_date": at.isoformat()}
        wire.post("/cost/create", costs={"house": rates})
    hours = datetime.timedelta(hours=1)
    moments = [change - hours, change - instant, change, change + instant, change + hours]
    _store(wire, *(_call("ask", at, prompt_tokens=1000) for at in moments))
    right = pytest.approx(2 * 1000e-6 + 3 * 3000e-6)
    long = {"start": LATELY.timestamp() - 29 * 86_400}
    for by in ("model", "op", "user", "day"):
        for query in ({"by": by}, {"by": by, **long}):
            groups = _read(wire, "/_ui/api/costs", **query)["groups"]
            assert sum(group["cost"] for group in groups) == right
            assert sum(sum(group["cells"].values()) for group in groups) == right
    for query in ({}, long):
        found = _read(wire, "/_ui/api/overview", **query)
        buckets = found["models"][0]["buckets"]
        assert found["totals"]["cost"] == right and found["models"][0]["cost"] == right
        assert sum(cost for _, cost, _ in buckets) == right
        assert len({bucket for bucket, _, _ in buckets}) == len(buckets)
    # The list of projects may be some seconds old, but not where one was made known.
    assert wire.client.post("/_ui/api/projects", json={"id": wire.project}).status_code == 200
    projects = {entry["id"]: entry for entry in wire.client.get("/_ui/api/projects").json()["projects"]}
    assert projects[wire.project]["cost"] == right


def test_groups_are_ops_users_or_days(wire: Wire) -> None:
    _store(wire, _call("ask", NOON, prompt_tokens=5), _call("plan", NOON - datetime.timedelta(days=1), prompt_tokens=7))
    everything = {"start": RANGE["start"] - 9 * 86_400, "end": RANGE["end"]}
    by_op = _read(wire, "/_ui/api/costs", by="op", **everything)["groups"]
    assert {group["name"]: group["prompt"] for group in by_op} == {"ask": 5, "plan": 7}
    assert all(group["cost"] is None and group["unpriced"] == ["house"] for group in by_op)
    assert [group["name"] for group in _read(wire, "/_ui/api/costs", by="user", **everything)["groups"]] == ["local"]
    days = _read(wire, "/_ui/api/costs", by="day", zone=3600, **everything)["groups"]
    midnights = {datetime.datetime.fromtimestamp(int(group["name"]) + 3600, datetime.UTC).hour for group in days}
    assert len(days) == 2 and midnights == {0}


def test_a_time_without_calls_is_empty_and_nonsense_is_refused(wire: Wire) -> None:
    assert _read(wire, "/_ui/api/costs")["first"] is None
    _store(wire, _call("ask", NOON, prompt_tokens=5))
    assert _read(wire, "/_ui/api/costs", start=NOON.timestamp() + 99)["first"] == NOON.timestamp()
    assert _read(wire, "/_ui/api/costs", start=50, end=40)["groups"] == []
    for query in ({"start": "nan"}, {"end": "inf"}, {"zone": 10**9}, {"by": "weather"}):
        assert wire.client.get("/_ui/api/costs", params={"project": wire.project, **query}).status_code == 422


def test_ops_have_their_kind_median_and_failures(wire: Wire) -> None:
    _store(wire, _call("look", NOON), _call("look", NOON, failed=True), _call("ask", NOON, prompt_tokens=5))
    found = {entry["name"]: entry for entry in _read(wire, "/_ui/api/ops")["ops"]}
    assert found["look"] == {
        "name": "look",
        "calls": 2,
        "last": "2026-03-10T12:30:00.000000Z",
        "kind": "tool",
        "p50": 2.0,
        "errors": 1,
        "error_share": 0.5,
        "versions": {"look": 2},
    }
    assert found["ask"]["kind"] == "fn"


def test_every_figure_is_that_of_the_calls_it_leads_to(wire: Wire) -> None:
    """Costs, overview and threads against the list of calls under the conditions of their links."""
    wire.post("/cost/create", costs={"house": {"prompt_token_cost": 1e-6, "completion_token_cost": 2e-6}})
    two = _call("ask", NOON, prompt_tokens=5, completion_tokens=1)
    two["summary"]["usage"]["other"] = {"prompt_tokens": 3, "completion_tokens": 1}
    root = _call("answer", NOON, prompt_tokens=12, completion_tokens=4)
    below = [_call("ask", NOON, prompt_tokens=6, completion_tokens=2) for _ in range(2)]
    for child in below:
        child |= {"parent_id": root["id"], "trace_id": root["trace_id"]}
    failed = _call("ask", NOON + datetime.timedelta(minutes=5), failed=True, prompt_tokens=7)
    talked = _call("ask", NOON, prompt_tokens=2, completion_tokens=9)
    talked |= {"thread_id": "talk", "turn_id": talked["id"]}
    _store(wire, two, root, *below, failed, talked, _call("look", NOON))

    def led_to(**conditions: Any) -> dict[str, Any]:
        body = {"from": RANGE["start"], "to": RANGE["end"], **conditions}
        found = wire.post("/_ui/api/calls/summary", **body)
        listed = wire.post("/_ui/api/calls", limit=100, **body)["rows"].get("id", [])
        assert found["count"] == len(listed)
        return dict(found)

    conditions: dict[str, Any] = {
        "model": lambda name: {"used": name},
        "op": lambda name: {"used": "", "filter": {"op_names": [name]}},
        "user": lambda name: {"used": "", "filter": {"wb_user_ids": [name]}},
    }
    for by, select in conditions.items():
        costs = _read(wire, "/_ui/api/costs", by=by, **RANGE)
        # The parent only sums up what the calls below it used.
        assert costs["calls"] == led_to(used="")["count"] == 5
        for group in costs["groups"]:
            found = led_to(**select(group["name"]))
            assert group["calls"] == found["count"], (by, group)
            assert (group["prompt"], group["completion"]) == (found["spent"]["prompt"], found["spent"]["completion"])
            assert group["cost"] == pytest.approx(found["spent"]["cost"])
    totals = _read(wire, "/_ui/api/overview", **RANGE)["totals"]
    everything, spent = led_to(), led_to(used="")["spent"]
    assert (totals["calls"], totals["errors"]) == (everything["count"], everything["errors"]) == (7, 1)
    assert (totals["prompt_tokens"], totals["completion_tokens"]) == (spent["prompt"], spent["completion"])
    assert totals["cost"] == pytest.approx(spent["cost"])
    [thread] = wire.client.get(f"/_ui/api/threads/{wire.project}").json()["threads"]
    talk = wire.post("/_ui/api/calls/summary", used="", filter={"thread_ids": ["talk"]})["spent"]
    assert thread["tokens"] == talk["prompt"] + talk["completion"] and thread["dollars"] == pytest.approx(talk["cost"])
    ops = {op["name"]: op for op in _read(wire, "/_ui/api/ops")["ops"]}
    for name, op in ops.items():
        found = led_to(filter={"op_names": [name]})
        assert (op["calls"], op["errors"]) == (found["count"], found["errors"])

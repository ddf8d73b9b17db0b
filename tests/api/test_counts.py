"""Counts and sums of every page and route after random changes, against counting what is listed by hand."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.chat import until
from tests.support.selection import with_breadth

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
OPS, MODELS, THREADS = ("ask", "Ask", "look"), ("m-1", "M-1"), ("talk", "Talk", None)
PARENTS = ("c0", "c1", "c6", "c3")
"""Of each trace one, which has no parent."""
ROUNDS = 12
ON_BOTH_STORES = True
Json = Any


class Changes:
    """Random changes of the calls of a project, and of what is said about them."""

    def __init__(self, wire: Wire, seed: int) -> None:
        self._wire = wire
        self._chance = random.Random(seed)

    def _start(self, number: int) -> Json:
        """The same for each number, but for what a client may send otherwise the second time."""
        chance = random.Random(number)
        at = BEGIN + timedelta(minutes=chance.randrange(600))
        thread = chance.choice(THREADS)
        return {
            "project_id": self._wire.project,
            "id": f"c{number}",
            "trace_id": f"t{number % 4}",
            "parent_id": PARENTS[number % 4] if number % 3 == 2 else None,
            "op_name": chance.choice(OPS),
            "started_at": at.isoformat(),
            "attributes": {},
            "inputs": {},
            **({"thread_id": thread, "turn_id": f"c{number}"} if thread else {}),
        }

    def _end(self, number: int) -> Json:
        chance = self._chance
        used = {"prompt_tokens": chance.randrange(9), "completion_tokens": chance.randrange(9), "requests": 1}
        used["total_tokens"] = used["prompt_tokens"] + used["completion_tokens"]
        # Calls that others lie below have none: what SDKs sum up there is left out of totals.
        usage = {chance.choice(MODELS): used} if number % 3 == 2 and chance.random() < 0.8 else {}
        return {
            "project_id": self._wire.project,
            "id": f"c{number}",
            "ended_at": (BEGIN + timedelta(days=1)).isoformat(),
            "output": chance.random(),
            "summary": {"usage": usage},
            "exception": "ValueError: no" if chance.random() < 0.3 else None,
        }

    def write(self) -> None:
        """Starts and ends, some again, some of either alone, some at once."""
        for number in self._chance.sample(range(60), 8):
            parts = self._chance.choice([("start",), ("end",), ("start", "end"), ("end", "start"), ("end", "end")])
            for part in parts:
                half = self._start(number) if part == "start" else self._end(number)
                answer = self._wire.client.post(f"/call/{part}", json={part: half})
                assert answer.status_code == 200, answer.text
        whole = [self._start(number) | self._end(number) for number in self._chance.sample(range(60, 90), 4)]
        answer = self._wire.client.post(f"/v2/{self._wire.project}/calls/complete", json={"batch": whole})
        assert answer.status_code == 200, answer.text

    def delete(self) -> None:
        """Some calls, which takes those below them along."""
        self._wire.post("/calls/delete", call_ids=[f"c{n}" for n in self._chance.sample(range(90), 4)])

    def rename(self) -> None:
        """Some calls that there are."""
        there = self._wire.calls(columns=["id"])
        for call in self._chance.sample(there, min(3, len(there))):
            self._wire.post("/call/update", call_id=call["id"], display_name=self._chance.choice(["", "one", "two"]))

    def purge(self) -> None:
        """All of a thread, a trace or a call."""
        kind, names = self._chance.choice(
            [("thread", ["talk"]), ("trace", ["t1", "t2", "t3"]), ("call", [f"c{n}" for n in range(90)])]
        )
        job_id = self._wire.post("/project/purge", subject=kind, id=self._chance.choice(names))["job_id"]

        def is_done() -> bool:
            jobs = {job["id"]: job for job in self._wire.post("/evaluations/jobs/query")["jobs"]}
            assert jobs[job_id]["state"] in ("queued", "running", "succeeded"), jobs[job_id]
            return jobs[job_id]["state"] == "succeeded"

        until(is_done, "the purge is done", timeout=300)

    def say(self) -> None:
        """Feedback about a call, or no more of it."""
        ref = f"weave:///{self._wire.project}/call/c{self._chance.randrange(90)}"
        for kind in ("note", "Note"):
            self._wire.post("/feedback/create", weave_ref=ref, feedback_type=kind, payload={"n": 1})
        if self._chance.random() < 0.4:
            mine = {"$eq": [{"$getField": "weave_ref"}, {"$literal": ref}]}
            rows = self._wire.post("/feedback/query", query={"$expr": mine}, fields=["id"])["result"]
            named = [{"$eq": [{"$getField": "id"}, {"$literal": row["id"]}]} for row in rows]
            self._wire.post("/feedback/purge", query={"$expr": {"$or": named}})

    def publish(self) -> None:
        """A version of an object; or all of one are deleted."""
        name = self._chance.choice(["thing", "Thing"])
        self._wire.post("/obj/create", obj=self._object(name))
        if self._chance.random() < 0.3:
            self._wire.post("/obj/delete", object_id=name)

    def _object(self, name: str) -> Json:
        return {"project_id": self._wire.project, "object_id": name, "val": {"n": self._chance.randrange(5)}}


def check(wire: Wire) -> None:
    """Compare."""
    calls = wire.calls()
    errors = [call for call in calls if call["exception"]]
    used = [(model, usage) for call in calls for model, usage in (call["summary"].get("usage") or {}).items()]
    tokens = Counter[str]()
    for model, usage in used:
        tokens[model] += usage["total_tokens"]

    assert wire.post("/calls/query_stats")["count"] == len(calls)
    for field, key in (("op_names", "op_name"), ("trace_ids", "trace_id"), ("parent_ids", "parent_id")):
        for value, count in Counter(call[key] for call in calls if call[key] is not None).items():
            assert wire.post("/calls/query_stats", filter={field: [value]})["count"] == count, (field, value)
    roots = sum(call["parent_id"] is None for call in calls)
    assert wire.post("/calls/query_stats", filter={"trace_roots_only": True})["count"] == roots

    times = {"start": BEGIN.isoformat(), "end": (BEGIN + timedelta(days=2)).isoformat()}
    measures = [{"field": "calls"}, {"field": "errors"}]
    found = wire.post("/calls/aggregate", measures=measures, group_by="op_name", granularity=0, **times)
    sums = {(one["measure"], one["group"]): one["value"] for one in found["series"]}
    for number, some in enumerate((calls, errors)):
        by_op = Counter(call["op_name"] for call in some)
        assert {group: value for (n, group), value in sums.items() if n == number and value} == by_op
    measures = [{"field": "total_tokens"}]
    found = wire.post("/calls/aggregate", measures=measures, group_by="model", granularity=0, **times)
    assert {one["group"]: one["value"] for one in found["series"] if one["value"]} == +tokens

    metrics = [{"metric": name, "aggregations": ["sum"]} for name in ("call_count", "error_count")]
    usage_metrics = [{"metric": "total_tokens", "aggregations": ["sum"]}]
    found = wire.post("/calls/stats", call_metrics=metrics, usage_metrics=usage_metrics, granularity=86_400, **times)
    assert sum(one["sum_call_count"] for one in found["call_buckets"]) == len(calls)
    assert sum(one["sum_error_count"] for one in found["call_buckets"]) == len(errors)
    assert sum(one["sum_total_tokens"] for one in found["usage_buckets"]) == tokens.total()
    assert sum(one["count"] for one in found["usage_buckets"]) == len(used)

    usage = wire.post("/calls/usage", call_ids=[call["id"] for call in calls])["call_usage"]
    below = {call["id"] for call in calls if call["parent_id"] in {call["id"] for call in calls}}
    summed = Counter[str]()
    for call_id, models in usage.items():
        for model, entry in models.items():
            summed[model] += 0 if call_id in below else entry["total_tokens"]
    assert +summed == +tokens

    pages(wire, calls, errors, tokens)
    rest(wire, calls)


def pages(wire: Wire, calls: list[Json], errors: list[Json], tokens: Counter[str]) -> None:
    """What the web interface shows."""
    summary = wire.post("/_ui/api/calls/summary")
    assert (summary["count"], summary["errors"]) == (len(calls), len(errors))
    assert (sum(summary["bars"]["total"]), sum(summary["bars"]["errors"])) == (len(calls), len(errors))
    listed = {"project": wire.project}
    overview = wire.client.get("/_ui/api/overview", params=listed).json()
    if calls:
        assert (overview["totals"]["calls"], overview["totals"]["errors"]) == (len(calls), len(errors))
        assert sum(bucket["calls"] for bucket in overview["buckets"]) == len(calls)
        assert {one["model"]: one["tokens"] for one in overview["models"] if one["tokens"]} == +tokens
    ops = wire.client.get("/_ui/api/ops", params=listed).json()["ops"]
    assert {op["name"]: op["calls"] for op in ops} == Counter(call["op_name"] for call in calls)
    groups = wire.post("/_ui/api/errors")["groups"]
    assert sum(group["calls"] for group in groups) == len(errors)


def rest(wire: Wire, calls: list[Json]) -> None:
    """Threads, feedback, objects."""
    turns = Counter(call["thread_id"] for call in calls if call["thread_id"])
    ended = {call["thread_id"] for call in calls if call["thread_id"] and call["ended_at"]}
    threads = {one["thread_id"]: one["turn_count"] for one in wire.lines("/threads/stream_query")}
    assert threads == {name: count for name, count in turns.items() if name in ended}

    rows = wire.post("/feedback/query", fields=["id", "feedback_type", "weave_ref"])["result"]
    assert len({row["id"] for row in rows}) == len(rows)
    found = wire.post("/feedback/query", fields=["count(*)"])["result"]
    assert [one["count(*)"] for one in found] == [len(rows)]
    said = Counter(row["weave_ref"].rpartition("/")[2] for row in rows)
    assert {
        call["id"]: len(call["summary"]["weave"]["feedback"])
        for call in wire.calls(include_feedback=True)
        if call["summary"]["weave"].get("feedback")
    } == {call["id"]: said[call["id"]] for call in calls if said[call["id"]]}

    versions = wire.post("/objs/query")["objs"]
    latest = wire.post("/objs/query", filter={"latest_only": True})["objs"]
    assert {one["object_id"] for one in latest} == {one["object_id"] for one in versions}
    assert len(latest) == len({one["object_id"] for one in versions})


@pytest.mark.parametrize("seed", with_breadth(range(1, 4)))
def test_every_count_is_that_of_what_is_listed(wire: Wire, seed: int) -> None:
    changes = Changes(wire, seed)
    chance = random.Random(seed)
    changes.write()
    for _ in range(ROUNDS):
        changes.write()
        for change in chance.sample(
            [changes.delete, changes.rename, changes.purge, changes.say, changes.say, changes.publish], 3
        ):
            change()
        check(wire)

"""Months in minutes: a server whose clock is moved on by half days, with traffic, prices, keys, alerts and backups.

`make soak` lives through 90 days, `HEDDLE_MONTHS_DAYS` through other numbers. What grows old goes, exactly; what is
kept stays; and the last third of the time takes no more memory, rows, files or bytes than the one before.
"""

import json
import os
import uuid
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from sqlite3 import connect
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import pytest

from heddle.wire import times
from tests.support import scale
from tests.support.chat import until
from tests.support.cli import heddle
from tests.support.moved_clock import MovedClock
from tests.support.preload import has_compiler
from tests.support.server import HeddleProcess
from tests.support.webhooks import Receiver, receiving

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
DAYS = int(os.environ.get("HEDDLE_MONTHS_DAYS", "90" if SOAK else "4"))
SETTLED = 42
"""From so many days on nothing may grow any more in the last third of them."""
KEPT_DAYS = 14 if DAYS >= SETTLED else 2
"""Calls and the audit log are kept for so long."""
KEY_DAYS = 3 if DAYS >= SETTLED else 1
JOB_DAYS = 31
"""Jobs are kept for 30 days; each half day has one."""
BACKUPS = 7 if DAYS >= SETTLED else 2
PRICE_DAYS, RUSH_DAYS = 10, 7
HALF_DAY = timedelta(hours=12)
CALLS, RUSH = 20, 60
"""Calls of a half day, and of one in which the alert fires."""
PROJECT, KEPT = "soak/months", "soak/kept"
BOOTSTRAP = "months-of-one-server-in-minutes"
MODEL = "months-model"
TOKENS = {"prompt_tokens": 30, "completion_tokens": 7, "requests": 1}
LARGE = 2000
"""Characters of an input that is kept in a file."""
MADE_TO_STAY = {"api_keys", "audit_log", "costs", "eval_jobs"}
"""Tables that grow with what people enter (an expired key still says who it was), or with how often retention finds
something, and one that is tidied every hour, but not of this clock; see the end."""
MERGED = {"search_data", "search_idx"}
"""Pages that hold words of removed calls, too, until they are merged: they rise, and come back."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.thorough,
    scale.on_sqlite,
    pytest.mark.skipif(not has_compiler(), reason="no C compiler (or not Linux): the clock cannot be moved"),
]


class Process(HeddleProcess):
    """Begun from nothing, as a library is put below it."""

    may_fork = False


class Months:
    """A server, its clock, and what it was told."""

    def __init__(self, process: HeddleProcess, clock: MovedClock, hooks: Receiver, folder: Path) -> None:
        self.process, self.clock, self.hooks, self.folder = process, clock, hooks, folder
        self.client = httpx.Client(base_url=process.url, timeout=120, auth=("api", BOOTSTRAP))
        self.calls: dict[str, tuple[datetime, float]] = {}
        """By id: when it started, and what it costs."""
        self.kept: set[str] = set()
        self.keys: list[tuple[datetime, str]] = []
        self.scores: dict[str, str] = {}
        """By id of the score: the call."""
        self.price = 0.0
        self.messages = 0
        self.weeks: list[dict[str, int]] = []

    def post(self, path: str, **body: Any) -> Any:
        """The JSON answer of a request that must succeed."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def query(self, path: str, **body: Any) -> list[Any]:
        """The lines of a list."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return [json.loads(line) for line in answer.text.splitlines()]

    def publish(self, name: str, kind: str, bases: tuple[str, ...], **fields: Any) -> str:
        """The ref of a new object."""
        value = {"_type": kind, "_class_name": kind, "_bases": [*bases, "Object", "BaseModel"], **fields}
        made = self.post("/obj/create", obj={"project_id": PROJECT, "object_id": name, "val": value})
        return f"weave:///{PROJECT}/object/{name}:{made['digest']}"

    def begin(self, address: str) -> None:
        """Everything that people set up once."""
        self.post("/project/ttl_settings/update", project_id=PROJECT, retention_days=KEPT_DAYS)
        scorer = self.publish("contains", "ContainsScorer", ("Scorer",))
        self.publish("watch", "Monitor", (), active=True, scorers=[scorer], op_names=["answer"])
        rule = {"metric": "count", "operator": ">", "threshold": CALLS + 1, "window_seconds": 6 * 3600}
        rule |= {"filter": {"op_names": [op_ref(PROJECT)]}, "webhook_url": f"{address}/x"}
        made = self.post("/alerts/create", project_id=PROJECT, name="a rush", **rule)
        self.hooks.secrets[made["alert"]["id"]] = made["secret"]
        self.kept = set(self.write(KEPT, CALLS))

    def write(self, project: str, count: int) -> list[str]:
        """So many calls of now; of some an input is large, and kept in a file."""
        now = self.clock.now()
        ids = [str(uuid.uuid4()) for _ in range(count)]
        batch = [
            {
                "project_id": project,
                "id": call_id,
                "trace_id": str(uuid.uuid4()),
                "op_name": op_ref(project),
                "started_at": now.isoformat(),
                "ended_at": (now + timedelta(seconds=1)).isoformat(),
                "attributes": {},
                "inputs": {"target": "yes", "text": call_id * (LARGE // len(call_id) if place % 10 == 0 else 1)},
                "output": "yes",
                "summary": {"usage": {MODEL: TOKENS}},
            }
            for place, call_id in enumerate(ids)
        ]
        self.post(f"/v2/{project}/calls/complete", batch=batch)
        if project == PROJECT:
            cost = self.price * (TOKENS["prompt_tokens"] + 2 * TOKENS["completion_tokens"])
            self.calls |= dict.fromkeys(ids, (now, cost))
        return ids

    def write_telemetry(self) -> None:
        """A span, a log record of it, and a point of a metric, all of now."""
        now = str(int(self.clock.now().timestamp() * 1e9))
        ids = {"traceId": uuid.uuid4().hex, "spanId": uuid.uuid4().hex[:16]}
        attributes = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
        span = {**ids, "name": "chat", "startTimeUnixNano": now, "endTimeUnixNano": now, "attributes": attributes}
        record = {**ids, "timeUnixNano": now, "body": {"stringValue": f"at {now}"}}
        gauge = {"name": "load", "gauge": {"dataPoints": [{"timeUnixNano": now, "asDouble": 1.0}]}}
        sent = (
            ("/v1/traces", "resourceSpans", "scopeSpans", {"spans": [span]}),
            ("/v1/logs", "resourceLogs", "scopeLogs", {"logRecords": [record]}),
            ("/v1/metrics", "resourceMetrics", "scopeMetrics", {"metrics": [gauge]}),
        )
        for path, outer, inner, signals in sent:
            answer = self.client.post(path, json={outer: [{inner: [signals]}]}, headers={"project_id": PROJECT})
            assert answer.status_code == 200 and not answer.json().get("partial_success"), answer.text

    def live_half_a_day(self, number: int) -> None:
        """Twelve hours: traffic, what follows from it, and what people enter."""
        self.clock.move(HALF_DAY)
        day, is_morning = number // 2, number % 2 == 0
        if is_morning and day % PRICE_DAYS == 0:
            self.price = 0.001 * (1 + day)
            price = {"prompt_token_cost": self.price, "completion_token_cost": 2 * self.price}
            self.post("/cost/create", project_id=PROJECT, costs={MODEL: price})
        if is_morning:
            roles = [f"viewer:{PROJECT}"]
            made = self.post("/_ui/api/keys", user=f"day-{day}", roles=roles, expires=f"{KEY_DAYS}d")
            self.keys.append((self.clock.now(), made["key"]))
        is_rush = is_morning and day % RUSH_DAYS == 3
        self.write(PROJECT, RUSH if is_rush else CALLS)
        self.write_telemetry()
        if is_rush or self.messages % 2:
            self.messages += 1
            self.hooks.wait_for(self.messages)
        until(lambda: self.waiting() == 0, "every call is scored", 120)
        self.check_keys()
        self.check_retention()

    def waiting(self) -> float:
        """Jobs and calls that are waited for."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(("heddle_jobs{", "heddle_monitor_calls_waiting "))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def check_keys(self) -> None:
        """A key counts for its time and no longer."""
        for made_at, key in self.keys[-2 * KEY_DAYS - 2 :]:
            answer = httpx.post(
                f"{self.process.url}/calls/query_stats", json={"project_id": PROJECT}, auth=("api", key), timeout=60
            )
            is_over = self.clock.now() > made_at + timedelta(days=KEY_DAYS)
            assert answer.status_code == (401 if is_over else 200), f"{made_at}, {self.clock.now()}: {answer.text}"

    def check_retention(self) -> None:
        """What is younger is there, each with its score and the price of its time; what is older goes."""

        def found() -> dict[str, Any]:
            body = {"project_id": PROJECT, "filter": {"op_names": [op_ref(PROJECT)]}, "include_costs": True}
            return {call["id"]: call for call in self.query("/calls/stream_query", **body)}

        def expected() -> set[str]:
            since = self.clock.now() - timedelta(days=KEPT_DAYS)
            return {call_id for call_id, (at, _) in self.calls.items() if at >= since}

        def scored() -> set[str]:
            rows = self.post("/feedback/query", project_id=PROJECT, fields=["id", "weave_ref"])["result"]
            self.scores |= {row["id"]: row["weave_ref"].rpartition("/")[2] for row in rows}
            return {row["weave_ref"].rpartition("/")[2] for row in rows}

        until(lambda: found().keys() == expected(), "what is too old goes, and nothing else", 60)
        until(lambda: scored() == expected(), "what was said of it goes, too", 60)
        for call_id, call in found().items():
            costs = call["summary"]["weave"]["costs"][MODEL]
            cost = costs["prompt_tokens_total_cost"] + costs["completion_tokens_total_cost"]
            assert cost == pytest.approx(self.calls[call_id][1]), call

    def end_day(self, day: int) -> None:
        """A backup."""
        backups = self.folder / "backups"
        told = self.clock.run("backup", backups / "{time}", "--keep", BACKUPS, "--data", self.process.data)
        assert "restored into a temporary folder and checked" in told
        assert len([path for path in backups.iterdir() if path.is_dir()]) == min(day + 1, BACKUPS)

    def measure(self) -> dict[str, int]:
        """Rows of each table, files, bytes of the folder and memory."""
        assert self.process.process is not None
        figures: dict[str, int] = {}
        with closing(connect(f"file:{self.process.data}/heddle.db?mode=ro", uri=True)) as raw:
            listed = raw.execute("SELECT name FROM sqlite_master WHERE rootpage AND type = 'table'").fetchall()
            tables = [name for (name,) in listed if not name.startswith("sqlite_")]
            figures |= {name: raw.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
        sizes = [path.stat().st_size for path in self.process.data.rglob("*") if path.is_file()]
        top = psutil.Process(self.process.process.pid)
        memory = sum(each.memory_full_info().uss for each in (top, *top.children(recursive=True)))
        return figures | {"paths": len(sizes), "bytes": sum(sizes), "memory": memory}

    def everything(self, url: str) -> list[Any]:
        """What a server holds, as it answers."""
        with httpx.Client(base_url=url, timeout=120, auth=("api", BOOTSTRAP)) as client:
            paths = ("/calls/stream_query", "/objs/query", "/feedback/query", "/cost/query")
            return [
                sorted(client.post(path, json={"project_id": project}).raise_for_status().text.splitlines())
                for path in paths
                for project in (PROJECT, KEPT)
            ]


def op_ref(project: str) -> str:
    """The op of the calls."""
    return f"weave:///{project}/op/answer:1"


def test_months_leave_no_more_than_their_end(tmp_path: Path) -> None:
    clock = MovedClock(tmp_path / "clock")
    with receiving() as (hooks, address):
        settings: dict[str, Any] = {
            "model": "none",
            "auth": "on",
            "bootstrap_key": BOOTSTRAP,
            "alert_webhooks": address,
        }
        settings |= {"retention_interval": 1, "alert_interval": 0.3, "audit_days": KEPT_DAYS, "large_field_bytes": 1024}
        process = Process(tmp_path / "data", **settings)
        with patch.dict(os.environ, clock.environment):
            process.start()
        try:
            months = Months(process, clock, hooks, tmp_path)
            months.begin(address)
            for number in range(2 * DAYS):
                months.live_half_a_day(number)
                if number % 2:
                    months.end_day(number // 2)
                if number % 14 == 13 or DAYS < 14:
                    months.weeks.append(months.measure())
                    print(f"day {number // 2 + 1}: {months.weeks[-1]}", flush=True)
            check_end(months)
            kept = {call["id"] for call in months.query("/calls/stream_query", project_id=KEPT)}
            assert kept == months.kept
            newest = max(path for path in (tmp_path / "backups").iterdir() if path.is_dir())
            held = months.everything(process.url)
            assert process.terminate() == 0
            with patch.dict(os.environ, clock.environment):
                process.start()
            until(lambda: months.measure()["eval_jobs"] <= 2 * JOB_DAYS, "old jobs are forgotten")
            assert months.everything(process.url) == held
        finally:
            process.kill()
        assert "Traceback" not in process.log(), process.log()[-5000:]
        heddle("restore", newest, "--data", tmp_path / "restored")
        with HeddleProcess(tmp_path / "restored", **settings | {"retention_interval": 86_400}) as restored:
            # Its clock is the real one, by which nothing is old.
            assert months.everything(restored.url) == held


def check_end(months: Months) -> None:
    """Each call was scored once, each change of the alert told once, and nothing grew in the last third."""
    assert Counter(months.scores.values()) == dict.fromkeys(months.calls, 1)
    told = [(message["type"], message["signed"]) for message in months.hooks.messages]
    assert told == [(("alert.firing", "alert.resolved")[place % 2], True) for place in range(months.messages)]
    since = times.to_micros(months.clock.now() - timedelta(days=KEPT_DAYS))
    with closing(connect(f"file:{months.process.data}/heddle.db?mode=ro", uri=True)) as raw:
        until(lambda: raw.execute("SELECT min(at) FROM audit_log").fetchone()[0] >= since, "the audit log ends, too")
    if DAYS < SETTLED:
        return
    weeks = months.weeks
    third = len(weeks) // 3
    before, after = weeks[third : 2 * third], weeks[2 * third :]
    grown = {
        name: ([week[name] for week in before], [week[name] for week in after])
        for name in weeks[-1]
        if name not in MADE_TO_STAY
        and (min if name in MERGED else max)(week[name] for week in after) > max(week[name] for week in before) * 1.1
    }
    assert grown == {}, grown

"""Calls, usage and feedback as Parquet: types, sums, and the queries of docs/transfer.md, run by DuckDB."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyarrow import parquet

from heddle.transfer.parquet import FILES
from tests.support import scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess

ROOT = Path(__file__).parents[2]
DUCKDB = next((ROOT / ".clients").glob("duckdb-*/bin/python"), None)
PROJECT = "team/exported"
AT = "2026-01-0{}T00:00:00Z"
RUN = """
import duckdb, json, sys
duckdb.sql("SET TimeZone = 'UTC'")
print(json.dumps([duckdb.sql(query).fetchall() for query in json.load(sys.stdin)], default=str))
"""


def seed(url: str) -> None:
    """Two days of calls: an agent that repeats the usage of its model call, an error, one that runs, feedback."""

    def call(name: str, op: str, day: int, seconds: int, inputs: Any, output: Any, **more: Any) -> None:
        start = {"project_id": PROJECT, "id": name, "trace_id": more.pop("trace", name), "op_name": op}
        start |= {
            "started_at": AT.format(day),
            "attributes": {"k": "ä"},
            "inputs": inputs,
            "parent_id": more.pop("above", None),
        }
        items = [{"mode": "start", "req": {"start": start}}]
        if seconds:
            usage = {"usage": more.pop("usage")} if "usage" in more else {}
            end = {"project_id": PROJECT, "id": name, "ended_at": f"2026-01-0{day}T00:00:{seconds:02}Z"}
            items.append({"mode": "end", "req": {"end": end | {"output": output, "summary": usage, **more}}})
        assert httpx.post(f"{url}/call/upsert_batch", json={"batch": items}).status_code == 200

    price = {"prompt_token_cost": 0.001, "completion_token_cost": 0.002, "effective_date": "2020-01-01T00:00:00Z"}
    body = {"project_id": PROJECT, "costs": {"big": price}}
    assert httpx.post(f"{url}/cost/create", json=body).status_code == 200
    used = {"big": {"requests": 1, "prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}}
    question = {"question": "Where is Zürich?", "text": "x" * 3000}
    call("agent", f"weave:///{PROJECT}/op/agent:abc", 1, 9, question, {"answer": "here"}, usage=used)
    call("model", "complete", 1, 5, {}, None, above="agent", trace="agent", usage=used)
    call("free", "complete", 2, 3, {}, None, usage={"small": {"prompt_tokens": 7, "completion_tokens": 3}})
    call("wrong", "complete", 2, 1, {}, None, exception="ValueError: no")
    call("runs", "complete", 2, 0, {}, None)
    for score in (0.5, 1.0):
        given = {"project_id": PROJECT, "weave_ref": f"weave:///{PROJECT}/call/agent", "feedback_type": "judge"}
        assert httpx.post(f"{url}/feedback/create", json=given | {"payload": {"score": score}}).status_code == 200


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the export of a running server."""
    folder = tmp_path_factory.mktemp("parquet")
    with HeddleProcess(folder / "data", large_field_bytes="1KiB", model="none") as process:
        seed(process.url)
        settings = scale.settings_of(scale.EVERYWHERE, folder / "data")
        done = heddle("export", folder / "export", "--format", "parquet", "--data", folder / "data", **settings)
        assert done.returncode == 0, done.stderr
        assert "calls.parquet (5 rows), usage.parquet (2 rows), feedback.parquet (2 rows)" in done.stdout
        again = heddle("export", folder / "export", "--format", "parquet", "--data", folder / "data", **settings)
        assert again.returncode == 1 and "already exists" in again.stderr
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    return folder


def test_types_and_values(exported: Path) -> None:
    kinds = {"string": "large_string", "instant": "timestamp[us, tz=UTC]"}
    for name, columns in FILES.items():
        schema = parquet.read_schema(exported / "export" / f"{name}.parquet")
        assert {field.name: str(field.type) for field in schema} == {
            key: kinds.get(of, of) for key, of in columns.items()
        }
    calls = {row["id"]: row for row in parquet.read_table(exported / "export" / "calls.parquet").to_pylist()}
    agent, model, runs = calls["agent"], calls["model"], calls["runs"]
    assert (agent["op_name"], agent["op"]) == (f"weave:///{PROJECT}/op/agent:abc", "agent")
    assert json.loads(agent["inputs"]) == {"question": "Where is Zürich?", "text": "x" * 3000}
    assert agent["started_at"].isoformat() == "2026-01-01T00:00:00+00:00" and agent["seconds"] == 9.0
    # Its usage is that of the call below it, which is counted there.
    assert (agent["total_tokens"], agent["cost"]) == (None, None) and "150" in agent["summary"]
    assert (model["model"], model["total_tokens"], round(model["cost"], 9)) == ("big", 150, 0.2)
    assert (calls["free"]["total_tokens"], calls["free"]["cost"]) == (10, None)
    assert (runs["status"], runs["ended_at"], runs["seconds"], runs["output"]) == ("running", None, None, None)
    assert calls["wrong"]["status"] == "error" and calls["wrong"]["exception"] == "ValueError: no"


@pytest.mark.skipif(DUCKDB is None, reason="DuckDB is not installed: make clients")
def test_the_queries_of_the_page(exported: Path) -> None:
    page = (ROOT / "docs" / "transfer.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    command = [str(DUCKDB), "-c", RUN]
    done = subprocess.run(command, input=json.dumps(queries), cwd=exported, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cost, slow, errors, fields, feedback = json.loads(done.stdout)
    assert [[row[0][:10], *row[1:]] for row in cost] == [
        ["2026-01-01", "big", 150, 0.2],
        ["2026-01-02", "small", 10, None],
    ]
    assert slow == [["agent", 1, 9.0], ["complete", 3, 4.8]]
    assert errors == [["complete", "ValueError", 1]]
    assert fields == [["agent", "Where is Zürich?", "here"]]
    assert feedback == [["agent", "judge", 2, 0.75]]

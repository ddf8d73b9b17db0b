"""A store with a row in every table that archives hold, and everything of two stores side by side."""

from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from heddle.store.base import Store
from heddle.transfer import schema
from heddle.wire import refs, times
from tests.support.inprocess import Trace

BARE = "bare/rows"
"""The project of rows that were put into the tables as they are."""
Json = dict[str, Any]


async def fill_tables(store: Store, data: Path) -> None:
    """Some rows in every control table that is moved, with a real blob or folder where one is named."""
    entity, project = BARE.split("/")
    for moved in schema.EXPORTED:
        rows = [_row(store, data, moved.table, number) for number in range(3)]
        for row in rows:
            row.update({"entity": entity, "project": project} if "entity" in row else {})
        rows = list({tuple(row[name] for name in moved.identity): row for row in rows}.values())
        await store.control.write(lambda c, table=moved.table, rows=rows: c.execute(table.insert(), rows).rowcount)


def _row(store: Store, data: Path, table: sa.Table, number: int) -> Json:
    row: Json = {}
    for column in table.c:
        if column is table.autoincrement_column:
            continue
        text = f"id {number}" if column.name == "id" else f'{{"{column.name}":{number}}}'
        instant = times.now() if f"_{column.name}".endswith("_at") else 0
        row[column.name] = text if isinstance(column.type, sa.Text) else instant + number
    for name, shape in schema.JSON_COLUMNS.get(table.name, {}).items():
        row[name] = f'["{name} {number}"]' if shape.kind is list else f'{{"{name}":"{number}"}}'
        if shape is schema.NUMBER_MAP:
            row[name] = f'{{"{name}":{number}}}'
        if shape is schema.RULES:
            row[name] = f'{{"kinds":[],"paths":["inputs.{name}-{number}"]}}'
    row |= {"project": refs.internal_project(BARE)} if "project" in row else {}
    row |= {"project_id": BARE} if "project_id" in row else {}
    row |= {"state": "succeeded"} if "state" in row else {}
    row |= {"is_enabled": 0} if "is_enabled" in row else {}
    parents = {"queue_id", "item_id", "replay_id", "model_id", "job_id"} & row.keys()
    row |= dict.fromkeys(parents, f"id {number}")
    for column in schema.BLOB_COLUMNS:
        if column.table is table:
            row[column.name] = store.blobs.put_bytes(f"content {table.name} {number}".encode())
    for column in schema.FOLDER_COLUMNS:
        if column.table is table:
            row[column.name] = f"{schema.FOLDERS[number % 2]}/{table.name}/{number}"
            folder = data / row[column.name]
            folder.mkdir(parents=True)
            (folder / "weights.bin").write_bytes(bytes(range(256)) * (number + 1))
    return row


async def fill_project(client: httpx.AsyncClient, project: str) -> None:
    """Calls, objects, tables, files, feedback, costs and spans of agents, written over the interface."""
    trace = Trace(client, project)
    dataset = await trace.dataset("rows", [{"number": n, "text": "é\u0000\U0001f600" * n} for n in range(1500)])
    for value in ({"ref": dataset}, {"ref": dataset, "text": "\u0000\u2028"}):
        await trace.publish("refers", value)
    version = f"/objs/rows/versions/{dataset.rsplit(':', 1)[1]}"
    for path, body in ((f"{version}/tags", {"tags": ["gold"]}), ("/objs/rows/aliases", {"aliases": ["best"]})):
        digest = {} if path.endswith("tags") else {"digest": dataset.rsplit(":", 1)[1]}
        answer = await client.put(path, json={"project_id": project, **body, **digest})
        assert answer.status_code == 200, answer.text
    answer = await client.post(
        "/file/create", data={"project_id": project}, files={"file": ("a.bin", b"\x00\x01" * 700, "text/plain")}
    )
    assert answer.status_code == 200, answer.text
    await _write_calls(trace, dataset)
    ref = f"weave:///{project}/call/call-1"
    for number in range(3):
        payload = {"note": f"note {number}"}
        body = {"project_id": project, "weave_ref": ref, "feedback_type": "wandb.note.1", "payload": payload}
        await trace.post("/feedback/create", **body)
    price = {"prompt_token_cost": 0.1, "completion_token_cost": 1 / 3}
    await trace.post("/cost/create", project_id=project, costs={"model-x": price})
    await _send_span(client, project)


async def _write_calls(trace: Trace, dataset: str) -> None:
    large = "long text " * 40_000
    inputs: list[Json] = [
        {"dataset": dataset, "n": 2**70, "f": 1e-9, "nothing": None, "deep": {"a.b": ["", "\u2028", True]}},
        {"large": large},
        {"x": 0},
    ]
    batch: list[Json] = []
    for number, given in enumerate(inputs):
        head = {"project_id": trace.project, "id": f"call-{number}", "trace_id": "trace", "op_name": f"op {number}"}
        times = {"started_at": f"2026-01-01T00:00:0{number}.123456Z", "thread_id": "t", "turn_id": "call-0"}
        parent = {"parent_id": "call-0"} if number else {}
        run = {"wb_run_id": f"{trace.project}/run-7", "wb_run_step": number}
        batch.append(
            {"mode": "start", "req": {"start": {**head, **times, **parent, **run, "attributes": {}, "inputs": given}}}
        )
        usage = {"usage": {"model-x": {"prompt_tokens": 3, "completion_tokens": number, "requests": 1}}}
        end = {"project_id": trace.project, "id": head["id"], "ended_at": "2026-01-01T00:01:00Z", "summary": usage}
        end |= {"exception": "ValueError: no"} if number == 1 else {"output": {"dataset": dataset, "large": large}}
        if number < 2:
            batch.append({"mode": "end", "req": {"end": end}})
    await trace.post("/call/upsert_batch", batch=batch)


async def _send_span(client: httpx.AsyncClient, project: str) -> None:
    """A request to a model, and that of HTTP below it, which repeats no tokens."""
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "guide", "gen_ai.conversation.id": "talk"}
    attributes |= {"gen_ai.request.model": "model-x", "gen_ai.usage.input_tokens": "7"}
    span: Json = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "2", "name": "chat", "kind": 3}
    span |= {"startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": "1767225601000000000"}
    span["attributes"] = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    below = {**span, "spanId": "0" * 15 + "3", "parentSpanId": span["spanId"], "name": "POST", "attributes": []}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span, below]}]}]}
    answer = await client.post("/otel/v1/traces", json=body, headers={"project_id": project})
    assert answer.status_code == 200, answer.text


async def control_rows(store: Store) -> dict[str, list[Json]]:
    """Every row of every table that is moved, without what the database numbers and what an import makes anew."""
    found: dict[str, list[Json]] = {}
    for moved in schema.EXPORTED:
        left = schema.SECRETS.get(moved.table.name)
        columns = [column for column in moved.columns if column.name != left]
        query = sa.select(*columns).order_by(*(moved.table.c[name] for name in moved.identity))
        found[moved.table.name] = await store.control.read(
            lambda c, q=query: [dict(r) for r in c.execute(q).mappings()]
        )
    return found


_OF_THAT_DAY = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z", "granularity": 86400}


async def answers(client: httpx.AsyncClient, project: str) -> dict[str, str]:
    """What the interface says of a project, as it says it."""
    named = {"project_id": project}
    dataset = (await client.post("/objs/query", json=named)).json()["objs"]
    tables = [obj["val"]["rows"].rsplit("/", 1)[1] for obj in dataset if "rows" in obj["val"]]
    asked: dict[str, Json] = {
        "/calls/stream_query": {**named, "include_costs": True, "include_feedback": True},
        "/calls/query_stats": {**named, "include_total_storage_size": True},
        "/objs/query": {**named, "include_tags_and_aliases": True},
        "/feedback/query": named,
        "/cost/query": named,
        "/threads/stream_query": named,
        "/agents/spans/query": named,
        "/calls/stats": {**named, **_OF_THAT_DAY, "usage_metrics": [{"metric": "input_tokens"}]},
        **{f"/table/query#{digest}": {**named, "digest": digest} for digest in tables},
    }
    said = {}
    for path, body in asked.items():
        answer = await client.post(path.partition("#")[0], json=body)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        said[path] = answer.text
    return said

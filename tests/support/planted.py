"""A text that is planted wherever a project keeps anything, and the search for it in everything that a store wrote."""

import base64
import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import sqlalchemy as sa

from heddle.store.control.project_tables import PROJECT_TABLES, SERVER_TABLES
from heddle.store.control.repository import Flag, Json, metadata
from heddle.wire import refs, times

START = "2026-01-20T00:00:00Z"
_NUMBERS = iter(range(1000, 1_000_000))
_FIXED: dict[str, dict[str, Any]] = {
    "eval_jobs": {
        "state": "succeeded",
        "kind": "anything",
        "caller": {"user": "someone", "grants": [], "key_id": None},
    },
    "projects": {"redaction": {"kinds": [], "paths": []}},
    "train_jobs": {"state": "succeeded", "ended_at": 1, "kind": "sft"},
    "feedback": dict.fromkeys(("scorer_tag_reasons", "scorer_ratings"), "{}"),
    "call_halves": {"is_end": 0},
}


def fill(connection: sa.Connection, project_id: str, marker: str, keep: Any) -> dict[str, int]:
    """Put a row of the project, every text of it the marker, into each table; returns how many rows each has."""
    project, (entity, name) = refs.internal_project(project_id), project_id.split("/")
    number = next(_NUMBERS)
    for erased in PROJECT_TABLES:
        table = erased.table
        row = {column.name: _value(column, marker, number, keep) for column in table.c}
        own = {"project_id": project_id, "owner": project, "entity": entity}
        row |= {key: value for key, value in own.items() if key in row and (key != "owner" or table.name in _OWNED)}
        if "project" in row:
            row["project"] = name if "entity" in row else project
        if table.name.startswith(("inference_", "quota_")) and "name" in row:
            row |= {"kind": "project", "name": project_id}
        row |= _FIXED.get(table.name, {})
        if table.name == "tables":
            row["number"] = number
        connection.execute(table.insert().values(row))
    return count(connection, project_id)


ORPHANS = (
    "annotation_progress", "conversation_items", "table_chunks", "replay_items", "train_jobs", "train_events",
)  # fmt: skip
"""Tables in which `orphan` leaves a row whose owner is gone."""


def orphan(connection: sa.Connection) -> None:
    """Fill two projects, and remove what rows of ORPHANS lie below in one of them."""
    for project, marker in (("team/own", "zebra"), ("team/other", "okapi")):
        fill(connection, project, marker, lambda content: content.decode())
    for name in ("annotation_queues", "conversations", "tables", "eval_jobs", "train_models"):
        [owners] = (one for one in PROJECT_TABLES if one.table.name == name)
        connection.execute(owners.table.delete().where(owners.within([refs.internal_project("team/own")])))


def left_of_orphans(connection: sa.Connection) -> dict[str, int]:
    """How many rows each of ORPHANS has."""
    return {name: connection.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one() for name in ORPHANS}


_OWNED = ("responses", "conversations")


def _value(column: "sa.Column[Any]", marker: str, number: int, keep: Any) -> Any:
    if column.name == "table_number":
        return number
    if column.table.autoincrement_column is column:
        return number
    kind = column.type.impl_instance if isinstance(column.type, sa.TypeDecorator) else column.type
    if column.name in ("payload", "blob") and column.table.name != "feedback":
        return keep(f"{column.table.name} {marker}".encode())
    if column.name == "more":
        return orjson.dumps({"wb_user_id": marker}).decode()
    if column.name == "folder":
        return f"adapters/{column.table.name}-{marker}"
    if isinstance(kind, sa.LargeBinary):
        start = {"project": "p", "id": marker, "trace_id": marker, "op_name": "o", "started_at": 1, "inputs": "{}"}
        return orjson.dumps(start | {"attributes": "{}", "user": marker})
    if isinstance(column.type, Flag):
        return True
    if isinstance(column.type, Json):
        return {"said": marker}
    if isinstance(kind, sa.Integer | sa.BigInteger | sa.SmallInteger):
        return 1
    return 1.0 if isinstance(kind, sa.Float) else marker


def count(connection: sa.Connection, project_id: str) -> dict[str, int]:
    """How many rows of a project each table has."""
    project = refs.internal_project(project_id)
    return {
        erased.table.name: connection.execute(
            sa.select(sa.func.count()).select_from(erased.table).where(erased.within([project]))
        ).scalar_one()
        for erased in PROJECT_TABLES
    }


def tables_without_line() -> set[str]:
    """The control tables of which no line says how they are erased, or why nothing is."""
    return set(metadata.tables) - {erased.table.name for erased in PROJECT_TABLES} - set(SERVER_TABLES)


def files_with(folder: Path, marker: str) -> list[str]:
    """The files below a folder in which the marker stands, as it is or in base64."""
    needles = (marker.encode(), base64.b64encode(marker.encode())[:-4])
    found = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            # Databases take files away meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and any(needle in path.read_bytes() for needle in needles):
                    found.append(str(path.relative_to(folder)))
    return sorted(found)


def rows_with(database: Path, marker: str) -> list[str]:
    """The tables of a SQLite file in which the marker stands, once compressed dumps are read too."""
    from heddle.store.sqlite import call_bodies

    raw = sqlite3.connect(database)
    try:
        names = [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = []
        for name in names:
            for row in _rows(raw, name):
                texts = [call_bodies.rest(one) if name == "body_in" and isinstance(one, bytes) else one for one in row]
                if any(marker in (text.decode("latin-1") if isinstance(text, bytes) else str(text)) for text in texts):
                    found.append(name)
                    break
        return found
    finally:
        raw.close()


def _rows(raw: sqlite3.Connection, name: str) -> Iterator[Sequence[Any]]:
    try:
        yield from raw.execute(f'SELECT * FROM "{name}"')
    except sqlite3.OperationalError:
        return


def call(project_id: str, call_id: str, trace: str, **fields: Any) -> dict[str, Any]:
    """A whole call."""
    at = {"started_at": START, "ended_at": START, "summary": {}, "attributes": {}, "inputs": {}}
    return {"project_id": project_id, "id": call_id, "trace_id": trace, "op_name": "ask", **at, **fields}


def send(client: httpx.Client, path: str, body: Any) -> Any:
    """The answer of a request that must succeed."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, f"{path}: {answer.text}"
    return answer.json()


def upload(client: httpx.Client, project_id: str, text: str) -> str:
    """The digest of a new file."""
    files = {"file": ("note.txt", text.encode())}
    return str(client.post("/file/create", data={"project_id": project_id}, files=files).json()["digest"])


def plant(client: httpx.Client, project_id: str, marker: str, name: str, user: str = "someone") -> dict[str, Any]:
    """Calls with everything that hangs on them, by HTTP: the marker stands in each part. Returns their names."""
    now = times.now()
    trace, first, below = f"{name}-trace-{now}", f"{name}-call-{now}", f"{name}-below-{now}"
    image = base64.b64encode(f"{marker} ".encode() * 600).decode()
    digest = upload(client, project_id, f"file {marker}")
    inputs = {"text": marker, "image": f"data:text/plain;base64,{image}", "file": {"note": digest}}
    attributes = {"user": user, "note": marker}
    calls = [
        call(project_id, first, trace, inputs=inputs, output={"said": marker}, attributes=attributes,
             thread_id=f"{name}-thread", turn_id=first, display_name=f"named {marker}"),
        call(project_id, below, trace, parent_id=first, inputs={"long": f"{marker} " * 9000}, exception=f"no {marker}"),
    ]  # fmt: skip
    entity, project = project_id.split("/")
    send(client, f"/v2/{entity}/{project}/calls/complete", {"batch": calls})
    ref = f"weave:///{project_id}/call/{first}"
    note = {"project_id": project_id, "weave_ref": ref, "feedback_type": "wandb.note.1", "payload": {"note": marker}}
    send(client, "/feedback/create", note)
    return {"call": first, "below": below, "trace": trace, "thread": f"{name}-thread", "user": user, "file": digest}


def publish(client: httpx.Client, project_id: str, marker: str, name: str) -> str:
    """An object over a table and a file, with the marker in all."""
    rows = [{"question": f"{marker} {number}"} for number in range(3)]
    table = send(client, "/table/create", {"table": {"project_id": project_id, "rows": rows}})["digest"]
    value = {
        "_type": "Dataset",
        "name": name,
        "note": marker,
        "file": upload(client, project_id, f"of {name} {marker}"),
    }
    value |= {"rows": f"weave:///{project_id}/table/{table}"}
    send(client, "/obj/create", {"obj": {"project_id": project_id, "object_id": name, "val": value}})
    return str(table)

"""`heddle export --format parquet`: calls, usage and feedback as files that DuckDB reads (docs/transfer.md).

Memory holds one row group of each file.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson
import sqlalchemy as sa

from heddle import paths
from heddle.errors import HeddleError
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.feedback import feedback
from heddle.trace.records import InferencePrices
from heddle.transfer.archive import require_parquet
from heddle.transfer.export import Source, chosen_projects, open_for_export
from heddle.wire import refs, times
from heddle.wire.aggregates import Split
from heddle.wire.batched import batched
from heddle.wire.calls import BODY, STATUS_WORDS, CallRow, CallsQuery, CostOf, Filter, UsageSum
from heddle.wire.inference import sum_of_costs

if TYPE_CHECKING:
    from pyarrow import DataType

_GROUP_ROWS, _GROUP_CHARACTERS = 20_000, 32 << 20
_PAGE = 1000
_JSON = ("inputs", "output", "attributes", "summary")
_PLAIN = ("id", "trace_id", "parent_id", "kind", "thread_id", "turn_id", "user")
_TOKENS = (
    *("requests", "prompt_tokens", "completion_tokens", "total_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
)
_USAGE = {**dict.fromkeys(_TOKENS, "int64"), "cost": "double"}
FILES: dict[str, dict[str, str]] = {
    "calls": {
        **dict.fromkeys(("project", "id", "trace_id", "parent_id", "op_name", "op", "name", "kind"), "string"),
        **dict.fromkeys(("started_at", "ended_at"), "instant"),
        "seconds": "double",
        **dict.fromkeys(("status", "exception", "user", "thread_id", "turn_id", "run_id", "model"), "string"),
        **_USAGE,
        **dict.fromkeys(_JSON, "string"),
    },
    "usage": {
        **dict.fromkeys(("project", "call_id"), "string"),
        "started_at": "instant",
        "model": "string",
        **_USAGE,
    },
    "feedback": {
        **dict.fromkeys(("project", "id", "call_id", "weave_ref", "feedback_type"), "string"),
        "created_at": "instant",
        **dict.fromkeys(("user", "creator", "payload"), "string"),
    },
}
"""The columns of each file; instants are UTC, JSON and the refs in it are texts in external form."""
Row = dict[str, Any]


async def export(settings: Settings, target: Path, projects: Sequence[str]) -> dict[str, int]:
    """Write the named projects (all without names) into a new folder; returns the rows of each file.

    Raises HeddleError, and then there is no folder; ExtraMissing without pyarrow.
    """
    require_parquet()
    paths.require_apart(settings.data, target)
    if target.exists():
        raise HeddleError(f"{target} already exists; Parquet files must be written to a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with paths.open_scratch(target) as scratch:
        folder = scratch / "files"
        folder.mkdir()
        async with open_for_export(settings, target) as source:
            files = {name: ParquetFile(folder / f"{name}.parquet", columns) for name, columns in FILES.items()}
            for project in await chosen_projects(source.store, projects):
                await _write_project(source, project, files)
            counts = {name: file.close() for name, file in files.items()}
        folder.rename(target)
    return counts


class ParquetFile:
    """One file on its way; end it with `close`."""

    def __init__(self, target: Path | io.RawIOBase, columns: Mapping[str, str]) -> None:
        import pyarrow
        from pyarrow import parquet

        self._schema = pyarrow.schema([(name, _type_of(kind)) for name, kind in columns.items()])
        self._writer = parquet.ParquetWriter(target, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._characters = self._count = 0

    def add(self, row: Row) -> None:
        """Add one row; instants are microseconds."""
        self._rows.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(self._rows) >= _GROUP_ROWS or self._characters >= _GROUP_CHARACTERS:
            self._flush()

    def close(self) -> int:
        """Write what is left; returns how many rows there are."""
        self._flush()
        self._writer.close()
        return self._count

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._count += len(self._rows)
        self._rows, self._characters = [], 0


def _type_of(kind: str) -> "DataType":
    import pyarrow

    # One column of a row group may hold more than 2 GiB of text.
    kinds = {"instant": pyarrow.timestamp("us", tz="UTC"), "string": pyarrow.large_string()}
    return kinds.get(kind) or pyarrow.type_for_alias(kind)


async def _write_project(source: Source, project: str, files: Mapping[str, ParquetFile]) -> None:
    """Write the rows of an `entity/project`."""
    internal, store = refs.internal_project(project), source.store
    cost_of = await InferencePrices(store)(internal)
    query = CallsQuery(internal, sort=(), columns=frozenset(BODY))
    async for found in source.calls(query):
        for rows in batched(found, _PAGE):
            chosen = CallsQuery(internal, Filter(call_ids=tuple(row.id for row in rows)))
            usage: dict[str, list[Row]] = {}
            for counted in await store.call_aggregates.usage(chosen, (), split=Split("id")):
                usage.setdefault(counted.name, []).append(_usage_row(counted, cost_of))
            for row in rows:
                own = [
                    {"project": project, "call_id": row.id, "started_at": row.started_at, **each}
                    for each in usage.get(row.id, ())
                ]
                for each in own:
                    files["usage"].add(each)
                files["calls"].add(_call_row(project, row, own))
    await _write_feedback(store, project, internal, files["feedback"])


def _usage_row(counted: UsageSum, cost_of: CostOf) -> Row:
    """The tokens of one call and model that totals count, and what they cost in USD; null without a price."""
    values = (counted.requests, counted.prompt, counted.completion, counted.tokens)
    tokens = dict(zip(_TOKENS, (*values, counted.cache_read, counted.cache_creation), strict=True))
    return {"model": counted.model, **tokens, "cost": cost_of(counted, counted.priced_at)}


def _call_row(project: str, row: CallRow, usage: Sequence[Row]) -> Row:
    sums: Row = {name: sum(each[name] for each in usage) if usage else None for name in _TOKENS}
    return {
        "project": project,
        **{
            name: getattr(row, name) for name in ("id", "trace_id", "parent_id", "kind", "thread_id", "turn_id", "user")
        },
        "op_name": _external(row.op_name),
        "op": refs.operation_name(row.op_name),
        "name": row.display_name or refs.operation_name(row.op_name),
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "seconds": None if row.ended_at is None else (row.ended_at - row.started_at) / times.SECOND,
        "status": STATUS_WORDS[row.status],
        "exception": row.exception,
        "run_id": None if row.run_id is None else row.run_id.partition(":")[2] or row.run_id,
        "model": usage[0]["model"] if len(usage) == 1 else None,
        **sums,
        "cost": sum_of_costs(each["cost"] for each in usage),
        **{name: None if (text := getattr(row, name)) is None else _convert(text) for name in _JSON},
    }


async def _write_feedback(store: Store, project: str, internal: str, file: ParquetFile) -> None:
    column, last = feedback.c, 0
    of_call = refs.call_ref(internal, "")
    while True:
        page = sa.select(feedback).where(column.project == internal, column.seq > last).order_by(column.seq)
        found = await store.control.read(
            lambda connection, page=page: connection.execute(page.limit(_PAGE)).mappings().all()  # type: ignore[misc]
        )
        for row in found:
            is_of_call = row["weave_ref"].startswith(of_call)
            file.add(
                {
                    "project": project,
                    **{name: row[name] for name in ("id", "feedback_type", "created_at", "creator")},
                    "call_id": unquote(row["weave_ref"].removeprefix(of_call)) if is_of_call else None,
                    "weave_ref": _external(row["weave_ref"]),
                    "user": row["wb_user_id"],
                    "payload": _convert(row["payload"]),
                }
            )
        if len(found) < _PAGE:
            return
        last = found[-1]["seq"]


def _convert(text: str) -> str:
    """JSON text with its refs in external form."""
    return refs.convert_out(text.encode()).decode() if refs.INTERNAL in text else text


def _external(ref: str) -> str:
    return str(orjson.loads(_convert(orjson.dumps(ref).decode()))) if ref.startswith(refs.INTERNAL) else ref

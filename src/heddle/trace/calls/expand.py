"""Refs inside calls replaced by what they point to, for the columns that are asked for."""

from collections.abc import Sequence
from typing import Any

import orjson

from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallRow

Path = tuple[str, ...]
_JSON_COLUMNS = ("inputs", "output", "attributes", "summary")


class Expansion:
    """Replaces the refs at some paths, shallow paths first, one look-up per path and slice."""

    def __init__(self, store: Store, project: str, paths: Sequence[Path]) -> None:
        self._store = store
        self._project = project
        self._paths = [path for path in paths if path[0] in _JSON_COLUMNS]

    async def replace(self, rows: Sequence[CallRow]) -> dict[str, dict[str, Any]]:
        """New values of the touched columns by call id; values of refs that are missing or deleted stay refs."""
        parsed: dict[str, dict[str, Any]] = {row.id: {} for row in rows}
        for path in self._paths:
            places = [place for row in rows if (place := self._place(row, parsed[row.id], path))]
            values = await self._values([holder[key] for holder, key in places])
            for holder, key in places:
                ref = holder[key]
                if ref in values:
                    value = orjson.loads(values[ref])
                    holder[key] = {**value, "_ref": ref} if isinstance(value, dict) else value
        return {call_id: columns for call_id, columns in parsed.items() if columns}

    def _place(self, row: CallRow, columns: dict[str, Any], path: Path) -> tuple[Any, Any] | None:
        """Container and key of the ref at a path, None when there is none."""
        column = path[0]
        if column not in columns:
            text = getattr(row, column)
            if text is None or refs.INTERNAL not in text:
                return None
            columns[column] = orjson.loads(text)
        holder: Any = columns
        key: Any = column
        for part in path[1:]:
            holder = holder[key]
            if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
                key = int(part)
            elif isinstance(holder, dict) and part in holder:
                key = part
            else:
                return None
        ref = holder[key]
        return (holder, key) if isinstance(ref, str) and ref.startswith(f"{refs.INTERNAL}{self._project}/") else None

    async def _values(self, found: Sequence[str]) -> dict[str, str]:
        """JSON text by ref: object versions, and dataset rows by their digest."""
        wanted = set(found)
        datasets = {ref: ref.partition(refs.ROWS)[0] for ref in wanted if refs.ROWS in ref}
        stored = await self._store.objects.values(self._project, wanted - datasets.keys() | set(datasets.values()))
        values = {ref: text for ref, text in stored.items() if text is not None and ref in wanted}
        rows = {ref: ref.rpartition("/")[2] for ref, dataset in datasets.items() if stored[dataset] is not None}
        if rows:
            by_digest = await self._store.tables.row_values(self._project, set(rows.values()))
            values.update({ref: by_digest[digest] for ref, digest in rows.items() if digest in by_digest})
        return values

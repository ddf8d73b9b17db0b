"""The dataset of an evaluation: its rows in pages, however many there are."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.evals.objects import ObjectReader, is_ref
from heddle.wire import refs
from heddle.wire.jsontypes import Json

PAGE = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    place: int
    example: Any
    """Its internal ref, or the row itself where it is stored inside the evaluation."""
    value: Json


class Dataset:
    """Rows of a stored table, or rows that are stored inside an object."""

    def __init__(self, reader: ObjectReader, name: str, count: int, table: refs.Ref | None, home: str, rows: Any):
        self._reader = reader
        self._name = name
        self.count = count
        self._table, self._home, self._rows = table, home, rows

    async def rows(self) -> AsyncIterator[Row]:
        """Every row in order; raises InvalidRequest for one that is no object."""
        if self._table is None:
            for place, value in enumerate(self._rows):
                yield self._row(place, value, value)
            return
        for start in range(0, self.count, PAGE):
            found = await self._reader.store.tables.query(
                self._table.project, self._table.name, limit=PAGE, offset=start
            )
            for place, row in enumerate(found, start):
                value = orjson.loads(row.val)
                yield self._row(place, f"{self._home}{refs.ROWS}{row.digest}" if self._home else value, value)

    def _row(self, place: int, example: Any, value: Any) -> Row:
        if not isinstance(value, dict):
            raise InvalidRequest(f"Row {place} of the dataset of {self._name} is no object")
        return Row(place, example, value)


async def read_dataset(reader: ObjectReader, dataset: Any, name: str) -> Dataset:
    """The dataset of the evaluation `name`: a ref, or its value; raises HeddleError when it cannot be read."""
    home, value = "", dataset
    if is_ref(dataset) and reader.target(dataset, "The dataset").kind == "object":
        found = await reader.read(dataset, "The dataset")
        home, value = found.ref, found.value
    listed = value.get("rows") if isinstance(value, dict) else value
    if not is_ref(listed):
        rows = listed if isinstance(listed, list) else []
        return _with_rows(Dataset(reader, name, len(rows), None, "", rows), name)
    target = reader.target(listed, "The dataset")
    if target.kind != "table":
        raise InvalidRequest("The rows of the dataset are no table")
    count = await reader.store.tables.count(target.project, target.name)
    return _with_rows(Dataset(reader, name, count or 0, target, home, None), name)


def _with_rows(dataset: Dataset, name: str) -> Dataset:
    if not dataset.count:
        raise InvalidRequest(f"The dataset of the evaluation {name} has no rows")
    return dataset

"""What the target holds under the ids and folders of an archive already, and belongs to other projects there."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from heddle.moving import plan
from heddle.paths import model_folder
from heddle.store.base import Store
from heddle.store.control.adapters import adapters
from heddle.store.control.training import train_checkpoints, train_models

Row = dict[str, Any]
Owner = tuple[Any, ...]
_AT_A_TIME = 500


class Foreign:
    """Ids and folders that are another project's in the target: nothing of an archive is stored below those."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: set[tuple[str, str]] = set()
        self._models: dict[str, Owner] = {}
        self._folders: dict[str, Owner] | None = None

    async def ours(self, name: str, rows: Sequence[Row]) -> list[Row]:
        """The records that lie below no other project's, and name no folder of one; ids of the others are noted."""
        chosen = [row for row in rows if not self._is_below(name, row)]
        if name in plan.FOLDERS_OF:
            taken = [await self.is_taken(row["folder"], self._owner(row)) for row in chosen]
            chosen = [row for row, is_taken in zip(chosen, taken, strict=True) if not is_taken]
        if name in plan.OWNED:
            kept = {row["id"] for row in chosen}
            self._ids.update((name, row["id"]) for row in rows if row["id"] not in kept)
        return chosen

    def _is_below(self, name: str, row: Row) -> bool:
        if name not in plan.PARENTS:
            return False
        column, above = plan.PARENTS[name]
        return (above, row[column]) in self._ids

    def _owner(self, row: Row) -> Owner:
        return (row["entity"], row["project"]) if "entity" in row else self._models.get(row["model_id"], ())

    async def note(self, name: str, rows: Sequence[Row]) -> None:
        """Note which of these ids belong to others in the target, now that what was free is taken."""
        if name not in plan.OWNED:
            return
        table = plan.BY_NAME[name].table
        columns = [table.c[column] for column in plan.OWNED[name]]
        for first in range(0, len(rows), _AT_A_TIME):
            part = {
                row["id"]: tuple(row[column.name] for column in columns) for row in rows[first : first + _AT_A_TIME]
            }
            query = sa.select(table.c.id, *columns).where(table.c.id.in_(part))
            found = {key: tuple(owner) for key, *owner in await self._store.control.read(_reading(query))}
            self._ids.update((name, key) for key, owner in part.items() if found.get(key) != owner)
            if table is train_models:
                self._models |= part

    async def is_taken(self, folder: str, owner: Owner) -> bool:
        """True for a folder of another project, in one, or around one."""
        folders = await self._owners()
        above = ["/".join(folder.split("/")[:end]) for end in range(1, folder.count("/") + 2)]
        if any(folders.get(name, owner) != owner for name in above):
            return True
        return any(name.startswith(folder + "/") and theirs != owner for name, theirs in folders.items())

    async def _owners(self) -> dict[str, Owner]:
        """Entity and project behind each folder of adapters, checkpoints and models, as the target had them."""
        if self._folders is None:
            loaded = sa.select(adapters.c.folder, adapters.c.entity, adapters.c.project)
            of_model = (train_models.c.entity, train_models.c.project)
            joined = train_checkpoints.c.model_id == train_models.c.id
            made = sa.select(train_checkpoints.c.folder, *of_model).where(joined)
            models = sa.select(train_models.c.id, *of_model)
            found = [row for query in (loaded, made) for row in await self._store.control.read(_reading(query))]
            found += [(model_folder(key), *owner) for key, *owner in await self._store.control.read(_reading(models))]
            self._folders = {folder: tuple(owner) for folder, *owner in found}
        return self._folders


def _reading(query: "sa.Select[Any]") -> Callable[[sa.Connection], list[Owner]]:
    return lambda connection: [tuple(row) for row in connection.execute(query)]

"""Links: of a registry's portfolios to versions, and of dataset rows to their calls, spans and conversations."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.store.control.audit import audit
from heddle.store.control.repository import Key, Mapped, Repository, writes
from heddle.wire.batched import batched


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One link; `source_ref` (internal, its version a digest) is what was linked, `digest` the registry's version."""

    project: Key[str]
    portfolio: Key[str]
    source_ref: Key[str]
    digest: str
    created_at: int
    created_by: str


_registry = Mapped(LinkRow, "registry_links")
registry_links = _registry.table


class Registry(Repository):
    """What can be done with links; projects are internal ids."""

    async def link(self, row: LinkRow) -> None:
        """Note a link; the same source again changes nothing."""
        await self._executor.write(lambda connection: _registry.insert_new(connection, row))

    async def links(self, project: str, portfolio: str | None = None) -> list[LinkRow]:
        """The links of a registry project, of one portfolio where it is named, oldest first."""
        query = _registry.select(_registry.c.project == project).order_by(
            _registry.c.created_at, _registry.c.source_ref
        )
        return await self._all(
            _registry, query if portfolio is None else query.where(_registry.c.portfolio == portfolio)
        )


_IDENTITY = ("project", "dataset_object_id", "row_digest", "source_kind", "source_id", "source_trace_id")
_CHUNK = 200
Source = tuple[str, str, str]
"""Kind, id and trace id."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One link; `link_metadata` is JSON text, instants are microseconds."""

    id: Key[str]
    project: str
    dataset_object_id: str
    dataset_digest: str
    row_digest: str
    source_kind: str
    source_id: str
    source_trace_id: str
    link_metadata: str | None
    added_by: str
    created_at: int
    updated_at: int
    deleted_at: int | None = None

    @property
    def source(self) -> Source:
        """What the row came from."""
        return self.source_kind, self.source_id, self.source_trace_id


_links = Mapped(
    SourceRow,
    "dataset_sources",
    sa.UniqueConstraint(*_IDENTITY, name="dataset_sources_identity"),
    sa.Index("dataset_sources_by_source", "project", "source_id"),
)
dataset_sources = _links.table
_c = dataset_sources.c


class DatasetSources(Repository):
    """What can be done with links; projects are internal ids."""

    async def link(self, rows: Sequence[SourceRow]) -> list[tuple[str, bool]]:
        """Store links; one that exists keeps its id, takes new metadata and digest, and lives again if deleted.

        Returns the id of each, and whether it is new or alive again.
        """
        return await self._executor.write(
            lambda connection: [_link(connection, row) for row in rows], 400 * len(rows) + 100
        )

    @writes
    def delete(self, connection: sa.Connection, project: str, ids: Sequence[str], user: str, at: int) -> set[str]:
        """Mark links as deleted; returns the ids of those that lived."""
        gone: set[str] = set()
        for part in batched(ids, _CHUNK):
            live = sa.and_(_c.project == project, _c.id.in_(part), _c.deleted_at.is_(None))
            gone |= set(connection.execute(sa.select(_c.id).where(live)).scalars())
            connection.execute(dataset_sources.update().where(live).values(deleted_at=at, updated_at=at))
        if gone:
            audit(connection, at, user, "dataset_link.delete", project, {"ids": sorted(gone)})
        return gone

    async def query(
        self,
        project: str,
        dataset_object_id: str,
        *,
        row_digests: Collection[str] | None,
        kinds: Collection[str] | None,
        with_deleted: bool,
        limit: int | None,
        offset: int,
    ) -> list[SourceRow]:
        """The links of a dataset (all its versions), oldest first."""
        query = _select(project, with_deleted).where(_c.dataset_object_id == dataset_object_id)
        if row_digests is not None:
            query = query.where(_c.row_digest.in_(row_digests))
        if kinds is not None:
            query = query.where(_c.source_kind.in_(kinds))
        return await self._all(_links, query.order_by(_c.created_at, _c.id).limit(limit).offset(offset or None))

    async def of_sources(self, project: str, sources: Collection[Source], with_deleted: bool) -> list[SourceRow]:
        """The links of these sources in all datasets, oldest first."""
        wanted = set(sources)
        found: list[SourceRow] = []
        for part in batched(sorted({source_id for _, source_id, _ in wanted}), _CHUNK):
            rows = await self._all(_links, _select(project, with_deleted).where(_c.source_id.in_(part)))
            found += [row for row in rows if row.source in wanted]
        return sorted(found, key=lambda row: (row.created_at, row.id))


def _select(project: str, with_deleted: bool) -> sa.Select[Any]:
    query = _links.select(_c.project == project)
    return query if with_deleted else query.where(_c.deleted_at.is_(None))


def _link(connection: sa.Connection, row: SourceRow) -> tuple[str, bool]:
    mine = sa.and_(*(_c[name] == getattr(row, name) for name in _IDENTITY))
    known: Any = connection.execute(sa.select(_c.id, _c.deleted_at).where(mine)).first()
    if known is None:
        _links.insert(connection, row)
        return row.id, True
    changes: dict[str, Any] = {"dataset_digest": row.dataset_digest, "updated_at": row.updated_at, "deleted_at": None}
    if row.link_metadata is not None:
        changes["link_metadata"] = row.link_metadata
    connection.execute(dataset_sources.update().where(mine).values(changes))
    return known.id, known.deleted_at is not None

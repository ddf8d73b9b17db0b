"""The registry: which versions of objects were linked into which portfolio of a registry project, and from where.

A linked version is itself an ordinary version, of an object named like the portfolio (contract: trace-evals, 9).
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from heddle.store.control.schema import Executor, metadata

registry_links = sa.Table(
    "registry_links",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("portfolio", sa.Text, primary_key=True),
    sa.Column("source_ref", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One link; `source_ref` (internal, its version a digest) is what was linked, `digest` the registry's version."""

    project: str
    portfolio: str
    source_ref: str
    digest: str
    created_at: int
    created_by: str


class Registry:
    """What can be done with links; projects are internal ids."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def link(self, row: LinkRow) -> None:
        """Note a link; the same source again changes nothing."""

        def work(connection: sa.Connection) -> None:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            values = {name: getattr(row, name) for name in LinkRow.__slots__}
            connection.execute(insert(registry_links).values(values).on_conflict_do_nothing())

        await self._executor.write(work)

    async def links(self, project: str, portfolio: str | None = None) -> list[LinkRow]:
        """The links of a registry project, of one portfolio where it is named, oldest first."""
        c = registry_links.c
        query = sa.select(registry_links).where(c.project == project)
        if portfolio is not None:
            query = query.where(c.portfolio == portfolio)
        query = query.order_by(c.created_at, c.source_ref)
        return await self._executor.read(
            lambda connection: [LinkRow(**row._mapping) for row in connection.execute(query)]
        )

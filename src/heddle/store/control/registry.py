"""The registry: which versions of objects were linked into which portfolio of a registry project, and from where.

A linked version is itself an ordinary version, of an object named like the portfolio (contract: trace-evals, 9).
"""

from dataclasses import dataclass

from heddle.store.control.mapping import Key, Mapped, Repository


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One link; `source_ref` (internal, its version a digest) is what was linked, `digest` the registry's version."""

    project: Key[str]
    portfolio: Key[str]
    source_ref: Key[str]
    digest: str
    created_at: int
    created_by: str


_links = Mapped(LinkRow, "registry_links")
registry_links = _links.table


class Registry(Repository):
    """What can be done with links; projects are internal ids."""

    async def link(self, row: LinkRow) -> None:
        """Note a link; the same source again changes nothing."""
        await self._executor.write(lambda connection: _links.insert_new(connection, row))

    async def links(self, project: str, portfolio: str | None = None) -> list[LinkRow]:
        """The links of a registry project, of one portfolio where it is named, oldest first."""
        query = _links.select(_links.c.project == project).order_by(_links.c.created_at, _links.c.source_ref)
        return await self._all(_links, query if portfolio is None else query.where(_links.c.portfolio == portfolio))

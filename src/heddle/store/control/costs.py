"""Token prices that a project has set for itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from heddle.store.control.audit import purge
from heddle.store.control.repository import Executor, Instance, ProjectCache, Repository, columns_of, metadata
from heddle.store.control.row_queries import Column, RowRequest, RowTable, Selection
from heddle.store.query.compiler import Kind
from heddle.wire import refs
from heddle.wire.batched import group_pairs

PROJECT_LEVEL = "project"
DEFAULT_LEVEL = "default"


@dataclass(frozen=True, slots=True)
class PriceRow:
    """What tokens of a model cost from a date on: US dollars per single token, times in microseconds."""

    id: str
    llm_id: str
    provider_id: str
    effective_date: int
    prompt_token_cost: float
    completion_token_cost: float
    cache_read_input_token_cost: float
    cache_creation_input_token_cost: float
    prompt_token_cost_unit: str
    completion_token_cost_unit: str
    created_by: str
    created_at: int
    pricing_level: str = PROJECT_LEVEL
    pricing_level_id: str = ""


ProjectPrices = dict[str, tuple[PriceRow, ...]]
"""Prices by model, in the order of their dates; of one date the one created last stands last, to correct others."""
_STORED = tuple(name for name in PriceRow.__dataclass_fields__ if not name.startswith("pricing_level"))
costs = sa.Table(
    "costs",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    *columns_of(PriceRow, _STORED),
    sa.UniqueConstraint("project", "id", name="costs_by_id"),
    sa.Index("costs_by_model", "project", "llm_id"),
)


def _columns(project: str) -> dict[str, Column]:
    c = costs.c
    kinds = dict.fromkeys(("effective_date", "created_at"), Kind.INSTANT)
    kinds |= {name: Kind.NUMBER for name in _STORED if name.endswith("_cost")}
    columns = {name: Column(kinds.get(name, Kind.TEXT), c[name]) for name in _STORED}
    columns["pricing_level"] = Column(Kind.TEXT, sa.literal(PROJECT_LEVEL, sa.Text()))
    columns["pricing_level_id"] = Column(Kind.TEXT, sa.literal(_external(project), sa.Text()))
    return columns


def _external(project: str) -> str:
    return refs.external_project(project) or project


class Costs(Repository):
    """What can be done with a project's prices; projects are internal ids."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        super().__init__(executor, instance)
        self._cached: ProjectCache[ProjectPrices] = ProjectCache(self.instance)

    async def create(self, project: str, prices: Sequence[PriceRow]) -> None:
        """Add prices; existing ones of the same model stay."""
        if not prices:
            return
        rows = [{name: getattr(price, name) for name in _STORED} | {"project": project} for price in prices]
        try:
            await self._executor.write(lambda connection: connection.execute(sa.insert(costs), rows), 300 * len(rows))
        finally:
            self.forget(project)

    async def query(self, project: str, request: RowRequest) -> Selection:
        """The project's prices that a request selects, in the order they were created unless it says otherwise."""
        table = RowTable(costs, _columns(project), (costs.c.seq + 0,))
        return await table.read(self._executor, costs.c.project == project, request)

    async def purge(self, project: str, ids: Sequence[str], user: str) -> int:
        """Delete prices by id for good; unknown ids are ignored. Returns how many there were."""
        try:
            return await self._executor.write(lambda c: purge(c, costs, project, ids, user, "cost.purge"))
        finally:
            self.forget(project)

    async def project_rows(self, project: str) -> ProjectPrices:
        """The project's own prices, from memory where no other server writes and nothing was written since."""
        return await self._cached.get(
            project, lambda: self._executor.read(lambda connection: _project_prices(connection, project))
        )

    def forget(self, project: str) -> None:
        """Read the prices of a project anew, as they have changed."""
        self._cached.forget(project)


def order_prices(rows: Iterable[PriceRow]) -> ProjectPrices:
    """The prices by model; those of one date stay in their order."""
    by_model = group_pairs((row.llm_id, row) for row in rows)
    return {llm_id: tuple(sorted(found, key=lambda row: row.effective_date)) for llm_id, found in by_model.items()}


def _project_prices(connection: sa.Connection, project: str) -> ProjectPrices:
    c = costs.c
    statement = sa.select(*[c[name] for name in _STORED]).where(c.project == project).order_by(c.seq)
    external = _external(project)
    rows = connection.execute(statement)
    return order_prices(replace(PriceRow(**row._mapping), pricing_level_id=external) for row in rows)

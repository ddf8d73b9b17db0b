"""The control tables as PostgreSQL keeps them: texts in the order of code points, whole numbers of 64 bits."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

# All tables belong to the metadata once these are imported.
from heddle.store.control import call_halves, ended_calls, groups  # noqa: F401
from heddle.store.control.mapping import stored_type
from heddle.store.control.schema import metadata


def control_tables() -> sa.MetaData:
    """A copy of the definitions with the types of PostgreSQL."""
    made = sa.MetaData()
    for table in metadata.sorted_tables:
        for column in table.to_metadata(made).columns:
            kept = stored_type(column)
            if isinstance(kept, sa.Text):
                column.type = postgresql.TEXT(collation="C")
            elif isinstance(kept, sa.Integer):
                column.type = sa.BigInteger()
    return made


def statements() -> list[str]:
    """What makes every table and index from nothing."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    found: list[sa.schema.ExecutableDDLElement] = []
    for table in control_tables().sorted_tables:
        found += [CreateTable(table), *(CreateIndex(index) for index in sorted(table.indexes, key=_name))]
    texts = (str(statement.compile(dialect=dialect)) for statement in found)
    return ["\n".join(line.rstrip().expandtabs(4) for line in text.strip().splitlines()) for text in texts]


def _name(index: sa.Index) -> str:
    return str(index.name)

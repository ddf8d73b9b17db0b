"""Bodies of the tables group."""

from typing import Annotated, Any

from pydantic import Field

from heddle.http import RequestModel, ResponseModel
from heddle.request_body import sliced
from heddle.trace.calls.models import SortBy

Row = dict[str, Any]


class TableSchemaForInsert(RequestModel):
    """A table whose rows come along."""

    project_id: str
    rows: Annotated[list[Row], sliced("table", "rows")]
    expected_digest: str | None = None


class TableCreateReq(RequestModel):
    """Body of /table/create."""

    table: TableSchemaForInsert


class TableCreateRes(ResponseModel):
    """Digests of the table and of each row."""

    digest: str
    row_digests: list[str] = Field(default_factory=list)


class TableCreateFromDigestsReq(RequestModel):
    """Body of /table/create_from_digests."""

    project_id: str
    row_digests: Annotated[list[str], sliced("row_digests")]
    expected_digest: str | None = None


class TableCreateFromDigestsRes(ResponseModel):
    """Digest of the table."""

    digest: str


class TableAppendSpecPayload(RequestModel):
    """The row."""

    row: Row


class TableAppendSpec(RequestModel):
    """Append a row."""

    append: TableAppendSpecPayload


class TablePopSpecPayload(RequestModel):
    """Which row."""

    index: int


class TablePopSpec(RequestModel):
    """Take a row out."""

    pop: TablePopSpecPayload


class TableInsertSpecPayload(RequestModel):
    """Which row, and where."""

    index: int
    row: Row


class TableInsertSpec(RequestModel):
    """Put a row in."""

    insert: TableInsertSpecPayload


class TableUpdateReq(RequestModel):
    """Body of /table/update."""

    project_id: str
    base_digest: str
    updates: Annotated[list[TableAppendSpec | TablePopSpec | TableInsertSpec], sliced("updates")]


class TableUpdateRes(ResponseModel):
    """Digests of the new table and of the row that each update touched."""

    digest: str
    updated_row_digests: list[str] = Field(default_factory=list)


class TableRowFilter(RequestModel):
    """Only rows with one of these digests."""

    row_digests: list[str] | None = None


class TableQueryReq(RequestModel):
    """Body of /table/query."""

    project_id: str
    digest: str
    filter: TableRowFilter | None = None
    limit: int | None = None
    offset: int | None = None
    sort_by: list[SortBy] | None = None


class TableRowSchema(ResponseModel):
    """A row and its place in the whole table."""

    digest: str
    val: Any
    original_index: int | None = None


class TableQueryRes(ResponseModel):
    """The rows."""

    rows: list[TableRowSchema]


class TableQueryStatsReq(RequestModel):
    """Body of /table/query_stats."""

    project_id: str
    digest: str


class TableQueryStatsRes(ResponseModel):
    """How many rows; 0 for an unknown table."""

    count: int


class TableQueryStatsBatchReq(RequestModel):
    """Body of /table/query_stats_batch."""

    project_id: str
    digests: list[str] | None = Field(default_factory=list)
    include_storage_size: bool | None = False


class TableStatsRow(ResponseModel):
    """Figures of one table."""

    count: int
    digest: str
    storage_size_bytes: int | None = None


class TableQueryStatsBatchRes(ResponseModel):
    """Figures of those tables that exist."""

    tables: list[TableStatsRow]

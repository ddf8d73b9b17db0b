"""What the routes over small tables share: their request models, and the purge by ids."""

from collections.abc import Sequence

from heddle.errors import InvalidRequest
from heddle.http import RequestModel, page_limit
from heddle.settings import Settings
from heddle.store.control.rowtable import RowRequest, Sort
from heddle.trace.calls.models import SortBy
from heddle.wire.query import Compare, Field, In, Literal, Operand, Operation, Or, QueryBody

MAX_FIELDS, MAX_SORT_TERMS = 500, 20


class RowQueryReq(RequestModel):
    """A selection of a small table's rows."""

    project_id: str
    fields: list[str] | None = None
    query: QueryBody | None = None
    sort_by: list[SortBy] | None = None
    limit: int | None = None
    offset: int | None = None

    def selection(self, settings: Settings, fields: Sequence[str] | None) -> RowRequest:
        """The request in the store's terms; raises TooLarge for a limit beyond the setting max_page_rows."""
        for name, most in (("fields", MAX_FIELDS), ("sort_by", MAX_SORT_TERMS)):
            count = len(getattr(self, name) or ())
            if count > most:
                raise InvalidRequest(f"{name} has {count} entries; at most {most} are allowed")
        sorts = None if self.sort_by is None else [Sort(term.field, term.direction == "desc") for term in self.sort_by]
        return RowRequest(fields, self.query, sorts, page_limit(settings, self.limit), self.offset)


class PurgeReq(RequestModel):
    """Rows to delete for good, named by their ids."""

    project_id: str
    query: QueryBody


def purge_ids(query: Operation, message: str, lists: bool) -> list[str]:
    """The ids of `$eq [id, text]` or `$or` of those, with `lists` also `$in [id, [texts]]`.

    Every other query is refused with InvalidRequest, so that nobody deletes by accident what a filter happens to match.
    """
    if isinstance(query, Or):
        return [_one_id(item, message) for item in query.operands]
    if lists and isinstance(query, In) and query.left == Field("id"):
        return [_text(item, message) for item in query.items]
    return [_one_id(query, message)]


def _one_id(operand: Operand, message: str) -> str:
    if isinstance(operand, Compare) and operand.op == "eq" and operand.left == Field("id"):
        return _text(operand.right, message)
    raise InvalidRequest(message)


def _text(operand: Operand, message: str) -> str:
    if isinstance(operand, Literal) and isinstance(operand.value, str):
        return operand.value
    raise InvalidRequest(message)

"""The order of a calls query, as it is in every dialect."""

from heddle.wire.calls import SortTerm

DEFAULT_ORDER = (SortTerm("started_at", False), SortTerm("id", False))


def ordered_terms(sort: tuple[SortTerm, ...] | None) -> tuple[SortTerm, ...]:
    """The order made total: `id` is appended in the direction of a last started_at, else descending."""
    if sort is None:
        return DEFAULT_ORDER
    if not sort or any(term.field == "id" for term in sort):
        return sort
    last = sort[-1]
    return (*sort, SortTerm("id", last.descending if last.field == "started_at" else True))


def keyset_direction(terms: tuple[SortTerm, ...]) -> str:
    """The comparison that continues an order by (started_at, id) alone behind a row; empty for any other order."""
    if [term.field for term in terms] == ["started_at", "id"] and terms[0].descending == terms[1].descending:
        return "<" if terms[0].descending else ">"
    return ""

"""The steps by which the tables on ClickHouse became what they are."""

from heddle.store.clickhouse.schema import add_error_group, add_kind, make_calls, make_table_rows
from heddle.store.clickhouse.search import add_words

ERROR_GROUPS = 3
"""The step after which failed calls of earlier versions get their error group."""
MIGRATIONS = (
    (1, "calls and their keys", make_calls),
    (2, "rows of tables", make_table_rows),
    (ERROR_GROUPS, "which failed calls have the same error", add_error_group),
    (4, "words of calls", add_words),
    (5, "what each call is: of a model, an agent, a tool", add_kind),
)
CURRENT = MIGRATIONS[-1][0]

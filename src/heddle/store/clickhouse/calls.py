"""The verbs of calls on ClickHouse."""

from collections.abc import Callable

from heddle.store.clickhouse.call_reads import CallReads
from heddle.store.clickhouse.call_writes import CallWrites
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.control.schema import Executor


class Calls(CallWrites, CallReads):
    """Calls in ClickHouse; halves of them wait in the control tables."""

    def __init__(
        self, clickhouse: Clickhouse, control: Executor, queue_bytes: int, read_file: Callable[[str], str]
    ) -> None:
        CallWrites.__init__(self, clickhouse, control, queue_bytes)
        CallReads.__init__(self, clickhouse, control, read_file)

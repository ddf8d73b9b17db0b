"""The oracle over ClickHouse: the same lines answered by the ClickHouse trace server of `weave` 0.53.0.

Arguments: both of `oracle.py`, then the port of a ClickHouse on this machine, and a database, which is migrated first.
The word `ready` on a line of its own says that this is done.
"""

import base64
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import oracle  # type: ignore[import-not-found]
from ddtrace import tracer  # type: ignore[import-not-found,unused-ignore]
from sqlparse.engine import grouping  # type: ignore[import-untyped,unused-ignore]
from weave.trace_server import datadog


class Silent:
    """Stands for a client of a service that is not there: whatever it is told, it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


class Projects(oracle.Projects):  # type: ignore[misc]
    """Ids as this server insists on them: users in base64."""

    def ext_to_int_user_id(self, user_id: str) -> str:
        return base64.b64encode(user_id.encode()).decode()

    def int_to_ext_user_id(self, user_id: str) -> str:
        return base64.b64decode(user_id).decode()


def made(port: int, database: str) -> Any:
    """The oracle, its database migrated."""
    # The stubs of oracle.py are never None, no contexts, and lack what objects can do.
    tracer.trace = nullcontext
    tracer.current_span = tracer.current_root_span = staticmethod(lambda: None)
    datadog._dogstatsd_client = Silent  # type: ignore[assignment]
    # Some migrations are longer than what sqlparse takes to be harmless.
    grouping.MAX_GROUPING_DEPTH = grouping.MAX_GROUPING_TOKENS = None
    from weave.trace_server.clickhouse_trace_server_batched import ClickHouseTraceServer

    server = ClickHouseTraceServer(host="127.0.0.1", port=port, database=database)
    server._run_migrations()
    return oracle.Oracle(server, Projects())


if __name__ == "__main__":
    served = made(int(sys.argv[3]), sys.argv[4])
    print("ready", flush=True)
    oracle.serve(served)

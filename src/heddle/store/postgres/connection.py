"""Connections to PostgreSQL: how they are made and tuned, and what their failures mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import sqlalchemy as sa

from heddle.errors import ExtraMissing, HeddleError, InvalidRequest, QueryTimeout, StorageFull, Unavailable
from heddle.extras import install_command

Isolation = Literal["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"]

ANSWERED = "answered"
"""The key in the `info` of a connection under which it says that a statement was answered."""
_CONNECT_SECONDS = 5
_LOCK_SECONDS = 10
_IDLE_SECONDS = 60
"""A transaction whose server fell silent is undone after this, so that it holds nobody up."""
_DEAD_LINE_SECONDS = 30
"""A server of PostgreSQL that acknowledges nothing for so long is taken for lost."""
_CONFLICTS = ("40001", "40P01")
"""Serialization failure and deadlock."""
_TAKEN = "23505"
_TOO_COMPLEX = ("54000", "54001", "54011", "54023")
_TOO_MANY = "number of parameters must be between"
"""What the driver says of a statement with more parameters than the protocol allows; such an error has no code."""
_UNUSABLE = ("08", "25006", "28", "3D", "40003", "53", "55P03", "57P", "58")


def connect(address: str, size: int, isolation: Isolation, statement_seconds: float) -> sa.Engine:
    """Up to `size` connections to `postgresql://user:password@host:port/database`, made when they are needed.

    Those of REPEATABLE READ cannot write. Raises ExtraMissing without the extra.
    """
    try:
        import alembic  # noqa: F401 - migrations need it

        from heddle.store.postgres.values import adapt
    except ImportError:
        raise ExtraMissing(
            f"PostgreSQL requires packages that are not installed: {install_command('postgres')}"
        ) from None
    engine = sa.create_engine(
        sa.make_url(address).set(drivername="postgresql+psycopg"),
        isolation_level=isolation,
        poolclass=sa.QueuePool,
        pool_size=size,
        max_overflow=0,
        pool_timeout=statement_seconds,
        connect_args=_arguments(isolation, statement_seconds),
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, record: object) -> None:
        del record
        adapt(connection)
        connection.read_only = isolation == "REPEATABLE READ"

    @sa.event.listens_for(engine, "after_cursor_execute")
    def note(connection: sa.Connection, *_: object) -> None:
        connection.info[ANSWERED] = True

    return engine


@contextmanager
def opened(address: str, statement_seconds: float) -> Iterator[sa.Engine]:
    """One connection for what is no request, READ COMMITTED; its failures are explained (HeddleError)."""
    engine = connect(address, 1, "READ COMMITTED", statement_seconds)
    try:
        yield engine
    except sa.exc.SQLAlchemyError as error:
        raise explain(error) or error from error
    finally:
        engine.dispose()


def _arguments(isolation: Isolation, statement_seconds: float) -> dict[str, Any]:
    settings = {
        "statement_timeout": int(statement_seconds * 1000),
        "lock_timeout": _LOCK_SECONDS * 1000,
        "idle_in_transaction_session_timeout": _IDLE_SECONDS * 1000,
        "jit": "off",
    }
    if isolation == "SERIALIZABLE":
        # Whoever reads a whole table is in conflict with everybody who writes to it.
        settings["enable_seqscan"] = "off"
    return {
        "application_name": "heddle",
        "connect_timeout": _CONNECT_SECONDS,
        "keepalives_idle": _DEAD_LINE_SECONDS // 3,
        "tcp_user_timeout": _DEAD_LINE_SECONDS * 1000,
        "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
    }


def is_conflict(error: Exception) -> bool:
    """True when a transaction was undone because of another one, so that it may be tried again."""
    return _state(error) in _CONFLICTS


def is_taken(error: Exception) -> bool:
    """True when a row with the same key is there, which another transaction may have written in between."""
    return _state(error) == _TAKEN


def is_lost(error: Exception) -> bool:
    """True when the connection ended, or PostgreSQL ended it."""
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def explain(error: Exception) -> HeddleError | None:
    """What a failure of PostgreSQL means to the caller, or None when it is no known kind."""
    if isinstance(error, sa.exc.TimeoutError):
        return Unavailable("Every connection to PostgreSQL is in use; try again")
    if not isinstance(error, sa.exc.DBAPIError):
        return None
    state = _state(error)
    said = " ".join(str(error.orig).split())[:300]
    if state == "57014":
        return QueryTimeout()
    if state == "53100":
        return StorageFull("The disk of PostgreSQL is full; nothing of this request was stored")
    if state == "22003":
        return InvalidRequest("A number in the request does not fit in 64 bits")
    if state == "54000" and "index row" in said:
        return InvalidRequest(f"An id or a name in the request is too long to be looked up by: {said}")
    if state in _TOO_COMPLEX or _TOO_MANY in said:
        return InvalidRequest(f"The query is too complex: {said}")
    if is_conflict(error):
        return Unavailable("Other requests keep changing the same rows; try again")
    if state.startswith(_UNUSABLE) or is_lost(error):
        return Unavailable(f"PostgreSQL is currently unavailable: {said}")
    if not state and isinstance(error, sa.exc.OperationalError):
        return Unavailable(f"PostgreSQL does not answer: {said}")
    return None


def _state(error: Exception) -> str:
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""

"""The schema of the embedded store, as numbered steps that run at start, each in one transaction.

A step that changes tables which hold data is marked; the file is backed up before it runs.
"""

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from heddle.errors import HeddleError
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.control.agents.table import AGENT_TABLES
from heddle.store.control.annotation_queues import QUEUE_TABLES
from heddle.store.control.coordination import changes, leases
from heddle.store.control.erasure import REMOVE_ORPHANS
from heddle.store.control.eval_jobs import eval_jobs, replay_items
from heddle.store.control.inference import (
    METER_TABLES,
    adapter_names,
    adapters,
    inference_limits,
    inference_usage,
    quota_counts,
)
from heddle.store.control.keys import grants_of_scopes, sessions
from heddle.store.control.links import dataset_sources, registry_links
from heddle.store.control.log_records import log_records
from heddle.store.control.metric_series import METRIC_TABLES
from heddle.store.control.monitors import ALERT_TABLES, monitor_waiting
from heddle.store.control.object_labels import object_aliases
from heddle.store.control.objects import object_versions
from heddle.store.control.pending_calls import call_halves, ended_calls
from heddle.store.control.projects import providers, runtimes
from heddle.store.control.redaction import rejections
from heddle.store.control.repository import metadata
from heddle.store.control.responses import RESPONSE_TABLES
from heddle.store.control.tinker import TINKER_TABLES
from heddle.store.control.training import JOB_TABLES
from heddle.store.control.training_models import train_checkpoints, train_logs, train_models
from heddle.store.data_folder import FILES
from heddle.store.sqlite import blocks, row_checksums, search, usage_repeats
from heddle.store.sqlite.call_bodies import COLUMN
from heddle.store.sqlite.call_writes import TRIAL_TABLES, refresh_all_trials
from heddle.store.sqlite.connection import connect
from heddle.store.sqlite.database import Session
from heddle.store.sqlite.schema import CALL_TABLES, ENDINGS_TABLE, ERRORS_INDEX
from heddle.wire.call_summary import read_error
from heddle.wire.calls import CALL_KINDS, ERROR, kind_of

logger = logging.getLogger("heddle.store")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; `changes_data` asks for a backup first."""

    number: int
    title: str
    apply: Callable[[Session], None]
    changes_data: bool = False


def _create_all(session: Session) -> None:
    _run(*CALL_TABLES)(session)
    metadata.create_all(session.control)


def _create(*tables: sa.Table) -> Callable[[Session], None]:
    return lambda session: metadata.create_all(session.control, tables=tables)


def _add(table: str, column: str) -> Callable[[Session], None]:
    return lambda session: _add_column(session.raw, table, column)


def _create_evaluation(session: Session) -> None:
    _run(ENDINGS_TABLE, *TRIAL_TABLES)(session)
    tables: list[sa.Table] = [monitor_waiting, *ALERT_TABLES, eval_jobs, replay_items]
    tables += [*AGENT_TABLES, *QUEUE_TABLES, registry_links, runtimes, dataset_sources]
    metadata.create_all(session.control, tables=tables)
    refresh_all_trials(session.raw, lambda key: _read_file(session.raw, key))


def _run(*statements: str) -> Callable[[Session], None]:
    def run(session: Session) -> None:
        for statement in statements:
            session.raw.execute(statement)

    return run


def _add_leases(session: Session) -> None:
    metadata.create_all(session.control, tables=[leases, changes, *METER_TABLES, call_halves, ended_calls])
    _add_column(session.raw, "eval_jobs", "lease_owner TEXT")
    _add_column(session.raw, "eval_jobs", "lease_until BIGINT")
    _add_column(session.raw, "alert_deliveries", "lease_until BIGINT")


def _add_error_groups(session: Session) -> None:
    raw = session.raw
    _add_column(raw, "calls", "error_group TEXT")
    raw.create_function("error_group", 1, lambda exception: read_error(exception).group, deterministic=True)
    raw.execute(
        f"""UPDATE calls SET error_group = (SELECT error_group(exception) FROM body_out b WHERE b.rid = calls.rid
            AND b.exception <> '') WHERE status = {ERROR}"""
    )
    raw.execute(ERRORS_INDEX)


def _queue_deliveries(session: Session) -> None:
    columns = ("lease_owner TEXT", "started_at BIGINT", "cancel_asked INTEGER DEFAULT 0 NOT NULL")
    for column in (*columns, "target TEXT DEFAULT '' NOT NULL"):
        _add_column(session.raw, "alert_deliveries", column)
    for before, now in (("pending", "queued"), ("delivered", "succeeded")):
        session.raw.execute("UPDATE alert_deliveries SET state = ?, lease_until = NULL WHERE state = ?", (now, before))


def _add_column(raw: sqlite3.Connection, table: str, column: str) -> None:
    """Add a column to a table that an earlier step made; one that was made just now has it."""
    known = {row[1] for row in raw.execute(f"PRAGMA table_info({table})")}
    if column.split()[0] not in known:
        raw.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _read_file(raw: sqlite3.Connection, key: str) -> str:
    """The text of a blob beside the database file."""
    database = Path(raw.execute("PRAGMA database_list").fetchone()[2])
    return FolderBlobs(database.parent / FILES).read(key).decode()


def _add_kind(session: Session) -> None:
    raw = session.raw
    _add_column(raw, "calls", "kind INTEGER")
    raw.executemany("INSERT OR IGNORE INTO names (v, label) VALUES (?, ?)", [(kind, kind) for kind in CALL_KINDS])
    texts = dict(raw.execute("SELECT k, v FROM names WHERE k IN (SELECT DISTINCT op FROM calls)").fetchall())
    numbers = dict(
        raw.execute(f"SELECT v, k FROM names WHERE v IN ({', '.join('?' * len(CALL_KINDS))})", CALL_KINDS).fetchall()
    )

    def kind(op: int | None, attributes: str | None) -> int:
        return int(numbers[kind_of(texts.get(op or 0, ""), attributes or "")])

    raw.create_function("call_kind", 2, kind)
    raw.execute("UPDATE calls SET kind = call_kind(op, (SELECT attributes FROM body_in b WHERE b.rid = calls.rid))")


def _add_body_sums(session: Session) -> None:
    for table in ("body_in", "body_out"):
        _add_column(session.raw, table, f"{COLUMN} INTEGER")


def _add_row_checksums(session: Session) -> None:
    for table in ("calls", "eval_trials"):
        _add_column(session.raw, table, f"{COLUMN} INTEGER")


def _drop_dump_indexes(session: Session) -> None:
    """Dumps of spans are compressed from now on, so that indexes over their plain text would fail."""
    raw = session.raw
    for (name,) in raw.execute("SELECT name FROM path_indexes WHERE expression LIKE '%otel_dump%'").fetchall():
        raw.execute(f"DROP INDEX IF EXISTS {name}")
        raw.execute("DELETE FROM path_indexes WHERE name = ?", (name,))


def _add_roles(session: Session) -> None:
    """Keys keep what they could do: whoever could write could delete, too."""
    raw = session.raw
    _add_column(raw, "audit_log", "address TEXT DEFAULT '' NOT NULL")
    _add_column(raw, "train_jobs", "key_id TEXT")
    if "scopes" not in {row[1] for row in raw.execute("PRAGMA table_info(api_keys)")}:
        return
    for column in ("grants TEXT DEFAULT '[]' NOT NULL", "last_used_from TEXT", "expires_at BIGINT", "rotated_at BIGINT",
                   "previous_hash TEXT", "previous_until BIGINT"):  # fmt: skip
        _add_column(raw, "api_keys", column)
    raw.create_function("grants", 3, grants_of_scopes, deterministic=True)
    raw.execute("UPDATE api_keys SET grants = grants(scopes, entity, project)")
    for column in ("scopes", "entity", "project"):
        raw.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
    raw.execute("CREATE INDEX IF NOT EXISTS ix_api_keys_previous_hash ON api_keys (previous_hash)")


def _add_quotas(session: Session) -> None:
    _add_column(session.raw, "inference_limits", "quotas TEXT")
    _create(quota_counts)(session)


def _remove_orphans(session: Session) -> None:
    """Rows that earlier versions left when what they belong to was removed: nobody reads them, and no purge."""
    _add_column(session.raw, "train_jobs", "former_project TEXT")
    for statement in REMOVE_ORPHANS:
        session.raw.execute(statement)


def _index_versions(session: Session) -> None:
    for index in (*object_versions.indexes, *object_aliases.indexes):
        index.create(session.control, checkfirst=True)


MIGRATIONS = (
    Migration(1, "calls, bodies, usage, refs and the control tables", _create_all),
    Migration(2, "tables of inference: usage, limits, adapters", _create(inference_usage, inference_limits, adapters)),
    Migration(
        3,
        "tables of training: models, checkpoints, jobs, events, logs",
        _create(adapter_names, train_models, train_checkpoints, train_logs, *JOB_TABLES),
    ),
    Migration(4, "tables of evaluation: jobs, queues, spans of agents, registry, rules", _create_evaluation),
    Migration(5, "the table of browsers' sessions", _create(sessions)),
    Migration(6, "counts of calls over time, and the index of the slowest", _run(*blocks.CALL_BLOCKS)),
    Migration(
        7,
        "usage that is summed up from calls below",
        lambda session: usage_repeats.create(session.raw),
        changes_data=True,
    ),
    Migration(8, "leases of jobs and messages, for several servers", _add_leases),
    Migration(
        9,
        "how often a job of evaluation was cut off by the end of a server",
        _add("eval_jobs", "crashes INTEGER DEFAULT 0 NOT NULL"),
    ),
    Migration(10, "log records that belong to spans, series of metrics", _create(log_records, *METRIC_TABLES)),
    Migration(11, "what exports held that was not stored", _create(rejections)),
    Migration(12, "stored responses, and conversations", _create(*RESPONSE_TABLES)),
    Migration(13, "requests that two spans report", lambda session: usage_repeats.create_inner(session.raw)),
    Migration(14, "which failed calls have the same error", _add_error_groups),
    Migration(15, "the index of text search", lambda session: search.create(session.raw)),
    Migration(16, "what each call is: of a model, an agent, a tool", _add_kind),
    Migration(17, "providers that were entered", _create(providers)),
    Migration(18, "messages of alerts as jobs, each to one target", _queue_deliveries, changes_data=True),
    Migration(19, "sums of tokens over time", _run(*blocks.USAGE_BLOCKS)),
    Migration(20, "the index of calls with large texts", _run(search.LARGE_CALLS)),
    Migration(21, "dumps of spans are stored compressed", _drop_dump_indexes),
    Migration(22, "roles of keys, their ends, and where requests came from", _add_roles, changes_data=True),
    Migration(23, "what clients of Tinker's protocol make", _create(*TINKER_TABLES)),
    Migration(24, "what is taken out of the content of a project", _add("projects", "redaction TEXT")),
    Migration(25, "quotas of projects and keys", _add_quotas),
    Migration(26, "checksums of the bodies of calls", _add_body_sums),
    Migration(27, "checksums of all other rows", _add_row_checksums),
    Migration(28, "checksums of agent spans", _add("agent_spans", "crc BIGINT")),
    Migration(29, "rows whose project nobody knows are removed", _remove_orphans),
    Migration(30, "indexes of the versions and aliases of objects", _index_versions),
)
CURRENT = MIGRATIONS[-1].number


def version(raw: sqlite3.Connection) -> int:
    """The number of the last step that this file went through; 0 for a new file."""
    return int(raw.execute("PRAGMA user_version").fetchone()[0])


def migrate(session: Session, path: Path) -> list[Migration]:
    """Bring the file to the current schema; returns the steps that ran.

    Raises HeddleError for a file of a newer heddle.
    """
    found = version(session.raw)
    if found > CURRENT:
        raise HeddleError(
            f"{path} was written by a newer heddle (schema {found}; this version supports {CURRENT}); upgrade heddle"
        )
    pending = [step for step in MIGRATIONS if step.number > found]
    if found and any(step.changes_data for step in pending):
        _back_up(session.raw, path.with_name(f"{path.name}.before-{pending[-1].number}"))
    for step in pending:
        session.raw.execute("BEGIN IMMEDIATE")
        try:
            step.apply(session)
            if found and step is pending[-1]:
                row_checksums.renew(session.raw)
            session.raw.execute(f"PRAGMA user_version = {step.number}")
            session.raw.execute("COMMIT")
        except BaseException:
            if session.raw.in_transaction:
                session.raw.execute("ROLLBACK")
            raise
        logger.log(logging.INFO if found else logging.DEBUG, "schema step %d: %s", step.number, step.title)
    if not found:
        logger.info("created %s (schema %d)", path, CURRENT)
    return pending


def _back_up(raw: sqlite3.Connection, target: Path) -> None:
    with connect(target) as copy:
        raw.backup(copy)
    copy.close()
    logger.info("copied the database to %s before changing its tables", target)

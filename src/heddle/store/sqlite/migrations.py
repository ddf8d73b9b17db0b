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
from heddle.store.blobs.folder import FILES, FolderBlobs
from heddle.store.control.adapters import adapter_names, adapters
from heddle.store.control.agents.table import AGENT_TABLES
from heddle.store.control.alerts import ALERT_TABLES
from heddle.store.control.annotation_queues import QUEUE_TABLES
from heddle.store.control.call_halves import call_halves
from heddle.store.control.changes import changes
from heddle.store.control.dataset_sources import dataset_sources
from heddle.store.control.ended_calls import ended_calls
from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.inference import inference_limits, inference_usage
from heddle.store.control.jobs import JOB_TABLES
from heddle.store.control.leases import leases
from heddle.store.control.meters import METER_TABLES
from heddle.store.control.monitors import monitor_waiting
from heddle.store.control.registry import registry_links
from heddle.store.control.replays import replay_items
from heddle.store.control.runtimes import runtimes
from heddle.store.control.schema import metadata
from heddle.store.control.sessions import sessions
from heddle.store.control.training import train_checkpoints, train_logs, train_models
from heddle.store.sqlite import call_counts, trial_rows, usage_repeats
from heddle.store.sqlite.call_writes import ENDINGS_TABLE
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.schema import CALL_TABLES

logger = logging.getLogger("heddle.store")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; `changes_data` asks for a backup first."""

    number: int
    title: str
    apply: Callable[[Session], None]
    changes_data: bool = False


def _create_all(session: Session) -> None:
    for statement in CALL_TABLES:
        session.raw.execute(statement)
    metadata.create_all(session.control)


def _create_inference(session: Session) -> None:
    metadata.create_all(session.control, tables=[inference_usage, inference_limits, adapters])


def _create_training(session: Session) -> None:
    tables = [adapter_names, train_models, train_checkpoints, train_logs, *JOB_TABLES]
    metadata.create_all(session.control, tables=tables)


def _create_evaluation(session: Session) -> None:
    session.raw.execute(ENDINGS_TABLE)
    for statement in trial_rows.TABLES:
        session.raw.execute(statement)
    tables: list[sa.Table] = [monitor_waiting, *ALERT_TABLES, eval_jobs, replay_items]
    tables += [*AGENT_TABLES, *QUEUE_TABLES, registry_links, runtimes, dataset_sources]
    metadata.create_all(session.control, tables=tables)
    trial_rows.refresh_all(session.raw, lambda key: _read_file(session.raw, key))


def _create_sessions(session: Session) -> None:
    metadata.create_all(session.control, tables=[sessions])


def _create_call_counts(session: Session) -> None:
    for statement in call_counts.STATEMENTS:
        session.raw.execute(statement)


def _mark_repeats(session: Session) -> None:
    usage_repeats.create(session.raw)


def _add_leases(session: Session) -> None:
    metadata.create_all(session.control, tables=[leases, changes, *METER_TABLES, call_halves, ended_calls])
    for table, column in (("eval_jobs", "lease_owner TEXT"), ("eval_jobs", "lease_until BIGINT")):
        _add_column(session.raw, table, column)
    _add_column(session.raw, "alert_deliveries", "lease_until BIGINT")


def _add_crashes(session: Session) -> None:
    _add_column(session.raw, "eval_jobs", "crashes INTEGER DEFAULT 0 NOT NULL")


def _add_column(raw: sqlite3.Connection, table: str, column: str) -> None:
    """Add a column to a table that an earlier step made; one that was made just now has it."""
    known = {row[1] for row in raw.execute(f"PRAGMA table_info({table})")}
    if column.split()[0] not in known:
        raw.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _read_file(raw: sqlite3.Connection, key: str) -> str:
    """The text of a blob beside the database file."""
    database = Path(raw.execute("PRAGMA database_list").fetchone()[2])
    return FolderBlobs(database.parent / FILES).read(key).decode()


MIGRATIONS = (
    Migration(1, "calls, bodies, usage, refs and the control tables", _create_all),
    Migration(2, "tables of inference: usage, limits, adapters", _create_inference),
    Migration(3, "tables of training: models, checkpoints, jobs, events, logs", _create_training),
    Migration(4, "tables of evaluation: jobs, queues, spans of agents, registry, rules", _create_evaluation),
    Migration(5, "the table of browsers' sessions", _create_sessions),
    Migration(6, "counts of calls over time, and the index of the slowest", _create_call_counts),
    Migration(7, "usage that is summed up from calls below", _mark_repeats, changes_data=True),
    Migration(8, "leases of jobs and messages, for several servers", _add_leases),
    Migration(9, "how often a job of evaluation was cut off by the end of a server", _add_crashes),
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
            f"{path} was written by a newer heddle (schema {found}, this one knows {CURRENT}); upgrade heddle"
        )
    pending = [step for step in MIGRATIONS if step.number > found]
    if found and any(step.changes_data for step in pending):
        _back_up(session.raw, path.with_name(f"{path.name}.before-{pending[-1].number}"))
    for step in pending:
        session.raw.execute("BEGIN IMMEDIATE")
        try:
            step.apply(session)
            session.raw.execute(f"PRAGMA user_version = {step.number}")
            session.raw.execute("COMMIT")
        except BaseException:
            if session.raw.in_transaction:
                session.raw.execute("ROLLBACK")
            raise
        logger.info("schema step %d: %s", step.number, step.title)
    return pending


def _back_up(raw: sqlite3.Connection, target: Path) -> None:
    with sqlite3.connect(target) as copy:
        raw.backup(copy)
    copy.close()
    logger.info("copied the database to %s before changing its tables", target)

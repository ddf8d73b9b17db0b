"""Expression indexes on JSON paths that are asked for often and answered slowly, built while nobody writes."""

import hashlib
import logging
import sqlite3
import threading

from heddle.wire import times

logger = logging.getLogger("heddle.store")

SLOW_SECONDS = 0.05
USES_BEFORE_BUILD = 3
MAX_INDEXES = 16
UNUSED_DAYS = 30

Expression = tuple[str, str]


class PathIndexes:
    """Which expressions have an index, and which should get one; `note` and `built` may be called from any thread."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._built: frozenset[Expression] = frozenset()
        self._lock = threading.Lock()
        self._slow: dict[Expression, int] = {}
        self._used: set[Expression] = set()
        self.follow(raw)

    def built(self, expressions: list[Expression]) -> Expression | None:
        """The first of the expressions that an index answers."""
        for expression in expressions:
            if expression in self._built:
                self._used.add(expression)
                return expression
        return None

    def note(self, expressions: list[Expression]) -> None:
        """A query that reads these expressions took longer than `SLOW_SECONDS`."""
        with self._lock:
            for expression in expressions:
                if expression not in self._built and len(self._slow) < 1000:
                    self._slow[expression] = self._slow.get(expression, 0) + 1

    def wish(self, expression: Expression) -> None:
        """Let an expression have an index as soon as there is time: it was slow often enough elsewhere."""
        with self._lock:
            if expression not in self._built:
                self._slow[expression] = USES_BEFORE_BUILD

    def follow(self, raw: sqlite3.Connection) -> None:
        """Read again which expressions have an index, as another process builds them."""
        rows = raw.execute("SELECT body, expression FROM path_indexes WHERE built_at IS NOT NULL")
        built = frozenset((body, expression) for body, expression in rows)
        with self._lock:
            self._built = built
            self._slow = {expression: uses for expression, uses in self._slow.items() if expression not in built}

    def wanted(self) -> Expression | None:
        """An expression that was slow often enough, while there is room for one more index."""
        if len(self._built) >= MAX_INDEXES:
            return None
        with self._lock:
            return next((expression for expression, uses in self._slow.items() if uses >= USES_BEFORE_BUILD), None)

    def build(self, raw: sqlite3.Connection, wanted: Expression) -> None:
        """Create the index of an expression (in the writer thread)."""
        body, expression = wanted
        name = "path_" + hashlib.sha256(f"{body} {expression}".encode()).hexdigest()[:16]
        raw.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {body} ({expression})")
        raw.execute(
            """INSERT OR REPLACE INTO path_indexes (name, body, expression, slow_uses, last_used, built_at)
                VALUES (?, ?, ?, ?, ?, ?)""",
            (name, body, expression, USES_BEFORE_BUILD, times.now(), times.now()),
        )
        logger.info("built index %s on %s", name, body)

    def now_built(self, wanted: Expression) -> None:
        """The index is committed: queries may use it."""
        with self._lock:
            self._slow.pop(wanted, None)
        self._built |= {wanted}

    def tidy(self, raw: sqlite3.Connection) -> set[Expression]:
        """Note what was used and drop indexes unused for 30 days (in the writer thread); returns the dropped ones."""
        used, self._used = self._used, set()
        raw.executemany(
            "UPDATE path_indexes SET last_used = ? WHERE body = ? AND expression = ?",
            [(times.now(), *item) for item in used],
        )
        oldest = times.now() - UNUSED_DAYS * times.DAY
        rows = raw.execute("SELECT name, body, expression FROM path_indexes WHERE last_used < ?", (oldest,)).fetchall()
        for name, _, _ in rows:
            raw.execute(f"DROP INDEX IF EXISTS {name}")
            raw.execute("DELETE FROM path_indexes WHERE name = ?", (name,))
        return {(body, expression) for _, body, expression in rows}

    def now_dropped(self, dropped: set[Expression]) -> None:
        """The drop is committed."""
        self._built -= dropped

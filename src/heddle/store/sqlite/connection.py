"""How every part of heddle opens an SQLite file."""

import sqlite3
from pathlib import Path
from typing import Any


def connect(database: Path, *, is_read_only: bool = False, **options: Any) -> sqlite3.Connection:
    """A connection to a file (or to `:memory:`), whose schema has been read; `options` are those of `sqlite3.connect`.

    Raises sqlite3.Error for a file that SQLite cannot read.
    """
    file = "file::memory:" if str(database) == ":memory:" else database.absolute().as_uri()
    address = f"{file}?mode={'ro' if is_read_only else 'rwc'}"
    raw: sqlite3.Connection = sqlite3.connect(address, uri=True, **options)
    try:
        raw.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except UnicodeDecodeError:
        # The message of SQLite has the damaged text in it, of which Python makes no message.
        raw.close()
        error = sqlite3.DatabaseError("text of its schema is not UTF-8")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error from None
    except sqlite3.Error:
        raw.close()
        raise
    return raw

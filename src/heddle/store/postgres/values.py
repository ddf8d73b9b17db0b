"""Values between Python and PostgreSQL: every text can be written, and numbers come as they come from SQLite.

A text of PostgreSQL cannot hold a zero character: it is written as two others, and read as itself again.
"""

from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.string import StrDumperUnknown, TextLoader

_MARK = "\U0010ffff"
"""No character of any text, by the Unicode standard; one that comes all the same is written as two, too."""
ZERO = _MARK + "0"
"""What stands for a zero character in the database."""
_ITSELF = _MARK + "1"
_BEYOND = 2**63


class _Dumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        if "\x00" in obj or _MARK in obj:
            obj = obj.replace(_MARK, _ITSELF).replace("\x00", ZERO)
        return super().dump(obj)


class _Loader(TextLoader):
    def load(self, data: Buffer) -> str | bytes:
        text = super().load(data)
        if isinstance(text, str) and _MARK in text:
            return text.replace(ZERO, "\x00").replace(_ITSELF, _MARK)
        return text


class _NumberLoader(Loader):
    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        if text.removeprefix("-").isdigit() and -_BEYOND <= (number := int(text)) < _BEYOND:
            return number
        return float(text)


def adapt(connection: Connection) -> None:
    """Let a connection write and read every text of Python but lone surrogates, and read its numbers."""
    connection.adapters.register_dumper(str, _Dumper)
    connection.adapters.register_loader("numeric", _NumberLoader)
    for kind in ("text", "varchar"):
        connection.adapters.register_loader(kind, _Loader)

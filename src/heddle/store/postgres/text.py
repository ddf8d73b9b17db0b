"""Texts that PostgreSQL cannot hold: a zero character is written as two others, and read as itself again."""

from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.types.string import StrDumperUnknown, TextLoader

_MARK = "\U0010ffff"
"""No character of any text, by the Unicode standard; one that comes all the same is written as two, too."""
ZERO = _MARK + "0"
"""What stands for a zero character in the database."""
_ITSELF = _MARK + "1"


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


def hold_every_text(connection: Connection) -> None:
    """Let a connection write and read every text of Python but lone surrogates."""
    connection.adapters.register_dumper(str, _Dumper)
    for kind in ("text", "varchar"):
        connection.adapters.register_loader(kind, _Loader)

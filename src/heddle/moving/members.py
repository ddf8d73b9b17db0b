"""The members that an archive may have: plain files of known names and bounded sizes."""

import re
import tarfile

from heddle.errors import HeddleError
from heddle.moving import plan, tables
from heddle.moving.archive_names import (
    BLOBS,
    CALLS,
    FOLDERS,
    HEADER,
    JSON_LINES,
    MANIFEST,
    MOST_BYTES,
    PARQUET,
    RECORDS,
)

MIB = 1 << 20
_LISTS = 64 * MIB
"""The most bytes of the header and of the manifest, which are read whole."""
_FOLDER = r"(?:[A-Za-z0-9_][A-Za-z0-9_. -]{0,254}/)+[A-Za-z0-9_.][A-Za-z0-9_. -]{0,254}"
_GROUPS = "|".join([CALLS, tables.ROWS, tables.TABLES, *(f"{RECORDS}/{moved.table.name}" for moved in plan.MOVED)])
_PART = re.compile(rf"(?:{_GROUPS})/\d{{1,12}}(?:{re.escape(JSON_LINES)}|{re.escape(PARQUET)})")
_BLOB = re.compile(rf"{BLOBS}[0-9a-f]{{64}}")
_FILE = re.compile(rf"{FOLDERS}(?:{'|'.join(plan.FOLDERS)})/{_FOLDER}")
FOLDER = re.compile(rf"(?:{'|'.join(plan.FOLDERS)})(?:/[A-Za-z0-9_][A-Za-z0-9_. -]{{0,254}})+")
"""A folder of an adapter or a checkpoint, as a row names it: relative to the data folder."""


def check_member(member: tarfile.TarInfo) -> None:
    """Raise HeddleError for a link or a device, a name that no export gives, and records that are too large."""
    name = member.name
    if not member.isreg() or member.issparse():
        raise HeddleError(f"The archive holds {name[:300]!r}, which is no plain file")
    if name in (HEADER, MANIFEST):
        _check_size(member, _LISTS)
    elif name.startswith(FOLDERS) and (not _FILE.fullmatch(name) or ".." in name.split("/")):
        raise HeddleError(f"The archive holds {name[:300]!r}, which is no file of an adapter or a checkpoint")
    elif name.startswith(BLOBS) and not _BLOB.fullmatch(name):
        raise HeddleError(f"The archive holds {name[:300]!r}, which is no SHA-256")
    elif not name.startswith((FOLDERS, BLOBS)):
        if not _PART.fullmatch(name):
            raise HeddleError(f"The archive holds {name[:300]!r}, which this heddle does not know")
        _check_size(member, MOST_BYTES)


def _check_size(member: tarfile.TarInfo, most: int) -> None:
    if member.size > most:
        raise HeddleError(f"The archive's {member.name} has {member.size} bytes, and at most {most} are read at once")

"""A full disk, told as what it is."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from heddle.errors import StorageFull

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@contextmanager
def room() -> Iterator[None]:
    """Raise StorageFull where the body finds the disk full."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull("The disk is full; nothing of this request was stored") from error
        raise

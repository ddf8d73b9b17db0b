"""The listening socket, made before the server is imported, so that early connections wait instead of being refused."""

import errno
import socket
import sys
import time

from heddle.errors import HeddleError
from heddle.settings import Settings

BACKLOG = 2048
_TAKEN_SECONDS = 1.0
UNSENT_BYTES = 128 * 1024
"""What the system takes of an answer before it can be sent; more is not even made for a client that reads nothing."""


def listen(settings: Settings) -> socket.socket:
    """A socket on the address of the settings; raises HeddleError when it cannot be had."""
    ends = time.monotonic() + _TAKEN_SECONDS
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        while True:
            try:
                listener = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
                break
            except OSError as error:
                # Workers of a server that was killed hold it until the system has ended them.
                if error.errno != errno.EADDRINUSE or time.monotonic() > ends:
                    raise
                time.sleep(0.02)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"{settings.host}:{settings.port}"
        raise HeddleError(
            f"Cannot listen on {where}: {reason}. Choose another address with --host and --port"
        ) from None
    listener.set_inheritable(False)
    if sys.platform == "linux":
        # The connections that are accepted inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listener

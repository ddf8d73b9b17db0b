"""The listening socket, made before the server is imported: who comes while it starts waits, and is not refused."""

import socket
import sys

from heddle.errors import HeddleError
from heddle.settings import Settings

BACKLOG = 2048
UNSENT_BYTES = 128 * 1024
"""What the system takes of an answer before it can be sent; more is not even made for a client that reads nothing."""


def listen(settings: Settings) -> socket.socket:
    """A socket on the address of the settings; raises HeddleError when it cannot be had."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"{settings.host}:{settings.port}"
        raise HeddleError(f"Cannot listen on {where}: {reason}. Choose another with --host and --port") from None
    listener.set_inheritable(False)
    if sys.platform == "linux":
        # The connections that are accepted inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listener

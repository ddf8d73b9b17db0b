"""The listening socket, made before the server is imported: who comes while it starts waits, and is not refused."""

import socket

from heddle.errors import HeddleError
from heddle.settings import Settings

BACKLOG = 2048


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
    return listener

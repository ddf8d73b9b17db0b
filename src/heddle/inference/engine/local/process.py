"""Starting and ending the engine's process."""

import logging
import socket

from heddle.children import Child

logger = logging.getLogger("heddle.inference.engine")

MODULE = "heddle.inference.engine.local.worker"
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Weights in huge pages: up to a quarter less time per step of one sequence. What the environment says goes first."""


class EngineProcess(Child):
    """The child that holds the model; `connection` is the server's end of the socket."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.connection, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            arguments = [MODULE, str(number)]
            super().__init__("the engine's process", arguments, logger, environment=HUGE_PAGES, sockets=[number])

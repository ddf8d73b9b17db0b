"""Keeps one server of vLLM: `python -m heddle.inference.engine.vllm.keeper <socket> <command...>`.

The server gets a process group of its own, all of which ends when heddle closes the socket or dies, and when the
server itself ends.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

from heddle.ipc.child import die_with_parent

GRACE_SECONDS = 10.0
_LOOK_SECONDS = 0.05


def main() -> None:
    """Start the command and stay until it or heddle ends; exits with the code of the command."""
    heddle = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: heddle.shutdown(socket.SHUT_RDWR))
    # What it prints belongs to heddle's log, which reads our stderr.
    server = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True, preexec_fn=die_with_parent
    )
    ended = os.pidfd_open(server.pid) if hasattr(os, "pidfd_open") else None
    while server.poll() is None:
        # The socket becomes readable when its other end is gone; nothing is ever sent.
        watched = [heddle.fileno()] if ended is None else [heddle.fileno(), ended]
        if heddle.fileno() in select.select(watched, [], [], _LOOK_SECONDS if ended is None else None)[0]:
            break
    code = end_group(server)
    sys.exit(code if code >= 0 else 128 - code)


def end_group(server: "subprocess.Popen[bytes]") -> int:
    """Ask the server to end, then kill what is left of its group; its exit code."""
    _signal_group(server.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_SECONDS)
    _signal_group(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_SECONDS
    code = server.wait()
    while _signal_group(server.pid, 0) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return code


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to all that is left of a group; False when nothing is."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()

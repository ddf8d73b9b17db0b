"""A server of vLLM that heddle starts: its settings, its process, started again when it dies."""

import asyncio
import contextlib
import logging
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from heddle.inference.engine.base import EngineOptions
from heddle.ipc.child import ConnectedChild, Restarts, die_with_parent, keep_running

KV_TRANSFER = "kv_transfer_params"
"""The word in `vllm_takes` for servers with a connector."""
RANKS = (64, 128, 256, 320, 512)
"""Highest ranks of LoRA adapters that a server can be made for; the first is enough for most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions(EngineOptions):
    """Settings of the servers behind one engine; the weights of the folder are read by those that we start."""

    model: str
    """What servers that we start call the model."""
    urls: tuple[str, ...] = ()
    """Servers that run elsewhere; empty = we start our own."""
    replicas: int = 1
    """How many we start."""
    command: str = "python3 -m vllm.entrypoints.openai.api_server"
    """How one is started, before its arguments; `{replica}` is its number from 0."""
    arguments: str = ""
    """Further arguments of the servers that we start; `{replica}` as above."""
    takes: frozenset[str] = frozenset()
    """Names of extra arguments of the servers' plug-ins, and `kv_transfer_params` where they have a connector."""
    key: str = ""
    """What the servers want as a bearer token; empty = nothing."""
    max_adapters: int = 32
    lora_rank: int = 8
    """The highest rank of adapters that servers that we start make room for, at the least."""

    @property
    def xargs(self) -> frozenset[str]:
        """Names of extra arguments that requests may carry."""
        return self.takes - {KV_TRANSFER}

    def command_line(self, replica: int, port: int) -> list[str]:
        """The words that start one server; raises ValueError when the settings have an open quote."""
        own = shlex.split(self.command.replace("{replica}", str(replica)))
        further = shlex.split(self.arguments.replace("{replica}", str(replica)))
        words = ["--model", str(self.folder), "--served-model-name", self.model]
        # Every request says all of its sampling, so the model's own proposals must not come on top.
        words += ["--generation-config", "vllm", "--enable-prompt-tokens-details"]
        # Requests carry grammars of llguidance, which only this compiler reads whole.
        words += ["--structured-outputs-config.backend", "guidance"]
        words += ["--scheduling-policy", self.scheduling, "--max-num-seqs", str(self.max_running)]
        words += ["--enable-lora", "--max-cpu-loras", str(self.max_adapters)]
        words += ["--max-lora-rank", str(next((rank for rank in RANKS if rank >= self.lora_rank), RANKS[-1]))]
        words += ["--dtype", self.dtype] if self.dtype != "auto" else []
        words += ["--kv-cache-memory-bytes", str(self.kv_memory)] if self.kv_memory else []
        words += ["--max-model-len", str(self.max_model_len)] if self.max_model_len else []
        return [*own, *words, "--host", "127.0.0.1", "--port", str(port), *further]


logger = logging.getLogger("heddle.inference.engine")

KEEPER = "heddle.inference.engine.vllm.server"
ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Adapters come and go while it runs, and it calls nobody. What heddle's own environment says goes first."""
RESTARTS = Restarts(first=1.0, longest=60.0, steady=300.0)


async def supervise(what: str, command: list[str], ended: Callable[[str | None], None]) -> None:
    """Start a server, wait, start again, with longer and longer pauses; cancelling ends the server.

    `ended` is called with the reason when the server died, and with None when it is started again.
    """

    async def run_once() -> str:
        try:
            process = ConnectedChild(what, KEEPER, command, logger, environment=ENVIRONMENT)
        except OSError as error:
            return f"{what} cannot be started: {error}"
        try:
            # The keeper sends nothing: what can be read is its end.
            process.connection.setblocking(False)
            await asyncio.get_running_loop().sock_recv(process.connection, 1)
        finally:
            process.connection.close()
            await asyncio.shield(asyncio.to_thread(process.end, 3 * GRACE_SECONDS))
        return process.how_it_ended()

    await keep_running(run_once, RESTARTS, logger, died=ended)


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

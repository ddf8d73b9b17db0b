"""What a training process does: one task after the other, for the server or once for a person."""

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from heddle.ipc.child import die_with_parent, log_to_parent
from heddle.trainer_process.connection import ServerConnection
from heddle.trainer_process.task import Trainer, crashed, perform, take_part
from heddle.trainer_process.watch import watch
from heddle.training import handover
from heddle.training.base import Failed
from heddle.training.queue.messages import Answer, Warm, encode

OOM_SCORE = "800"
"""When memory runs out, the kernel takes this process and not the server; its job goes on from a snapshot."""

Start = Callable[[], Trainer]
"""Imports the trainer, and joins the other ranks."""


def serve(arguments: list[str], start: Start) -> None:
    """Serve a server's socket, do the job of a folder, or watch a folder for jobs."""
    parser = argparse.ArgumentParser(prog="heddle.trainer_process", description=__doc__)
    parser.add_argument("socket", nargs="?", type=Path, help="the server's socket")
    parser.add_argument("--job", type=Path, help="a folder with task.json: do it, print its messages as JSON lines")
    parser.add_argument("--watch", type=Path, help="a folder in which servers offer jobs: DATA/handover")
    parser.add_argument("--jobs", type=int, default=0, help="end after so many jobs of --watch; 0: never")
    parser.add_argument("--beat", type=float, default=5.0, help="seconds between heartbeats")
    options = parser.parse_args(arguments)
    if sum(place is not None for place in (options.socket, options.job, options.watch)) != 1:
        parser.error("give one of a socket, --job FOLDER and --watch FOLDER")
    _offer_to_the_kernel()
    log_to_parent()
    if options.job is not None:
        sys.exit(_by_hand(options.job, start))
    if options.watch is not None:
        watch(options.watch, options.jobs, start())
        return
    die_with_parent()
    _for_server(options.socket, options.beat, start)


def _for_server(socket: Path, beat: float, start: Start) -> None:
    """Rank 0 connects before the trainer is imported, so that the server hears it at once."""
    server = ServerConnection(socket, beat) if os.environ.get("RANK", "0") == "0" else None
    try:
        _work(server, start())
    except Exception as error:
        if server is not None:
            server.say(crashed(error))
        raise


def _work(server: ServerConnection | None, trainer: Trainer) -> NoReturn:
    """One request after the other, until the server is gone."""
    while True:
        request = trainer.share(server.next_request() if server is not None else None)
        if isinstance(request, Warm):
            trainer.warm(request)
        elif server is None:
            take_part(request, trainer)
        else:
            perform(request, trainer, server.say, functools.partial(server.is_cancelled, request.job_id))


def _by_hand(folder: Path, start: Start) -> int:
    """The task of a folder; paths in it are relative to the folder. Returns 1 when the job failed."""
    task = handover.read(folder)
    Path(task.work).mkdir(parents=True, exist_ok=True)
    trainer = start()
    if trainer.rank:
        take_part(task, trainer)
        trainer.leave()
        return 0
    code = 0

    def say(message: Answer) -> None:
        nonlocal code
        code = 1 if isinstance(message, Failed) else code
        sys.stdout.buffer.write(encode(message))
        sys.stdout.buffer.flush()

    perform(task, trainer, say, lambda: False)
    trainer.leave()
    return code


def _offer_to_the_kernel() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")

"""The engine's process: `python -m heddle.inference.engine.local <socket>`, started by the client.

Requests are read between steps, without waiting while there is work. The process ends when the server closes the
socket or dies.
"""

import contextlib
import gc
import logging
import os
import socket
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from heddle.errors import HeddleError
from heddle.inference.engine.base import EngineFailed, EngineStats
from heddle.inference.engine.local.engine import EngineCore
from heddle.inference.engine.local.options import NAME, LocalOptions, read_info
from heddle.inference.engine.local.threads import ThreadPolicy, first_threads, usable_cores
from heddle.ipc.child import die_with_parent, log_to_parent
from heddle.ipc.rpc import BlockingConnection, Reply
from heddle.models.interfaces import ModelError
from heddle.models.load import available_bytes, load_model

logger = logging.getLogger("heddle.inference.engine")

UNKNOWN_MEMORY = 4 * 1024**3
SHARE_OF_MEMORY = {"cpu": 0.25}
"""For keys and values when nothing is set."""
SHARE_OF_DEVICE = 0.7
RECENT_STEPS = 64


class Runner:
    """Runs one engine core for one server."""

    def __init__(self, connection: BlockingConnection, options: LocalOptions) -> None:
        self._connection = connection
        self._policy = ThreadPolicy(first_threads(options.threads, options.dedicated, usable_cores()))
        torch.set_num_threads(self._policy.threads)
        began = time.perf_counter()
        info = read_info(NAME, options)
        eos = info.eos_token_ids
        model = load_model(options.folder, device=options.device, dtype=options.dtype)
        free, share = available_bytes(model.device), SHARE_OF_MEMORY.get(model.device.type, SHARE_OF_DEVICE)
        kv_memory = options.kv_memory or int((UNKNOWN_MEMORY if free is None else free) * share)
        self.core = core = EngineCore(model, options, eos, kv_memory)
        seconds = time.perf_counter() - began
        logger.info(
            "%s ready in %.2f s: %s, %s, %d threads, %d tokens of KV cache",
            *(options.folder.name, seconds, model.device, str(model.dtype).removeprefix("torch.")),
            *(self._policy.threads, core.scheduler.pool.total * core.cache.block_tokens),
        )
        self.ready = (replace(info, max_model_len=core.max_model_len, vocab_size=model.vocab_size), seconds)
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def serve(self) -> None:
        """Requests and steps, until the server is gone."""
        while True:
            for number, method, arguments in self._connection.receive(wait=not self.core.has_work):
                try:
                    if method == "generate":
                        self.core.add(number, *arguments)
                    elif method == "abort":
                        self.core.abort(number)
                    else:
                        self._connection.send(Reply(number, self._call(method, *arguments)))
                except Exception as error:
                    self._connection.send(Reply(number, error=self._failure(error)))
            if self.core.has_work:
                self._step()

    def _call(self, method: str, *arguments: Any) -> EngineStats | None:
        if method == "stats":
            stats = self.core.stats()
            stats.threads, stats.resident_bytes = self._policy.threads, resident_bytes()
            stats.step_seconds_mean = sum(self._recent) / len(self._recent) if self._recent else 0.0
            stats.step_seconds_best = min(self._recent, default=0.0)
            return stats
        if method == "load":
            self.core.adapters.load(*arguments)
        else:
            self.core.adapters.unload(*arguments)
        return None

    def _step(self) -> None:
        """One step; when it breaks, its requests fail and the engine goes on: on a GPU in a new process."""
        began = time.perf_counter()
        broken = False
        try:
            events = self.core.step()
        except Exception as error:
            logger.exception("a step failed")
            events = self.core.fail_all(EngineFailed(f"a step of the engine failed: {type(error).__name__}: {error}"))
            broken = self.core.model.device.type != "cpu"
        packed = [event.packed() for event in events if event.failure is None]
        if packed:
            self._connection.send(packed)
        for event in events:
            if event.failure is not None:
                self._connection.send(Reply(event.number, error=self._failure(event.failure)))
        if broken:
            sys.exit("ERROR the device may not work any more after a failed step")
        seconds = time.perf_counter() - began
        self.core.totals.steps += 1
        self.core.totals.step_seconds += seconds
        self._recent.append(seconds)
        prompts, generating = self.core.last_prompts, self.core.last_decodes
        if prompts:
            self.core.scheduler.budget.observe(prompts, seconds)
        prompt_tokens, longest = sum(count for _, count in prompts), max((first for first, _ in prompts), default=0)
        shape = (prompt_tokens.bit_length(), longest.bit_length(), generating.bit_length())
        if self._policy.observe(shape, seconds):
            logger.info("now using %d threads", self._policy.threads)
            torch.set_num_threads(self._policy.threads)

    def _failure(self, error: Exception) -> Exception:
        """An error that the server knows; others are logged here with their trace."""
        if isinstance(error, HeddleError):
            return error
        logger.error("a request failed", exc_info=error)
        return EngineFailed(f"{type(error).__name__}: {error}")


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Read the options, load, serve."""
    die_with_parent()
    log_to_parent()
    connection = BlockingConnection(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(EOFError, ConnectionError):
        ((number, _, (options,)),) = connection.receive()
        try:
            runner = Runner(connection, options)
        except (ModelError, EngineFailed, OSError, ValueError, RuntimeError, MemoryError) as error:
            text = f"{type(error).__name__}: {error}" if not str(error) else str(error)
            connection.send(Reply(number, error=EngineFailed(text)))
            return
        connection.send(Reply(number, runner.ready))
        gc.collect()
        gc.freeze()
        runner.serve()


if __name__ == "__main__":
    main()

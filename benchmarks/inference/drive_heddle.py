"""Driver of heddle's embedded engine: token ids in, events out, its worker process included, no HTTP."""

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver

from heddle.inference.engine.base import AdapterRef, Sampling, TokenRequest
from heddle.inference.engine.local.client import LocalEngine
from heddle.inference.engine.local.options import LocalOptions


def greedy(tokens: int) -> Sampling:
    """Exactly so many tokens."""
    return Sampling(max_tokens=tokens, seed=1, temperature=0.0, ignore_eos=True)


class Embedded:
    """One engine with the event loop that it lives in."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.numbers = itertools.count()

    def load(self, folder: str, threads: int, dtype: str, **options: Any) -> dict[str, Any]:
        """Start the worker and load; all threads that are asked for, as on a machine of its own."""
        self.engine = LocalEngine(LocalOptions(Path(folder), threads=threads, dtype=dtype, **options))
        self.loop.run_until_complete(self.engine.start())
        stats = self.loop.run_until_complete(self.engine.stats())
        return {"version": self.engine.info().name, "dtype": stats.dtype, "threads": stats.threads}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """All prompts at once, greedily, end of sequence ignored."""
        timeline = driver.Timeline(len(prompts), tokens, driver.family(os.getpid()))
        self.loop.run_until_complete(self.all_streams(prompts, [tokens] * len(prompts), timeline))
        return timeline.result()

    async def all_streams(
        self,
        prompts: list[list[int]],
        lengths: list[int],
        timeline: driver.Timeline,
        clients: int | None = None,
        salt: str | None = None,
    ) -> None:
        """Every prompt as a stream of so many tokens, `clients` at a time."""
        requests = [
            TokenRequest(f"bench-{next(self.numbers)}", tuple(prompt), greedy(length), cache_salt=salt)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        waiting = iter(enumerate(requests))

        async def client() -> None:
            for place, request in waiting:
                await self.one_stream(place, request, timeline)

        await asyncio.gather(*(client() for _ in range(clients or len(prompts))))

    async def one_stream(self, place: int, request: TokenRequest, timeline: driver.Timeline) -> None:
        async for event in self.engine.generate(request):
            if event.token_ids:
                timeline.token(place, len(event.token_ids))

    def closed_loop(self, prompts: list[list[int]], lengths: list[int], clients: int, salt: str) -> dict[str, Any]:
        """All prompts, `clients` at a time: tokens, seconds, and CPU seconds of this process and of the worker."""
        own, worker = [os.getpid()], [pid for pid in driver.family(os.getpid()) if pid != os.getpid()]
        timeline = driver.Timeline(len(prompts), max(lengths), [])
        before = driver.cpu_seconds(own), driver.cpu_seconds(worker)
        self.loop.run_until_complete(self.all_streams(prompts, lengths, timeline, clients, salt))
        wall = timeline.result()["wall"]
        cpu, worker_cpu = driver.cpu_seconds(own) - before[0], driver.cpu_seconds(worker) - before[1]
        return {"wall": wall, "tokens": sum(timeline.counts), "cpu": cpu, "server_cpu": 0.0, "worker_cpu": worker_cpu}

    def beside(self, chats: list[list[int]], tokens: int, long: list[int], lead: int) -> dict[str, Any]:
        """Chats that stream, and a long prompt (none when empty) that arrives when each has `lead` tokens.

        The moments of each chat's tokens, of the long prompt's arrival and of its first token.
        """
        timeline = driver.Timeline(len(chats) + 1, tokens, [])
        self.loop.run_until_complete(self.all_beside(chats, tokens, long, lead, timeline))
        return {"events": timeline.events, "arrival": self.arrival, "first": timeline.first[-1]}

    async def all_beside(
        self, chats: list[list[int]], tokens: int, long: list[int], lead: int, timeline: driver.Timeline
    ) -> None:
        self.arrival = 0.0
        running = asyncio.ensure_future(self.all_streams(chats, [tokens] * len(chats), timeline))
        while min(timeline.counts[:-1]) < lead:
            await asyncio.sleep(0.001)
        if long:
            self.arrival = time.perf_counter() - timeline.began
            request = TokenRequest(f"bench-{next(self.numbers)}", tuple(long), greedy(1))
            await self.one_stream(len(chats), request, timeline)
        await running

    def adapter(self, identity: str, folder: str, prompt: list[int], tokens: int) -> dict[str, Any]:
        """One request for an adapter that the engine does not know yet: its timeline, from before it is loaded."""
        timeline = driver.Timeline(1, tokens, driver.family(os.getpid()))
        reference = AdapterRef(identity, Path(folder))
        request = TokenRequest(f"bench-{next(self.numbers)}", tuple(prompt), greedy(tokens), adapter=reference)
        self.loop.run_until_complete(self.one_stream(0, request, timeline))
        return timeline.result()

    def stats(self) -> dict[str, Any]:
        """The engine's own figures."""
        stats = self.loop.run_until_complete(self.engine.stats())
        names = ("threads", "kv_blocks_used", "kv_blocks_cached", "kv_blocks_total", "prefix_hit_tokens", "preemptions")
        names += ("steps", "step_seconds_mean", "step_seconds_best", "load_seconds", "dtype", "generated_tokens")
        return {name: getattr(stats, name) for name in names}

    def stop(self) -> None:
        """End the worker."""
        self.loop.run_until_complete(self.engine.stop())


if __name__ == "__main__":
    embedded = Embedded()
    handlers = {"load": embedded.load, "generate": embedded.generate, "adapter": embedded.adapter}
    handlers["closed_loop"] = embedded.closed_loop
    handlers["beside"] = embedded.beside
    driver.serve(handlers | {"stats": embedded.stats, "stop": embedded.stop})

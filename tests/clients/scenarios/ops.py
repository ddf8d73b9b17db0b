"""Ops of every kind: plain, keyword, async, generators, failing, nested, in threads, with attributes and a run."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor as PlainPool

import weave
from common import plain, report, start

client = start()


def collect(state: list | None, item: object) -> list:
    """Accumulator of the generator ops."""
    return [*(state or []), item]


@weave.op
def double(x: int) -> int:
    """Twice x."""
    return x * 2


@weave.op
def outer(x: int, *, scale: int = 1, **rest: object) -> dict:
    """Two children and what they gave."""
    return {"first": double(x) * scale, "second": double(x + 1) * scale, "rest": rest}


@weave.op
async def waits(x: int) -> int:
    """An async op with an async child."""
    await asyncio.sleep(0)
    return x + 1


@weave.op
async def gathers(n: int) -> list[int]:
    """Children that run at once."""
    return list(await asyncio.gather(*(waits(i) for i in range(n))))


@weave.op(accumulator=collect)
def counts(n: int) -> Iterator[int]:
    """A generator op with children."""
    for i in range(n):
        yield double(i)


@weave.op(accumulator=collect)
async def counts_async(n: int) -> AsyncIterator[int]:
    """An async generator op."""
    for i in range(n):
        await asyncio.sleep(0)
        yield i


@weave.op
def fails(reason: str) -> None:
    """Always an error."""
    raise ValueError(reason)


@weave.op
def survives(reason: str) -> str:
    """Succeeds with a failing child."""
    try:
        fails(reason)
    except ValueError as error:
        return f"caught {error}"
    return "unreachable"


@weave.op
def fans_out(n: int) -> list[int]:
    """Children in weave's own thread pool keep their parent."""
    with weave.ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(double, range(n)))


@weave.op(name="renamed.op", call_display_name="Shown name")
def original_name(text: str) -> str:
    """An op with a name and a display name of its own."""
    return text.upper()


class Counter:
    """Methods can be ops."""

    def __init__(self, start: int) -> None:
        self.start = start

    @weave.op
    def above(self, n: int) -> int:
        """A method op."""
        return self.start + n


calls: dict[str, str] = {}
calls["double"] = double.call(21)[1].id
calls["outer"] = outer.call(1, scale=10, note="ünïcode ✓", deep={"a": [1, None]})[1].id
calls["gathers"] = asyncio.run(gathers.call(3))[1].id
generated = list(counts(4))


async def drain() -> list[int]:
    """All items of the async generator."""
    return [item async for item in counts_async(3)]


generated_async = asyncio.run(drain())
calls["fails"] = fails.call("no luck", __should_raise=False)[1].id
calls["survives"] = survives.call("inner trouble")[1].id
calls["fans_out"] = fans_out.call(6)[1].id
calls["renamed"] = original_name.call("abc")[1].id
with weave.attributes({"env": "production", "nested": {"level": 3}}):
    calls["attributes"] = double.call(5)[1].id
client.set_wandb_run_context(run_id="run-7", step=11)
calls["run"] = double.call(6)[1].id
client.clear_wandb_run_context()
method_output = Counter(100).above(5)

# Plain threads start traces of their own.
plain_threads = [threading.Thread(target=double, args=(1000 + i,)) for i in range(8)]
for thread in plain_threads:
    thread.start()
for thread in plain_threads:
    thread.join()
with PlainPool(4) as pool:
    pooled = list(pool.map(double, range(2000, 2020)))

logged = weave.log_call(
    "logged.op", inputs={"question": "why"}, output={"answer": 42}, attributes={"env": "batch"}, use_stack=False
)
client.flush()

outer_seen = client.get_call(calls["outer"])
failed_seen = client.get_call(calls["fails"])
report(
    calls=calls,
    generated=generated,
    generated_async=generated_async,
    method_output=method_output,
    pooled=pooled,
    logged=logged.id,
    outer={
        "inputs": plain(outer_seen.inputs),
        "output": plain(outer_seen.output),
        "children": [[child.func_name, plain(child.inputs), child.output] for child in outer_seen.children()],
        "status": outer_seen.summary["weave"]["status"],
        "latency": outer_seen.summary["weave"]["latency_ms"],
    },
    failed={"exception": failed_seen.exception, "status": failed_seen.summary["weave"]["status"]},
    count=len(client.get_calls()),
    roots=len(client.get_calls(filter={"trace_roots_only": True})),
)

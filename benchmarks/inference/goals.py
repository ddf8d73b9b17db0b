"""The goals of the engine, as ratios to the best peer or to the limit of the same run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks import support

if TYPE_CHECKING:
    from benchmarks.engine import Figures

Goal = tuple[str, float | None, float, bool]
"""What, figure, goal, whether more is better."""


def print_goals(
    size: str, results: Mapping[str, "Figures"], decode: Mapping[str, float], prefill: Mapping[str, float]
) -> None:
    """Each goal with its figure for each of heddle's types of numbers.

    The limits for each: tokens per second at batch 1, and seconds of a prompt of 512 tokens.
    """
    peers = {name: figures for name, figures in results.items() if not name.startswith(("heddle", "forward"))}
    rows: list[list[object]] = []
    for name, figures in results.items():
        if not name.startswith("heddle"):
            continue
        equals = peers if "int8" in name else {key: peer for key, peer in peers.items() if "int8" not in key}
        for what, figure, goal, more in goals(size, figures, equals, decode[name], prefill[name]):
            if figure is None:
                continue
            met = figure >= goal if more else figure <= goal
            rows.append([name, what, figure, f"{'≥' if more else '≤'} {goal:g}", "yes" if met else "no"])
    support.print_table(f"{size}: goals", ["engine", "figure", "measured", "goal", "met"], rows)


def goals(size: str, own: "Figures", peers: Mapping[str, "Figures"], decode: float, prefill: float) -> list[Goal]:
    """All that apply to this size."""
    found: list[Goal] = []
    at_limit = {"350m": 0.75, "60m": 0.65}
    if size in at_limit:
        found.append(("batch 1, best steps, of the bandwidth limit", own.best(1) / decode, at_limit[size], True))
    for batch, goal in ((1, 1.0), (8, 1.2), (32, 1.2)) if size != "3m" else ((1, 0.8), (8, 0.8), (32, 0.8)):
        best, name = max(((peer.rate(batch), peer_name) for peer_name, peer in peers.items()), default=(0.0, ""))
        found.append((f"batch {batch} of the best peer ({name})", own.rate(batch) / best if best else None, goal, True))
        if own.clock == "cpu":
            continue
        best, name = max(((peer.cpu_rate(batch), peer_name) for peer_name, peer in peers.items()), default=(0.0, ""))
        ratio = own.cpu_rate(batch) / best if best else None
        found.append((f"the same per CPU-second ({name})", ratio, goal, True))
    if "vllm" in peers:
        for batch in (1, 8, 32):
            ratio = own.cpu_rate(batch) / peers["vllm"].cpu_rate(batch)
            found.append((f"batch {batch}, tokens per CPU-second of vLLM's", ratio, 1.3, True))
    first = own.first(own.long)
    best, name = min(((peer.first(peer.long), peer_name) for peer_name, peer in peers.items()), default=(0.0, ""))
    found.append(
        (f"first token of 512: best peer's time ({name}) over ours", best / first if best else None, 1.0, True)
    )
    found.append(("prefill of the multiplication limit", prefill / first, 0.5, True))
    found.append(("gain of a known prefix (496 of 512)", first / own.first(own.again), 12, True))
    if size == "60m":
        start = own.start_cpu if own.clock == "cpu" else own.start
        found.append(("start to first token, s", start, 4, False))
        found.append(("memory after batch 32, MB", own.memory, 500, False))
    return found

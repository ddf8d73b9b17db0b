"""Figures of the servers, from their /metrics."""

import re
from collections.abc import Iterable, Mapping

from heddle.inference.engine.base import EngineStats

_LINE = re.compile(r"^(vllm:\w+|process_resident_memory_bytes)(?:\{(.*)\})? ([-+.\deE]+)$", re.MULTILINE)
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')

Figures = Mapping[str, float]


def read_figures(text: str) -> dict[str, float]:
    """The values of a server by name, labels added up; `blocks` is the size of its cache."""
    found: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        if name == "vllm:cache_config_info":
            blocks = _BLOCKS.search(labels)
            found["blocks"] = found.get("blocks", 0.0) + (float(blocks[1]) if blocks else 0.0)
        elif not name.endswith(("_bucket", "_created")):
            found[name.removeprefix("vllm:")] = found.get(name.removeprefix("vllm:"), 0.0) + float(value)
    return found


def add_figures(stats: EngineStats, servers: Iterable[Figures]) -> None:
    """Add what the servers say to the figures of the engine."""
    for found in servers:
        value = found.get
        blocks = value("blocks", 0.0)
        stats.running += int(value("num_requests_running", 0.0))
        stats.waiting += int(value("num_requests_waiting", 0.0))
        stats.kv_blocks_total += int(blocks)
        stats.kv_blocks_used += round(value("kv_cache_usage_perc", 0.0) * blocks)
        stats.prefix_query_tokens += int(value("prefix_cache_queries_total", 0.0))
        stats.prefix_hit_tokens += int(value("prefix_cache_hits_total", 0.0))
        stats.preemptions += int(value("num_preemptions_total", 0.0))
        stats.prompt_tokens += int(value("prompt_tokens_total", 0.0))
        stats.generated_tokens += int(value("generation_tokens_total", 0.0))
        stats.steps += int(value("iteration_tokens_total_count", 0.0))
        stats.resident_bytes += int(value("process_resident_memory_bytes", 0.0))

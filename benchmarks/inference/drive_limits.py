"""What the machine can do at best: reading weights from memory, and multiplying matrices. Driver, one process.

python benchmarks/inference/drive_limits.py --threads 1    # a table, with ways of computing a linear layer
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver
import torch
from torch.nn import functional

GIB = 2**30
ROWS = 512


def best_seconds(work: Callable[[], object], seconds: float = 1.0) -> float:
    """The shortest of many calls within the given time, after one that does not count.

    One thread on the processor is timed by its own CPU time, which a neighbour on the same core does not lengthen.
    """
    alone = torch.get_num_threads() == 1 and torch.get_default_device().type == "cpu"
    clock = time.thread_time if alone else time.perf_counter

    def finished() -> None:
        work()
        if torch.get_default_device().type == "cuda":
            torch.cuda.synchronize()

    finished()
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = clock()
        finished()
        best = min(best, clock() - began)
    return best


def read_rate(size: int) -> float:
    """Bytes per second of summing an array of `size` bytes; small arrays stay in the processor's cache."""
    array = torch.ones(max(1, size // 4), dtype=torch.float32)
    return array.numel() * 4 / best_seconds(array.sum)


def multiply_rate(dtype: torch.dtype, inputs: int = 1024, outputs: int = 3072) -> float:
    """Floating-point operations per second of 512 rows times a weight matrix, the faster of two ways."""
    rows = torch.randn(ROWS, inputs).to(dtype)
    seconds = min(best_seconds(lambda way=way: way(rows)) for way in linear_ways(inputs, outputs, dtype).values())
    return 2 * ROWS * inputs * outputs / seconds


def linear_ways(inputs: int, outputs: int, dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The plain linear layer, and oneDNN's with weights in its own order where torch has it."""
    weight = torch.randn(outputs, inputs).to(dtype)
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"plain": lambda x: functional.linear(x, weight)}
    try:
        if weight.device.type != "cpu":
            return ways
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        torch.ops.mkldnn._linear_pointwise(weight[:1, :inputs], packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return ways
    ways["prepacked"] = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return ways


class Limits:
    """Answers of the driver."""

    def load(self, threads: int, device: str = "cpu", **_: Any) -> dict[str, Any]:
        """Set threads and device."""
        torch.set_num_threads(threads)
        torch.set_default_device(device)
        return {"version": torch.__version__, "dtype": ""}

    def measure(self, weight_bytes: int) -> dict[str, float]:
        """Bandwidth of memory and of an array as big as the weights (bytes/s), matmul rates (operations/s)."""
        with torch.inference_mode():
            return {
                "memory": read_rate(GIB),
                "weights": read_rate(weight_bytes),
                "float32": multiply_rate(torch.float32),
                "bfloat16": multiply_rate(torch.bfloat16),
            }


def main() -> None:
    """The table, without a parent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    print(f"{threads} threads: memory {read_rate(GIB) / 1e9:.1f} GB/s")
    for dtype in (torch.float32, torch.bfloat16):
        print(f"  {dtype}: {multiply_rate(dtype) / 1e12:.2f} TFLOP/s at {ROWS} rows")
        # Many matrices in turn, so that none is still in the cache when it comes again.
        layers = [linear_ways(1024, 3072, dtype) for _ in range(48)]
        for count in (1, 8, 32, 128):
            rows = torch.randn(count, 1024).to(dtype)
            for way in layers[0]:
                seconds = best_seconds(lambda: [layer[way](rows) for layer in layers]) / len(layers)  # noqa: B023
                rate = 1024 * 3072 * dtype.itemsize / seconds
                print(f"    {count:4} rows, {way:9}: {rate / 1e9:5.1f} GB/s of weights, {seconds * 1e6:6.0f} us")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with torch.inference_mode():
            main()
    else:
        limits = Limits()
        driver.serve({"load": limits.load, "measure": limits.measure})

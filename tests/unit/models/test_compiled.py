"""Compiled kernels: right in every precision, and the same bits for a sequence whatever else is computed beside it."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.models import load
from heddle.models.interfaces import ModelError
from heddle.models.load import load_model
from heddle.models.native import NativeModel
from tests.support.forward import Runner, reference, reference_logprobs, tokens_of
from tests.support.models import make_adapter, make_model

compiled = pytest.importorskip("heddle.models.compiled")
DTYPES = [
    "float32",
    "bfloat16",
    pytest.param("int8", marks=pytest.mark.skipif(not compiled.HAS_INT8, reason="no VNNI")),
]
PRECISION = {"float32": 1e-5, "bfloat16": 5e-3, "int8": 3e-2}
"""Mean error of a product against its mean."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("compiled") / "model", model_type="qwen3", dtype=torch.bfloat16)


def compiled_model(folder: Path, dtype: str) -> Any:
    model = load_model(folder, device="cpu", dtype=dtype)
    assert isinstance(model, compiled.CompiledModel)
    return model


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(200, 72), (64, 64), (33, 50)])
def test_products_are_right_and_their_bits_do_not_depend_on_other_rows(
    outputs: int, inputs: int, dtype: str, stored: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, inputs, generator=generator).to(stored)
    bias, rows = torch.randn(outputs, generator=generator), torch.randn(23, inputs, generator=generator)
    linear = compiled.CompiledLinear(compiled.kernels_for(False), load.DTYPES[dtype], weight, bias)
    found = linear.multiply(rows.numpy())
    exact = rows.double() @ weight.double().t() + bias
    assert float((torch.from_numpy(found) - exact).abs().mean() / exact.abs().mean()) < PRECISION[dtype]
    for start, stop in ((0, 1), (3, 5), (7, 20)):
        assert (linear(rows[start:stop]).numpy() == found[start:stop]).all()
    more = found.copy()
    linear.add(rows.numpy(), more)
    assert (more == found + found).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_stays_in_its_row(dtype: str) -> None:
    weight, rows = torch.randn(32, 16), torch.randn(3, 16)
    rows[1, 3] = float("nan")
    found = compiled.CompiledLinear(compiled.kernels_for(False), load.DTYPES[dtype], weight)(rows)
    assert found.isnan().any(1).tolist() == [False, True, False]
    assert found[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_alone_in_a_batch_in_chunks_and_from_the_prefix_cache(
    dtype: str, folder: Path, tmp_path: Path
) -> None:
    model = compiled_model(folder, dtype)
    model.load_adapter("other@1", make_adapter(tmp_path / "adapter", folder, rank=4, seed=1))
    ids = tokens_of(150, seed=1)
    alone = Runner(model)
    lane = alone.open(150)
    expected = alone.prefill(lane, ids)
    decoded = Runner(model)
    start = decoded.open()
    found = torch.cat([decoded.prefill(start, ids[:60]), decoded.decode(start, ids, first=60)])
    assert torch.equal(found, expected)
    crowded = Runner(model)
    others = [crowded.open(40 + place) for place in range(20)]
    crowded.step([(other, tokens_of(30, seed=50 + place), 0, None) for place, other in enumerate(others)])
    own, rows = crowded.open(), []
    for first, last in ((0, 7), (7, 16), (16, 100), (100, 101), (101, 150)):
        decodes = [(other, 5, 30 + len(rows), "other@1" if place % 2 else None) for place, other in enumerate(others)]
        rows.append(crowded.step([(own, ids[first:last], first, None)], decodes)[0])
        crowded.cache.close_lane(others.pop(0))
    assert torch.equal(torch.cat(rows), expected)
    blocks = [alone.cache.save_block(lane, index) for index in range(8)]
    restored = crowded.open(150)
    crowded.cache.restore_blocks(restored, blocks)
    assert torch.equal(crowded.prefill(restored, ids, first=128), expected[128:])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"head_dim": 80, "num_key_value_heads": 1},
        {"head_dim": 128},
        {"use_sliding_window": True, "sliding_window": 20},
    ],
    ids=["plain", "80", "128", "window"],
)
def test_every_precision_is_near_transformers(config: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    if config.get("use_sliding_window"):
        config = config | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    folder = make_model(tmp_path, model_type="qwen3", config=config, dtype=torch.bfloat16)
    ids = tokens_of(110, seed=3)
    runner = Runner(compiled_model(folder, dtype))
    lane = runner.open()
    found = torch.cat([runner.prefill(lane, ids[:90], chunks=[41]), runner.decode(lane, ids, first=90)])
    exact = reference_logprobs(reference(folder), ids)
    assert float((found - exact).abs().mean()) < {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.12}[dtype]


def test_without_numba_torch_computes_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "heddle.models.compiled", None)
    with caplog.at_level(logging.WARNING, "heddle.models"):
        model = load_model(folder, device="cpu")
    assert type(model) is NativeModel
    assert "falling back to torch" in caplog.text
    with pytest.raises(ModelError, match="int8 requires the package numba"):
        load_model(folder, device="cpu", dtype="int8")


def test_kernels_that_break_leave_the_model_to_torch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(compiled.kernels_for(torch.get_num_threads() > 1), "attend", broken)
    assert type(load_model(folder, device="cpu")) is NativeModel
    assert "no space left on device" in caplog.text


NORMALISE = """
import sys
import numpy as np
from heddle.models.kernels import Kernels
rows = np.random.default_rng(5).standard_normal((7, 200)).astype(np.float32)
scale, out = rows[3].copy(), np.empty_like(rows)
Kernels(sys.argv[1] == "parallel").normalise_rows(rows, scale, np.float32(1e-6), out)
sys.stdout.buffer.write(out.tobytes())
"""


def test_a_process_that_compiles_has_the_bits_of_one_that_reads_kept_code(tmp_path: Path) -> None:
    """With `fastmath` they differed, and so did the kernels for one thread and for two."""

    def run(kind: str) -> bytes:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", NORMALISE, kind], env=environment, check=True, stdout=subprocess.PIPE
        ).stdout

    first = run("single")
    assert len(first) == 4 * 7 * 200
    assert len({first, run("single"), run("parallel")}) == 1

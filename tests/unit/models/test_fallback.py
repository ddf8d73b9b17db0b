"""Architectures without an own forward pass run through `transformers` with the same interface and results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.models.fallback import FallbackModel
from heddle.models.interfaces import ModelError
from heddle.models.load import load_model
from tests.support.forward import Runner, reference, reference_logprobs, tokens_of
from tests.support.models import make_unknown_model


@pytest.fixture(scope="module", params=["gpt2", "gpt_neox"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_unknown_model(tmp_path_factory.mktemp("fallback") / request.param, model_type=request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> FallbackModel:
    loaded = load_model(folder)
    assert isinstance(loaded, FallbackModel)
    return loaded


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return reference(folder)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-4


def test_prompt_chunks_decode_and_mixed_batches(model: FallbackModel, oracle: Any) -> None:
    ids, other = tokens_of(90), tokens_of(33, seed=1)
    runner = Runner(model)
    lane, second = runner.open(), runner.open()
    start = runner.prefill(lane, ids[:50], chunks=[20])
    step = runner.step([(second, other, 0, None)], [(lane, int(ids[50]), 50, None)])
    close(step[0], reference_logprobs(oracle, other))
    found = torch.cat([start, step[1], runner.decode(lane, ids, first=51)])
    close(found, reference_logprobs(oracle, ids))


def test_blocks(model: FallbackModel, oracle: Any) -> None:
    ids = tokens_of(60, seed=2)
    runner = Runner(model)
    assert runner.cache.saves_blocks
    assert runner.cache.block_bytes == 2 * 3 * 64 * 4 * 16
    assert runner.cache.blocks_for(17) == 2
    lane, other = runner.open(60), runner.open(60)
    runner.prefill(lane, ids)
    blocks = [runner.cache.save_block(lane, index) for index in range(3)]
    runner.cache.close_lane(lane)
    runner.cache.restore_blocks(other, blocks)
    close(runner.prefill(other, ids, first=48), reference_logprobs(oracle, ids)[48:])
    runner.cache.restore_blocks(other, blocks)
    close(runner.prefill(other, ids, first=47), reference_logprobs(oracle, ids)[47:])


def test_no_rows_wanted(model: FallbackModel) -> None:
    from heddle.models.interfaces import Batch, Span

    cache = model.new_cache()
    ids = tokens_of(8)
    assert model.forward(Batch(ids, [Span(cache.open_lane(8), 0, 8)], [], []), cache).shape == (0, 512)


def test_adapters(folder: Path, model: FallbackModel, oracle: Any, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    target = "c_attn" if model.model.config.model_type == "gpt2" else "query_key_value"
    trained = get_peft_model(reference(folder), LoraConfig(r=4, lora_alpha=8, target_modules=[target]))
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.3)
    trained.save_pretrained(tmp_path)
    ids = tokens_of(25, seed=3)
    expected = reference_logprobs(trained.eval(), ids)
    base = reference_logprobs(oracle, ids)
    runner = Runner(model)
    model.load_adapter("team/x@1", tmp_path)
    results = runner.step([(runner.open(25), ids, 0, "team/x@1"), (runner.open(25), ids, 0, None)])
    close(results[0], expected)
    close(results[1], base)
    assert float((expected - base).abs().max()) > 0.01
    model.unload_adapter("team/x@1")
    close(runner.prefill(runner.open(25), ids), base)
    model.load_adapter("team/x@1", tmp_path)
    close(runner.prefill(runner.open(25), ids, adapter="team/x@1"), expected)
    model.unload_adapter("team/x@1")
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"peft_type": "LOHA"}))
    with pytest.raises(ModelError, match="LOHA"):
        model.load_adapter("team/x@2", tmp_path)


def test_an_architecture_that_nobody_knows_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "unheard_of"}))
    with pytest.raises(ModelError, match="unheard_of"):
        load_model(tmp_path)


def test_an_architecture_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="MambaForCausalLM has no key-value cache"):
        load_model(make_unknown_model(tmp_path, model_type="mamba"))


def test_missing_tensors_are_refused_not_invented(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if "layers.1." in name or "h.1." in name)
    save_file(
        {n: t for n, t in weights.items() if n != lost}, tmp_path / "model.safetensors", metadata={"format": "pt"}
    )
    with pytest.raises(ModelError, match="tensors are missing"):
        load_model(tmp_path)

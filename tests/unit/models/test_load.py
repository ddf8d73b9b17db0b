"""Folders that load, and what is said about those that do not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heddle.models import load
from heddle.models.folder import Weights
from heddle.models.interfaces import ModelError
from heddle.models.load import choose_dtype, load_model, resident_weights_bytes
from heddle.models.native import NativeModel
from tests.support.forward import Runner, tokens_of
from tests.support.models import make_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path)


def rewritten(folder: Path, **changes: Any) -> Path:
    """Change keys of `config.json`."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_facts_of_a_loaded_model(folder: Path) -> None:
    model = load_model(folder)
    assert isinstance(model, NativeModel)
    assert (model.vocab_size, model.max_positions, model.dtype) == (512, 4096, torch.float32)
    assert model.device == torch.device("cpu")
    assert load_model(folder, dtype="bfloat16").dtype == torch.bfloat16
    assert model.new_cache().block_bytes == 3 * 2 * 2 * 16 * 4 * 16


def test_small_models_are_float32_and_large_ones_bfloat16() -> None:
    assert choose_dtype("auto", 99_999_999) == torch.float32
    assert choose_dtype("auto", 100_000_000) == torch.bfloat16
    with pytest.raises(ModelError, match="int4"):
        choose_dtype("int4", 1)


def test_shards_give_the_same_model(folder: Path, tmp_path: Path) -> None:
    parts = make_model(tmp_path / "parts", shards=3)
    assert not (parts / "model.safetensors").exists()
    ids = tokens_of(20)
    results = []
    for place in (folder, parts):
        runner = Runner(load_model(place))
        results.append(runner.prefill(runner.open(), ids))
    assert torch.equal(*results)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    parts = make_model(tmp_path, shards=2)
    (parts / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        load_model(parts)


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    parts = make_model(tmp_path / "model", shards=2)
    outside = tmp_path / "outside.safetensors"
    (parts / "model-00002-of-00002.safetensors").rename(outside)
    index = parts / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002-of-00002.safetensors", "../outside.safetensors"))
    with pytest.raises(ModelError, match=r"outside\.safetensors"):
        load_model(parts)


def test_missing_and_broken_files_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read"):
        load_model(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"model\.safetensors .*is missing; found pytorch_model\.bin"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load_model(folder)
    with pytest.raises(ModelError, match="no such folder"):
        load_model(folder / "nothing")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": 128}, r"model\.embed_tokens\.weight has shape \[512, 64\]"),
        ({"num_hidden_layers": 4}, r"model\.layers\.3\.\S+ is missing"),
        ({"tie_word_embeddings": False}, r"lm_head\.weight is missing"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": None}, "vocab_size"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_parameters": 5}, "wrong type"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "two"}}, "factor"),
        ({"rms_norm_eps": "small"}, "wrong type"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], text: str, folder: Path) -> None:
    with pytest.raises(ModelError, match=text):
        load_model(rewritten(folder, **changes))


def test_weights_in_an_integer_type_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.ones(64, dtype=torch.int8)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as torch\.int8"):
        load_model(folder)


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="'quantum'"):
        load_model(folder, device="quantum")
    with pytest.raises(ModelError, match="'meta'"):
        load_model(folder, device="meta")
    with pytest.raises(ModelError, match=f"sees {torch.cuda.device_count()} CUDA devices"):
        load_model(folder, device="cuda:99")


def test_a_model_that_cannot_fit_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "available_bytes", lambda device: 100 * 2**20)
    with pytest.raises(ModelError, match=r"needs about 257 MiB on cpu, and 100 MiB are available"):
        load_model(folder)


def test_bytes_of_weights_are_those_of_the_header_and_the_head(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    with Weights(folder) as weights:
        stored = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
        assert weights.parameters() == stored
        assert resident_weights_bytes(weights, config, torch.bfloat16) == 2 * (stored + 512 * 64)
        assert resident_weights_bytes(weights, config | {"tie_word_embeddings": False}, torch.float32) == 4 * stored


def test_memory_of_this_machine_is_known() -> None:
    free = load.available_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50

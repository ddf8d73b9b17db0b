"""Step 0: PEFT reads it, it changes nothing, it is drawn as PEFT draws, and it appears whole or not at all."""

import json
import math
import uuid
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from heddle.errors import InvalidRequest, StorageFull, Unavailable
from heddle.models.load import load_model
from heddle.training import files, initial_adapter
from tests.support.models import make_model, make_unknown_model

SEED = "0f0e0d0c-0b0a-4908-8706-050403020100"


def made(folder: Path, model: Path, seed: str = SEED, rank: int = 4) -> Path:
    """A fresh adapter for a model folder."""
    shape = initial_adapter.base_shape(model, json.loads((model / "config.json").read_text()))
    lora = initial_adapter.lora_of(shape, "base", rank, 16.0)
    initial_adapter.make_adapter(folder, shape, "base", lora, seed)
    return folder


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_the_engine_loads_it(model_type: str, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", model_type=model_type)
    target = made(tmp_path / "a" / "0000", model)
    engine = load_model(model)
    engine.load_adapter("fresh", target)
    tensors = load_file(target / files.ADAPTER_FILE)
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    assert len(tensors) == 2 * 7 * layers
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox"])
def test_peft_loads_it_onto_other_architectures_and_nothing_changes(model_type: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    make_unknown_model(tmp_path / "model", model_type)
    target = made(tmp_path / "0000", tmp_path / "model")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[3, 5, 7, 11]])
    with torch.no_grad():
        before = base(ids).logits
        adapted = peft.PeftModel.from_pretrained(base, target)
        assert torch.equal(adapted(ids).logits, before)
    trained = {name for name, _ in adapted.named_parameters() if "lora_" in name}
    written = load_file(target / files.ADAPTER_FILE)
    assert len(trained) == len(written) and len(written) >= 6


@pytest.mark.parametrize(
    ("names", "projections"),
    [
        ("self_attn.qkv_proj self_attn.o_proj mlp.gate_up_proj mlp.down_proj", 4),
        ("self_attn.q_proj self_attn.out_proj fc1 fc2 self_attn_layer_norm", 4),
        ("self_attn.q_proj mlp.gate mlp.experts.3.up_proj experts.w1 block_sparse_moe.experts.0.w1", 1),
        ("attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj mlp.router", 4),
    ],
)
def test_all_attention_and_mlp_projections_are_adapted(names: str, projections: int, tmp_path: Path) -> None:
    """Also in models that call them otherwise, or some of them."""
    tensors = {f"model.layers.{layer}.{name}.weight": torch.zeros(6, 4) for layer in (0, 11) for name in names.split()}
    others = {"model.embed_tokens.weight": torch.zeros(6, 4), "model.layers.0.mixer.A_log": torch.zeros(6, 4)}
    save_file(tensors | others, tmp_path / "model.safetensors")
    shape = initial_adapter.base_shape(tmp_path, {})
    expected = names.split()[:projections]
    assert set(shape.projections) == {f"model.layers.{layer}.{name}" for layer in (0, 11) for name in expected}
    assert set(shape.targets) == {name.rpartition(".")[2] for name in expected}


def test_it_is_drawn_as_peft_draws(tmp_path: Path) -> None:
    tensors = load_file(made(tmp_path / "0000", make_model(tmp_path / "model"), rank=64) / files.ADAPTER_FILE)
    for name, tensor in tensors.items():
        if "lora_B" in name:
            assert not tensor.any(), name
        else:
            bound = 1 / math.sqrt(tensor.shape[1])
            assert tensor.abs().max() <= bound
            assert tensor.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_the_seed_decides(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    content = [
        (made(tmp_path / str(number), model, seed) / files.ADAPTER_FILE).read_bytes()
        for number, seed in enumerate([SEED, SEED, str(uuid.uuid4())])
    ]
    assert content[0] == content[1] != content[2]


def test_the_count_of_parameters(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", shards=3)
    files = sorted(model.glob("*.safetensors"))
    assert len(files) == 3
    shape = initial_adapter.base_shape(model, {})
    assert shape.parameters == sum(tensor.numel() for path in files for tensor in load_file(path).values())
    assert shape.targets == list(initial_adapter.TARGETS)


def test_a_model_without_linears_is_refused(tmp_path: Path) -> None:
    shape = initial_adapter.base_shape(tmp_path, {})
    with pytest.raises(InvalidRequest, match="no linear projection"):
        initial_adapter.lora_of(shape, "base", 8, 16.0)


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0no json", b"\xff" * 32])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(Unavailable, match=r"model\.safetensors"):
        initial_adapter.base_shape(tmp_path, {})


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    model = make_model(tmp_path / "model")
    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StorageFull):
        made(tmp_path / "checkpoints" / "0000", model)
    assert list((tmp_path / "checkpoints").iterdir()) == []

"""What of a PEFT folder is refused, in words that name it, and what loading leaves behind."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heddle.models.interfaces import ModelError
from heddle.models.load import load_model
from heddle.models.native import NativeModel
from tests.support.forward import Runner, tokens_of
from tests.support.models import make_adapter, make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def model(folder: Path) -> NativeModel:
    loaded = load_model(folder)
    assert isinstance(loaded, NativeModel)
    return loaded


def changed(folder: Path, name: str, value: Any) -> Path:
    """Change one setting of an adapter folder."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peft_type", "PREFIX_TUNING"),
        ("bias", "all"),
        ("modules_to_save", ["lm_head"]),
        ("use_dora", True),
        ("r", 0),
        ("r", "8"),
        ("lora_alpha", None),
        pytest.param("lora_alpha", 10**400, id="lora_alpha-endless"),
        ("lora_alpha", math.inf),
        ("lora_alpha", math.nan),
        ("fan_in_fan_out", True),
        ("lora_bias", True),
        ("use_qalora", True),
        ("init_lora_weights", "pissa_niter_4"),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 2]]),
    ],
)
def test_a_setting_that_is_not_applied_is_refused_by_name(
    name: str, value: Any, folder: Path, model: NativeModel, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=name):
        model.load_adapter("a", changed(make_adapter(tmp_path, folder), name, value))
    assert model.adapters.adapters == {}


def test_weights_of_something_else_are_refused_by_name(folder: Path, model: NativeModel, tmp_path: Path) -> None:
    file = make_adapter(tmp_path, folder) / "adapter_model.safetensors"
    good = load_file(file)
    prefix = "base_model.model.model.layers."
    first = f"{prefix}0.self_attn.q_proj.lora_A.weight"
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({name: tensor for name, tensor in good.items() if name != first}, "q_proj: lora_A is missing"),
        (good | {"base_model.model.lm_head.lora_A.weight": torch.zeros(8, 64)}, "lm_head"),
        (good | {"base_model.model.model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, "q_proj.bias"),
        (good | {first: torch.zeros(8, 65)}, "layer 0 q_proj"),
        (good | {first: torch.zeros(7, 64)}, "layer 0 q_proj"),
        (good | {f"{prefix}3.mlp.up_proj.lora_A.weight": torch.zeros(8, 64)}, "the model has 3 layers"),
        (good | {f"{prefix}1.mlp.side_proj.lora_A.weight": torch.zeros(8, 64)}, "side_proj"),
        (good | {f"{prefix}{'9' * 5000}.mlp.up_proj.lora_A.weight": torch.zeros(8, 64)}, "is not a LoRA weight"),
        (good | {f"{prefix}00.self_attn.q_proj.lora_A.weight": good[first] + 1}, "layers.00"),
        (good | {f"{prefix}0.self_attn.q_proj.lora_A.default.weight": good[first] + 1}, "given twice"),
        (good | {first: torch.ones(8, 64, dtype=torch.int32)}, "int32"),
        (good | {first: torch.ones(8, 64, dtype=torch.complex64)}, "complex64"),
        ({}, "no LoRA weight"),
    ]
    for tensors, text in cases:
        save_file(tensors, file)
        with pytest.raises(ModelError, match=text):
            model.load_adapter("a", tmp_path)
    save_file(good, file)
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    again = json.dumps(header[first] | {"shape": header[first]["shape"][::-1]})
    header_twice = json.dumps(header)[:-1] + f', "{first}": {again}}}'
    file.write_bytes(len(header_twice).to_bytes(8, "little") + header_twice.encode() + content[end:])
    with pytest.raises(ModelError, match=f"its header contains '{first}' twice"):
        model.load_adapter("a", tmp_path)
    file.write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors: cannot be read"):
        model.load_adapter("a", tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is missing"):
        model.load_adapter("a", tmp_path)
    (tmp_path / "adapter_config.json").write_text("[" * 50_000)
    with pytest.raises(ModelError, match="nested too deep"):
        model.load_adapter("a", tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ModelError, match=r"adapter_config\.json is missing"):
        model.load_adapter("a", tmp_path)


def test_base_rows_are_bitwise_the_same_beside_adapters(folder: Path, model: NativeModel, tmp_path: Path) -> None:
    for place in range(3):
        model.load_adapter(f"a{place}", make_adapter(tmp_path / str(place), folder, seed=place, rank=4 * place + 1))
    runner = Runner(model)
    prompts = [tokens_of(20, seed=place) for place in range(4)]
    alone = runner.step([(runner.open(30), ids, 0, None) for ids in prompts])
    names = ["a0", None, "a2", "a1"]
    mixed = runner.step([(runner.open(30), ids, 0, name) for ids, name in zip(prompts, names, strict=True)])
    assert torch.equal(mixed[1], alone[1])
    for place in (0, 2, 3):
        assert not torch.allclose(mixed[place], alone[place], atol=1e-2)
        own = runner.prefill(runner.open(30), prompts[place], adapter=names[place])
        assert torch.allclose(mixed[place], own, atol=1e-5)
    for place in range(3):
        model.unload_adapter(f"a{place}")
    assert model.adapters.adapters == {}
    assert torch.equal(runner.prefill(runner.open(30), prompts[0]), runner.prefill(runner.open(30), prompts[0]))


def test_a_new_version_under_an_old_id_needs_unloading_first(folder: Path, model: NativeModel, tmp_path: Path) -> None:
    first, second = make_adapter(tmp_path / "1", folder, seed=1), make_adapter(tmp_path / "2", folder, seed=2)
    ids = tokens_of(12)
    runner = Runner(model)
    model.load_adapter("a", first)
    before = runner.prefill(runner.open(12), ids, adapter="a")
    model.load_adapter("a", second)
    assert torch.equal(runner.prefill(runner.open(12), ids, adapter="a"), before)
    model.unload_adapter("a")
    model.load_adapter("a", second)
    assert not torch.allclose(runner.prefill(runner.open(12), ids, adapter="a"), before, atol=1e-2)
    model.unload_adapter("a")


def test_joined_adapters_are_kept_for_few_sets_and_go_with_an_adapter(
    folder: Path, model: NativeModel, tmp_path: Path
) -> None:
    for place in range(3):
        model.load_adapter(f"a{place}", make_adapter(tmp_path / str(place), folder, seed=place))
    runner = Runner(model)
    ids = tokens_of(6)
    sets = [("a0",), ("a1",), ("a2",), ("a0", "a1"), ("a1", "a2"), ("a0", "a1")]
    for names in sets:
        runner.step([(runner.open(6), ids, 0, name) for name in names])
    assert list(model.adapters.mixed) == [("a1",), ("a2",), ("a1", "a2"), ("a0", "a1")]
    model.unload_adapter("a1")
    assert list(model.adapters.mixed) == [("a2",)]
    for place in (0, 2):
        model.unload_adapter(f"a{place}")
    assert model.adapters.mixed == {}

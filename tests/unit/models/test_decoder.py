"""The differentiable decoder against the engine and transformers, and its folders."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.models.decoder import Decoder  # noqa: E402
from heddle.models.folder import NotNative, parse_config  # noqa: E402
from heddle.models.interfaces import ModelError  # noqa: E402
from heddle.models.load import load_model  # noqa: E402
from tests.support.forward import Runner, tokens_of  # noqa: E402
from tests.support.models import make_model  # noqa: E402
from tests.unit.models.test_native import CONFIGS, FAMILIES  # noqa: E402

ALL: dict[str, tuple[str, dict[str, Any]]] = {family: (family, {}) for family in FAMILIES} | CONFIGS


def content_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return content


@pytest.mark.parametrize("name", ALL)
def test_logprobs_equal_the_engines(name: str, tmp_path: Path) -> None:
    family, config = ALL[name]
    folder = make_model(tmp_path / "model", model_type=family, config=config, shards=2)
    tokens = tokens_of(100, seed=4)
    decoder = Decoder.load(folder)
    with torch.no_grad():
        found = decoder(tokens[None])[0].log_softmax(-1)
    runner = Runner(load_model(folder))
    expected = runner.prefill(runner.open(100), tokens)
    assert float(expected.exp().max()) > 0.015
    assert float((found - expected).abs().max()) <= 2e-5
    assert float((found - expected).abs().mean()) <= 2e-6


def test_logprobs_in_half_the_bits_stay_close_to_the_engines(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", model_type="qwen3", dtype=torch.bfloat16, tied=False)
    tokens = tokens_of(100, seed=4)
    with torch.no_grad():
        found = Decoder.load(folder, torch.bfloat16)(tokens[None])[0].float().log_softmax(-1)
    runner = Runner(load_model(folder, dtype="bfloat16"))
    expected = runner.prefill(runner.open(100), tokens)
    assert float((found - expected).abs().mean()) <= 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path, model_type=family, tied=family != "llama")
    decoder = Decoder.load(folder)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = tokens_of(80, seed=3).clamp(min=1).view(2, 40)  # theirs has no gradient at the padding token
    for logits in (decoder(tokens), theirs(tokens).logits):
        logits.logsumexp(-1).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in decoder.named_parameters():
        largest = float(gradients[name].abs().max())
        assert float((parameter.grad - gradients[name]).abs().max()) <= 1e-4 * largest, name


def test_a_folder_written_and_read_is_the_same_model(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "first", model_type="qwen2")
    decoder = Decoder.load(folder)
    decoder.save(tmp_path / "second", content_of(folder), torch.float32)
    again = Decoder.load(tmp_path / "second")
    assert again.config == decoder.config
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    with pytest.raises(ValueError, match="another model"):
        decoder.save(tmp_path / "third", content_of(folder) | {"rms_norm_eps": 0.5})


def test_fresh_weights_follow_the_seed(tmp_path: Path) -> None:
    config = parse_config(content_of(make_model(tmp_path, model_type="qwen2")))
    first, second = Decoder(config), Decoder(config)
    for decoder in (first, second):
        decoder.initialise(torch.Generator().manual_seed(1), 0.05)
    state = first.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in second.state_dict().items())
    assert not state["model.layers.0.self_attn.q_proj.bias"].any()
    assert 0.04 < float(state["model.layers.0.self_attn.q_proj.weight"].std()) < 0.06
    assert 0.015 < float(state["model.layers.0.mlp.down_proj.weight"].std()) < 0.03


def test_what_it_cannot_compute_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_model(tmp_path, model_type="llama")
    content = content_of(folder)
    (folder / "config.json").write_text(json.dumps(content | {"hidden_act": "gelu"}))
    with pytest.raises(NotNative, match="gelu"):
        Decoder.load(folder)
    (folder / "config.json").write_text(json.dumps(content | {"intermediate_size": 96}))
    with pytest.raises(ModelError, match=r"gate_proj.weight has shape \[160, 64\]"):
        Decoder.load(folder)
    (folder / "config.json").write_text(json.dumps(content | {"num_hidden_layers": 2}))
    with pytest.raises(ModelError, match=r"does not describe the tensor model\.layers\.2\."):
        Decoder.load(folder)

"""The differentiable decoder against transformers, and its folders."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from heddle.models.decoder import Decoder, DecoderConfig  # noqa: E402

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False, "rope_theta": 500000.0},
    "qwen2": {"projection_bias": True, "tie_word_embeddings": True},
    "qwen3": {"query_key_norm": True, "tie_word_embeddings": True, "head_dim": 16},
}


def made(family: str) -> Decoder:
    """A decoder of one family with weights far from their initial scale, biases and norms included."""
    decoder = Decoder(DecoderConfig(**(SMALL | FAMILIES[family])))
    decoder.initialise(torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return decoder


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_equal_transformers(family: str, tmp_path: Path) -> None:
    decoder = made(family)
    decoder.save(tmp_path, torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert theirs.config.model_type == family
    tokens = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(3))
    ours_logits, their_logits = decoder(tokens), theirs(tokens).logits
    assert (ours_logits - their_logits).abs().max() < 1e-4
    for logits in (ours_logits, their_logits):
        logits.logsumexp(-1).square().mean().backward()
    their_gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in decoder.named_parameters():
        assert torch.allclose(parameter.grad, their_gradients[name], atol=1e-5, rtol=1e-3), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_written_and_read_is_the_same_model(family: str, tmp_path: Path) -> None:
    decoder = made(family).to(torch.bfloat16)
    decoder.save(tmp_path, torch.bfloat16, eos_token_id=2)
    again = Decoder.load(tmp_path, torch.bfloat16)
    assert again.config == decoder.config
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_mask_and_positions_separate_packed_sequences() -> None:
    decoder = made("qwen3")
    first, second = torch.arange(1, 8)[None], torch.arange(20, 31)[None]
    packed = torch.cat((first, second), dim=1)
    positions = torch.cat((torch.arange(7), torch.arange(11)))[None]
    group = torch.tensor([0] * 7 + [1] * 11)
    mask = (group[:, None] == group[None]) & torch.ones(18, 18, dtype=torch.bool).tril()
    logits = decoder(packed, positions, mask[None, None])
    assert torch.allclose(logits[:, :7], decoder(first), atol=1e-5)
    assert torch.allclose(logits[:, 7:], decoder(second), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    config = DecoderConfig(**SMALL).to_huggingface()
    assert DecoderConfig.from_huggingface(config) == DecoderConfig(**SMALL)
    with pytest.raises(ValueError, match=word):
        DecoderConfig.from_huggingface(config | change)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made("llama").save(tmp_path)
    made("qwen3").save(tmp_path / "other")
    (tmp_path / "other" / "config.json").replace(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"disagree on model\.layers\.0\.self_attn\.k_norm\.weight"):
        Decoder.load(tmp_path)

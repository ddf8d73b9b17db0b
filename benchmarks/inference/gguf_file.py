"""A Hugging Face folder of the benchmark as a GGUF file with float16 or 8-bit matrices, for engines that read those."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3


def converted(folder: Path, weights: str = "f16") -> Path:
    """The file for this folder, written when it is not there; `weights` is f16, or q8_0 for 8 bits in groups of 32."""
    path = folder / f"model-{weights}.gguf"
    if not path.exists():
        draft = path.with_suffix(".draft")
        write(folder, draft, weights == "q8_0")
        draft.rename(path)
    return path


def write(folder: Path, path: Path, is_short: bool) -> None:
    """Configuration, tokenizer and weights."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if is_short else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, folder, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, array in read_bfloat16(folder / "model.safetensors").items():
        kind = name.rsplit(".", 2)[-2]
        if family == "llama" and kind in heads:
            array = interleave_rotary(array, heads[kind])
        if array.ndim == 2 and is_short:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), array.astype(np.float16 if array.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    """Entries and merges, with entries of no meaning up to the rows of the embedding."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    entries = {number: text for text, number in tokenizer["model"]["vocab"].items()} | special
    count = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([entries.get(number, f"<|unused{number}|>") for number in range(count)])
    writer.add_token_types(
        [NORMAL_TOKEN if number in entries and number not in special else CONTROL_TOKEN for number in range(count)]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def read_bfloat16(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file as float32; numpy has no bfloat16, whose bits are a float32's upper half."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(data[begin:end], dtype=np.uint16).astype(np.uint32) << 16
        arrays[name] = bits.view(np.float32).reshape(entry["shape"])
    return arrays


def interleave_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's Llama rotates neighbouring rows of a head, Hugging Face's the two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor."""
    plain = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in plain:
        return plain[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"

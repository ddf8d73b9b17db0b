"""Small tokenizers of the kinds that models come with, trained here, and model folders around them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from heddle.inference.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "Grüße aus Köln, dreiundzwanzig Äpfel und ein Ei!",
    "def add(a, b):\n    return a + b\n",
    "你好，世界。 今天天气很好。",
    "один два три; 1 234,5 \U0001f642 \U0001f9d1\u200d\U0001f680",
    '{"name": "add", "arguments": {"a": 1, "b": [2, 3]}}',
] * 20

CHATML = (
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDS = ("<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
KINDS = ("byte level", "sentencepiece", "metaspace", "wordpiece", "suffix")


@cache
def _trained(kind: str) -> str:
    return _TRAINERS[kind]().to_str()


def backend(kind: str, marks: Sequence[str] = MARKS) -> Backend:
    """A fresh tokenizer of that kind, with special tokens ENDS and ordinary added tokens `marks`."""
    tokenizer = Backend.from_str(_trained(kind))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ENDS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in marks])
    return tokenizer


@cache
def tokenizer(kind: str = "byte level", template: str = CHATML) -> Tokenizer:
    """Our tokenizer over one of that kind."""
    made = backend(kind)
    return Tokenizer(made, {"eos_token": "<|im_end|>"}, {"default": template})


def write_folder(
    folder: Path, made: Backend, config: Mapping[str, Any] | None = None, files: Mapping[str, Any] | None = None
) -> Path:
    """A model folder: `tokenizer.json`, its settings, and other files (texts as they are, the rest as JSON)."""
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    for name, content in {"tokenizer_config.json": dict(config or {}), **(files or {})}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def feed_in_pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text cut at these places (taken modulo its length)."""
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def _byte_level() -> Backend:
    made = Backend(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _sentencepiece() -> Backend:
    """As Llama 2: a space becomes U+2581 and goes before the text, single bytes stand for unknown characters."""
    letters = sorted({letter for line in CORPUS[:3] for letter in line if letter.isascii() and letter != " "} | {"▁"})
    vocabulary = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁t", "he", "▁the", "an", "▁an"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "n"), ("▁", "an")]
    numbered = {text: number for number, text in enumerate(vocabulary)}
    made = Backend(models.BPE(numbered, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def _metaspace() -> Backend:
    made = Backend(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        unk_token="<unk>",
        special_tokens=["<unk>"],
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _wordpiece() -> Backend:
    made = Backend(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"], show_progress=False)
    )
    return made


def _suffix() -> Backend:
    """As the first GPT: the end of a word is written `</w>`."""
    made = Backend(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    made.decoder = decoders.BPEDecoder()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False),
    )
    return made


_TRAINERS = {
    "byte level": _byte_level,
    "sentencepiece": _sentencepiece,
    "metaspace": _metaspace,
    "wordpiece": _wordpiece,
    "suffix": _suffix,
}

"""The tokenizer: bytes, and whole words of the synthetic conversations; no merges.

A word that is in the vocabulary is one token, any other text falls apart into bytes. So letters of made-up words, and
digits, are always tokens of their own, which makes copying, spelling and arithmetic learnable for a tiny model.
"""

import json
import re
from collections import Counter
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tools.tiny_model.chat import TEMPLATE_FILE
from tools.tiny_model.tasks.mix import TASKS, make
from tools.tiny_model.tasks.turn import EFFORTS
from tools.tiny_model.words import LEXICON

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PAD_ID, START_ID, END_ID = 0, 1, 2
CHATS_PER_TASK = 1_000
LEAST_COUNT = 14
SPELLED = re.compile("Ġ[b-zA-HJ-Z]|[A-Z]{2,}").fullmatch
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"
MAX_LENGTH = 32_768


def splitter() -> pre_tokenizers.PreTokenizer:
    """Cuts text into words, single digits, runs of signs and single spaces, spelled in byte letters."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def frequent_pieces(chats: int) -> list[str]:
    """Words and runs of signs that occur often in so many chats of each task, and the lexicon; alphabetical."""
    random, cut = Random(0), splitter()
    marks = re.compile("|".join(re.escape(mark) for mark in (PAD, START, END, *MARKS)))
    counts: Counter[str] = Counter()
    for task in TASKS:
        drawn = [make(random, task, (None, *EFFORTS)[number % 4], 0, number % 3 == 0) for number in range(chats)]
        text = marks.sub("\n", "\n".join(chat.text() for chat in drawn))
        counts.update(piece for piece, _ in cut.pre_tokenize_str(text) if len(piece) > 1)
    frequent = {piece for piece, count in counts.items() if count >= LEAST_COUNT and not SPELLED(piece)}
    return sorted(frequent.union(*((word, f"Ġ{word}") for word in LEXICON)))


def build_tokenizer(chats: int = CHATS_PER_TASK) -> Tokenizer:
    """Special tokens first, then the 256 bytes, then the frequent pieces."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [PAD, START, END, *MARKS, *letters, *frequent_pieces(chats)]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (PAD, START, END)])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in MARKS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json`, the chat template and the generation defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    template = TEMPLATE_FILE.read_text(encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    generation = {"eos_token_id": [END_ID], "pad_token_id": PAD_ID}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")

"""Reading model folders; what a token is, in text and in bytes."""

from pathlib import Path

import pytest
from tokenizers import decoders

from heddle.errors import Unavailable
from heddle.inference.detokenizer import byte_level_table, read_rule
from heddle.inference.tokenizer import Tokenizer
from tests.unit.inference.vocabularies import CHATML, CORPUS, ENDS, KINDS, MARKS, backend, tokenizer, write_folder


def test_a_folder_is_read_with_everything_beside_the_vocabulary(tmp_path: Path) -> None:
    made = backend("byte level")
    end, start = made.token_to_id("<|im_end|>"), made.token_to_id("<|im_start|>")
    folder = write_folder(
        tmp_path / "model",
        made,
        {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<think>", "bos_token": None, "chat_template": "old"},
        {
            "special_tokens_map.json": {"bos_token": "<|im_start|>", "pad_token": "ignored"},
            "chat_template.jinja": CHATML,
            "chat_templates/rag.jinja": "documents only",
        },
    )
    loaded = Tokenizer.load(folder)
    assert loaded.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<think>"}
    assert loaded.chat_templates == {"default": CHATML, "rag": "documents only"}
    assert loaded.special_ids == {start, end}
    assert loaded.vocab_size == made.get_vocab_size()
    assert {loaded.added_tokens[loaded.token_id(text) or 0] for text in (*ENDS, *MARKS)} == {*ENDS, *MARKS}


def test_templates_by_name_in_the_settings(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = write_folder(tmp_path, backend("byte level"), {"chat_template": named})
    assert Tokenizer.load(folder).chat_templates == {"default": "a", "tool_use": "b"}


def test_a_bare_folder_has_no_template(tmp_path: Path) -> None:
    loaded = Tokenizer.load(write_folder(tmp_path, backend("wordpiece")))
    assert (loaded.chat_templates, loaded.special_tokens) == ({}, {})


def test_settings_for_padding_and_truncation_do_not_reach_prompts(tmp_path: Path) -> None:
    made = backend("byte level")
    made.enable_truncation(3)
    made.enable_padding(length=50)
    loaded = Tokenizer.load(write_folder(tmp_path, made))
    assert loaded.decode(loaded.encode(CORPUS[0])) == CORPUS[0]


@pytest.mark.parametrize("content", [None, "{", '{"model": {"type": "Nothing"}}'])
def test_a_folder_without_a_usable_vocabulary_is_unavailable(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(Unavailable, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_broken_settings_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, backend("byte level"), files={"special_tokens_map.json": "{"})
    with pytest.raises(Unavailable, match=r"special_tokens_map\.json"):
        Tokenizer.load(folder)


def test_special_tokens_are_added_only_when_asked(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    made = backend("byte level")
    start = made.token_to_id("<|im_start|>")
    made.post_processor = TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", start)])
    loaded = Tokenizer.load(write_folder(tmp_path, made))
    plain = loaded.encode("fox")
    assert start not in plain
    assert loaded.encode("fox", add_special_tokens=True) == [start, *plain]


def test_a_decoder_that_only_looks_like_a_known_one_is_left_to_the_library() -> None:
    made = backend("sentencepiece")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0), decoders.Fuse()])
    odd = Tokenizer(made, {}, {})
    ids = odd.encode("the dog an")
    assert odd.decode(ids) == made.decode(ids) == "thedogan"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line", CORPUS[:3])
def test_decoding_equals_the_library(kind: str, line: str) -> None:
    made = tokenizer(kind)
    ids = made.encode(line)
    assert made.decode(ids) == made.backend.decode(ids, skip_special_tokens=True)
    assert len(ids) > 3


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece", "metaspace"])
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(kind: str) -> None:
    made = tokenizer(kind)
    line = "the Äpfel 你\n" if kind != "metaspace" else "the quick Äpfel"
    joined = b"".join(made.token_bytes(token_id) for token_id in made.encode(line))
    assert joined.decode() in (line, " " + line)


def test_tokens_of_a_part_of_a_character_are_shown_with_the_replacement_character() -> None:
    made = tokenizer("sentencepiece")
    ids = made.encode("你")
    assert [made.token_bytes(token_id) for token_id in ids] == [b" ", b"\xe4", b"\xbd", b"\xa0"]
    assert [made.token_text(token_id) for token_id in ids] == [" ", "\ufffd", "\ufffd", "\ufffd"]


def test_special_tokens_have_their_text_and_unknown_ids_none() -> None:
    made = tokenizer("byte level")
    assert made.token_text(made.token_id("<|im_end|>")) == "<|im_end|>"
    assert made.token_bytes(made.vocab_size + 5) == b""
    assert made.decode([made.vocab_size + 5]) == ""


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_and_ordinary_added_tokens_are_not(skip: bool) -> None:
    made = tokenizer("byte level")
    text = "<|im_start|>fox<think>dog</think><|im_end|>"
    shown = made.decode(made.encode(text), skip_special_tokens=skip)
    assert shown == ("fox<think>dog</think>" if skip else text)


@pytest.mark.parametrize("spaces", [True, False])
def test_spaces_between_added_tokens_where_the_decoder_puts_them(spaces: bool) -> None:
    made = tokenizer("wordpiece")
    ids = made.encode("<think></think>the<|im_end|><|im_end|>")
    shown = made.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=spaces)
    assert shown == (
        "<think> </think> the <|im_end|> <|im_end|>" if spaces else "<think></think> the <|im_end|><|im_end|>"
    )


def test_a_bad_word_is_also_the_word_after_a_space() -> None:
    made = tokenizer("byte level")
    plain, spaced = made.encode("the"), made.encode(" the")
    assert (len(plain), len(spaced)) == (1, 1)
    assert made.bad_word_ids("the") == made.bad_word_ids(" the") == [tuple(plain), tuple(spaced)]


def test_a_bad_word_of_another_length_after_a_space_is_one_sequence() -> None:
    made = tokenizer("byte level")
    plain = made.encode("dog")
    assert len(plain) == 2 and len(made.encode(" dog")) == 1
    assert made.bad_word_ids("dog") == [tuple(plain)]
    assert made.bad_word_ids(" ") == [tuple(made.encode(" "))]


def test_the_byte_alphabet_is_the_librarys() -> None:
    from tokenizers import pre_tokenizers

    assert set(byte_level_table()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_level_table().values()) == list(range(256))


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "WordPiece"}]},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": "_", "start": 1, "stop": 0}]},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "a"}, "content": " "}]},
    ],
)
def test_other_decoders_have_no_piece_rule(decoder: dict[str, object] | None) -> None:
    assert read_rule(decoder) is None


@pytest.mark.parametrize(("characters", "tokens", "exceeds"), [(5_000_000, 1 << 20, True), (3_000_000, 3 << 20, False)])
def test_a_long_text_is_judged_in_parts(
    characters: int, tokens: int, exceeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a text takes hundreds of bytes for each of its characters."""
    read, opened = list[int](), tokenizer("byte level")

    def encode(text: str) -> list[int]:
        read.append(len(text))
        return [0] * len(text)

    monkeypatch.setattr(opened, "encode", encode)
    assert opened.exceeds("x" * characters, tokens) is exceeds
    assert max(read) <= 1 << 18 and sum(read) <= min(characters, tokens + (1 << 18))

"""Text from ids one by one is the text of all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.inference.vocabularies import CORPUS, KINDS, tokenizer

TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*"".join(CORPUS[:6]), " ", "  ", "\n", "<think>", "</tool_call>", "<|im_end|>"]),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
@settings(deadline=None, max_examples=40)
@given(text=TEXTS, data=st.data())
def test_one_by_one_equals_all_at_once(kind: str, skip: bool, text: str, data: st.DataObject) -> None:
    made = tokenizer(kind)
    ids = made.encode(text)
    one_by_one = made.detokenizer(skip_special_tokens=skip)
    shown = [one_by_one.push([token_id]) for token_id in ids]
    assert "\ufffd" not in "".join(shown) or "\ufffd" in text
    whole = made.backend.decode(ids, skip_special_tokens=skip)
    assert "".join(shown) + one_by_one.flush() == whole == made.decode(ids, skip_special_tokens=skip)
    at_once = made.detokenizer(skip_special_tokens=skip)
    cut = data.draw(st.integers(0, len(ids)))
    assert at_once.push(ids[:cut]) + at_once.push(ids[cut:]) + at_once.flush() == whole


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_ids_give_the_same_text_in_any_pieces(kind: str, data: st.DataObject) -> None:
    made = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, made.vocab_size + 3), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=4).map(sorted))
    pieces = made.detokenizer()
    shown = [pieces.push(ids[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert "".join(shown) + pieces.flush() == made.decode(ids)


def test_half_a_character_waits_for_the_other_half() -> None:
    made = tokenizer("sentencepiece")
    pieces = made.detokenizer()
    assert [pieces.push([token_id]) for token_id in made.encode("你a")] == ["", "", "", "你", "a"]


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    made = tokenizer("sentencepiece")
    pieces = made.detokenizer()
    assert pieces.push(made.encode("a你")[:-1]) == "a"
    assert pieces.flush() == "\ufffd"
    assert pieces.flush() == ""


def test_wrong_bytes_do_not_swallow_what_follows() -> None:
    made = tokenizer("sentencepiece")
    lead, letter = made.token_id("<0xE4>"), made.token_id("a")
    assert lead is not None and letter is not None
    pieces = made.detokenizer()
    assert [pieces.push([token_id]) for token_id in (letter, lead, letter)] == ["a", "", "\ufffda"]


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace", "wordpiece"])
def test_a_text_that_goes_on_keeps_the_space_of_its_next_word(kind: str) -> None:
    made = tokenizer(kind)
    before, ids = made.encode("the lazy"), made.encode("dog")
    assert made.decode(ids) == "dog"
    pieces = made.detokenizer(before=before)
    assert pieces.push(ids) + pieces.flush() == " dog"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_between_words_cost_no_space(kind: str) -> None:
    made = tokenizer(kind)
    end = made.token_id("<|im_end|>")
    ids = [end, *made.encode("the dog"), end, *made.encode("dog")]
    pieces = made.detokenizer()
    shown = "".join(pieces.push([token_id]) for token_id in ids) + pieces.flush()
    assert shown == made.backend.decode(ids, skip_special_tokens=True)


def test_chosen_special_tokens_are_shown_though_others_are_skipped() -> None:
    made = tokenizer("byte level")
    start, end = made.token_id("<|im_start|>"), made.token_id("<|im_end|>")
    assert start is not None and end is not None
    pieces = made.detokenizer(keep=frozenset({start}))
    assert pieces.push([start, *made.encode("fox"), end]) == "<|im_start|>fox"

"""Splitting outputs into reasoning and answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from heddle.inference.prompt.reasoning import ReasoningMarks, ReasoningSplitter, allow_reasoning_before, detect_marks
from heddle.inference.tokenizer import Tokenizer
from tests.unit.inference.vocabularies import backend, feed_in_pieces, tokenizer

MARKS = ReasoningMarks("<think>", "</think>", (1,), (2,))


def split(text: str, open_at_start: bool, cuts: list[int] | None = None) -> tuple[str, str]:
    """Reasoning and content of an output."""
    splitter = ReasoningSplitter(MARKS, open_at_start)
    parts = [splitter.push(piece) for piece in feed_in_pieces(text, cuts or [])] + [splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("text", "open_at_start", "expected"),
    [
        ("<think>hm</think>\n\nyes", False, ("hm", "\n\nyes")),
        (" \n<think>hm</think>yes", False, ("hm", "yes")),
        ("hm</think>yes", True, ("hm", "yes")),
        ("hm", True, ("hm", "")),
        ("<think>hm </thi", False, ("hm </thi", "")),
        ("<think></think>", False, ("", "")),
        ("yes <think>no</think>", False, ("", "yes <think>no</think>")),
        ("<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
        ("</think>yes", False, ("", "</think>yes")),
        (" <thi", False, ("", " <thi")),
        ("  ", False, ("", "  ")),
        ("", True, ("", "")),
    ],
)
def test_a_block_is_found_at_the_beginning_only(text: str, open_at_start: bool, expected: tuple[str, str]) -> None:
    assert split(text, open_at_start) == expected
    assert split(text, open_at_start, list(range(len(text)))) == expected


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "think", ">", " ", "a", "/"]), max_size=12).map("".join),
    open_at_start=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_any_pieces_give_the_same(text: str, open_at_start: bool, cuts: list[int]) -> None:
    assert split(text, open_at_start, cuts) == split(text, open_at_start)


def test_reasoning_is_shown_while_it_is_written() -> None:
    splitter = ReasoningSplitter(MARKS, open_at_start=False)
    pushed = [(splitter.push(piece), splitter.inside) for piece in ("<thi", "nk>a", "b <", "c</think", ">d", "e")]
    assert pushed == [
        (("", ""), False),
        (("a", ""), True),
        (("b ", ""), True),
        (("<c", ""), True),
        (("", "d"), False),
        (("", "e"), False),
    ]
    assert splitter.flush() == ("", "")


def test_marks_of_several_tokens_are_no_tokens_of_their_own() -> None:
    assert ReasoningMarks("<think>", "</think>", (1, 2), (3, 2)).token_ids == frozenset()


def bare(template: str, *special: str) -> Tokenizer:
    """A byte-level vocabulary without marks but these, which are special tokens."""
    made = backend("byte level", marks=())
    made.add_special_tokens(list(special))
    return Tokenizer(made, {}, {"default": template})


def test_marks_are_tokens_of_their_own_or_stand_in_the_template() -> None:
    made = tokenizer()
    start, end = made.encode("<think>"), made.encode("</think>")
    assert (len(start), len(end)) == (1, 1)
    assert detect_marks(made) == ReasoningMarks("<think>", "</think>", tuple(start), tuple(end))
    special = bare("", "[THINK]", "[/THINK]")
    marks = detect_marks(special)
    assert marks is not None
    assert (marks.start, marks.end) == ("[THINK]", "[/THINK]")
    assert marks.token_ids == {special.token_id("[THINK]"), special.token_id("[/THINK]")}
    written = detect_marks(bare("{{ '<think>' }}{{ '</think>' }}"))
    assert written is not None and len(written.end_token_ids) > 1
    assert detect_marks(bare("{{ '<think>' }}")) is None


def test_special_marks_are_shown_by_the_detokenizer_when_kept() -> None:
    special = bare("", "[THINK]", "[/THINK]")
    marks = detect_marks(special)
    assert marks is not None
    ids = special.encode("[THINK]hm[/THINK]yes<|im_end|>")
    splitter = ReasoningSplitter(marks, open_at_start=False)
    assert splitter.push(special.detokenizer(keep=marks.token_ids).push(ids)) == ("hm", "yes")
    assert special.detokenizer().push(ids) == "hmyes"


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_grammar_after_an_optional_block(has_tokens: bool) -> None:
    made = tokenizer() if has_tokens else bare("<think></think>")
    marks = detect_marks(made)
    assert marks is not None and (len(marks.end_token_ids) == 1) is has_tokens
    vocabulary = LLTokenizer(made.backend.to_str(), eos_token=made.token_id("<|im_end|>"))
    grammar = allow_reasoning_before(
        json.dumps({"grammars": [{"lark_grammar": "start: /[0-9]{2}/"}]}), vocabulary, marks
    )
    for text, allowed in {
        "42": "42",
        "<think>1 < 2 </ok></think>42": None,
        "<think></think>\n\n42": None,
        "<think>a</think>no": "<think>a</think>",
        "no": "",
    }.items():
        matcher = LLMatcher(vocabulary, grammar)
        ids = made.encode(text)
        written = next((n for n, token_id in enumerate(ids) if not matcher.try_consume_tokens([token_id])), len(ids))
        assert made.decode(ids[:written]) == (text if allowed is None else allowed)
        assert matcher.is_accepting() is (allowed is None or allowed == text)

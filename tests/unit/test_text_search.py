"""What a search text asks for, which texts hold it, and how a place of a text is shown."""

import pytest

from heddle.errors import InvalidRequest
from heddle.wire.search import MAX_SEARCH, excerpt, held_words, parse_search, score, searched


@pytest.mark.parametrize(
    ("asked", "text", "is_held"),
    [
        ("refund", "A Refund was asked for", True),
        ("refund", "refunds", False),
        ("refund*", "refunds", True),
        ("fund", "refund", False),
        ('"was asked"', "it was: asked", True),
        ('"was asked"', "asked was", False),
        ('"was as"*', "it was asked", True),
        ("cafe", "Café", True),
        ("user name", "getUserName(1)", True),
        ("getUserName", "get user name", True),
        ("getUserName", "getusername", False),
        ("猫が", "黒い猫が好き", True),
        ("犬", "黒い猫が好き", False),
        ('"猫が 1"', "猫が1", True),
        ("a b", "b and a", True),
        ("a c", "b and a", False),
        ("unclosed", 'an "unclosed quote', True),
    ],
)
def test_a_text_holds_every_term(asked: str, text: str, is_held: bool) -> None:
    assert parse_search(asked).is_held_by(searched([text], [])) is is_held


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * (MAX_SEARCH + 1), f"at most {MAX_SEARCH} characters, got {MAX_SEARCH + 1}"),
        ("", "must contain a letter or a digit"),
        ('"" - *', "must contain a letter or a digit"),
        ("a " * 51, "at most 50 words"),
    ],
)
def test_what_is_no_search_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_search(text)


def test_an_id_is_looked_for_as_a_whole_and_a_sentence_is_not() -> None:
    assert parse_search(' "01-ab" ').exact == "01-ab"
    assert parse_search("01 ab").exact is None
    assert (parse_search("word").is_certain, parse_search('"two words"').is_certain) == (True, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpt-4o", ("gpt", "4o")),
        ("é", None),
        ("a\nb", None),
        ('say "a"', None),
        ("a\\b", None),
        ("x" * 160, None),
        (",".join("1234567890abcdefg"), None),
        ("-", None),
    ],
)
def test_the_words_of_a_text_that_has_one_spelling(text: str, words: tuple[str, ...] | None) -> None:
    found = held_words(text)
    assert (found and found.words) == words


def test_an_excerpt_shows_the_first_hit_and_what_stands_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.wire.search._AROUND", 10)
    text = f"{'a ' * 50}the Refund\nof getUserName {'b ' * 90}refund"
    shown = excerpt(parse_search("refund user*"), text)
    assert shown is not None
    assert shown.parts == ("…a a a the ", "Refund", " of get", "User", "Name b b …")
    assert excerpt(parse_search("cafe"), "im Café") is not None
    assert excerpt(parse_search("cafe"), "im Haus") is None


def test_an_excerpt_of_a_text_that_changes_its_length_in_lower_case() -> None:
    shown = excerpt(parse_search("end"), "İstanbul, the end")
    assert shown is not None and shown.parts == ("İstanbul, the ", "end", "")
    decomposed = excerpt(parse_search("end"), "cafe\u0301, the end")
    assert decomposed is not None and decomposed.parts == ("cafe\u0301, the ", "end", "")


def test_the_score_grows_with_hits_and_weights_and_falls_with_the_length() -> None:
    search = parse_search("red blue")
    once, twice, both = (score(search, [(text, 1.0)]) for text in ("red", "red red", "red blue"))
    assert 0 < once < twice < both
    assert score(search, [("red", 2.0)]) == 2 * once
    assert score(search, [("red", 1.0), ("red", 1.0)]) == 2 * once
    assert score(search, [("green", 9.0)]) == 0.0
    assert score(search, [("red" + " x" * 9000, 1.0)]) < once
    assert score(search, [("red " * 20, 1.0)]) == pytest.approx(score(search, [("red " * 21, 1.0)]), rel=1e-3)


def test_what_is_left_out_as_noise_does_not_depend_on_other_fields() -> None:
    # Of two runs of which one holds the other: an index that a process made must be what the next one expects.
    short = [letter * 600 for letter in "abcdefghijklmnop"]
    left = searched([], [f"{run}/tail{number}" for number, run in enumerate(short)] + short).split()
    assert set(left) == {"endoffield"}

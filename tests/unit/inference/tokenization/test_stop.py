"""Stop strings: what is found and what is shown does not depend on pieces."""

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.inference.detokenizer import StopStrings
from tests.unit.inference.vocabularies import feed_in_pieces

LETTERS = st.text("abc", max_size=16)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The first position at which a stop string is complete; the longest one there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(deadline=None)
@given(text=LETTERS, stops=STOPS, include=st.booleans(), cuts=st.lists(st.integers(0, 20), max_size=6))
def test_equals_the_naive_search_for_any_pieces(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    search = StopStrings(stops, include)
    shown, matched = "", None
    for piece in feed_in_pieces(text, cuts):
        more, matched = search.push(piece)
        shown += more
        assert naive(text, stops, include)[0].startswith(shown)
    assert (shown + search.flush(), matched) == naive(text, stops, include)


@settings(deadline=None)
@given(skipped=LETTERS, text=LETTERS, stops=STOPS, include=st.booleans())
def test_no_stop_string_ends_in_skipped_text(skipped: str, text: str, stops: list[str], include: bool) -> None:
    search = StopStrings(stops, include)
    shown = search.skip(skipped)
    more, matched = search.push(text)
    whole = skipped + text
    ends = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(len(skipped) + 1, len(whole) + 1)
        if whole[:end].endswith(stop)
    ]
    if not ends:
        assert (shown + more + search.flush(), matched) == (whole, None)
        return
    end, _, stop = min(ends)
    assert matched == stop
    assert shown + more == whole[: end if include else end - len(stop)]


def test_nothing_comes_after_a_match() -> None:
    search = StopStrings(["END"])
    assert search.push("a END b") == ("a ", "END")
    assert search.push("c") == ("", "END")
    assert (search.skip("d"), search.flush()) == ("", "")


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    search = StopStrings(["\n\n", "stop"])
    assert [search.push(piece)[0] for piece in ("a", "\n", "b", "st", "a", "s")] == ["a", "", "\nb", "", "sta", ""]
    assert search.flush() == "s"


def test_an_included_stop_string_holds_nothing_back() -> None:
    search = StopStrings(["stop"], include_in_output=True)
    assert [search.push(piece) for piece in ("a st", "op b")] == [("a st", None), ("op", "stop")]


def test_without_stop_strings_everything_passes() -> None:
    search = StopStrings([])
    assert search.push("anything") == ("anything", None)
    assert search.flush() == ""

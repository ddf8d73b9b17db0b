"""When an output ends: stop strings and tokens, end-of-sequence, lengths, repetition."""

from typing import Any

import pytest

from tests.support.chat import FORCED, Chat, decoded, end_token, joined, word_tokens


def spelled(text: str) -> dict[str, Any]:
    """Fields that make the model write exactly this text."""
    return {"structured_outputs": {"regex": text}, "max_tokens": 40}


def repeating(token: int) -> dict[str, Any]:
    """Fields that make the model repeat one token."""
    return {"logit_bias": {str(token): FORCED}, "max_tokens": 6, "return_token_ids": True}


def test_a_spelled_text_comes_out(chat: Chat) -> None:
    choice = chat.choice(**spelled("abcdef"))
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("abcdef", "stop", None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "include", "content", "reason"),
    [
        (["cd"], False, "ab", "cd"),
        (["cd"], True, "abcd", "cd"),
        ("cd", False, "ab", "cd"),
        (["ef", "cd"], False, "ab", "cd"),
        (["xx", "f"], True, "abcdef", "f"),
        (["abcdeg", "de"], False, "abc", "de"),
        (["a"], False, "", "a"),
        ([], False, "abcdef", None),
        (["xx"], False, "abcdef", None),
    ],
)
def test_stop_cuts_the_text(
    chat: Chat, stop: str | list[str], include: bool, content: str, reason: str | None, stream: bool
) -> None:
    fields = {**spelled("abcdef"), "stop": stop, "include_stop_str_in_output": include}
    if stream:
        chunks = chat.chunks(**fields)
        last = chunks[-1]["choices"][0]
        assert joined(chunks) == content
    else:
        last = chat.choice(**fields)
        assert (last["message"]["content"] or "") == content
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", reason)


def test_stop_counts_the_whole_token(chat: Chat) -> None:
    """A match inside a token cuts the text; the token is counted and its id returned."""
    token, word = word_tokens()[0]
    answer = chat.answer(**repeating(token), stop=[word[1:]])
    choice = answer["choices"][0]
    assert choice["message"]["content"] == word[0]
    assert (choice["stop_reason"], choice["token_ids"]) == (word[1:], [token])
    assert answer["usage"]["completion_tokens"] == 1


def test_stop_waits_for_min_tokens(chat: Chat) -> None:
    token, word = word_tokens()[0]
    choice = chat.choice(**repeating(token), stop=[word], min_tokens=3, include_stop_str_in_output=True)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)
    assert choice["token_ids"] == [token] * 4 and choice["message"]["content"] == word * 4


def test_a_stopped_request_frees_the_engine(chat: Chat) -> None:
    """The engine does not go on behind a stop string found by the front."""
    token, word = word_tokens()[0]
    chat.until_idle()
    before = chat.engine()["generated_tokens"]
    chat.choice(**{**repeating(token), "max_tokens": 2000}, stop=[word], ignore_eos=True)
    after = chat.until_idle()["generated_tokens"]
    assert after - before < 500


@pytest.mark.parametrize("stop", [[""], "", ["a", ""]])
def test_an_empty_stop_is_400(chat: Chat, stop: Any) -> None:
    assert chat.refused(400, stop=stop)["param"] == "stop"


def test_stop_token_ids_end_the_output(chat: Chat) -> None:
    token, _ = word_tokens()[0]
    choice = chat.choice(**repeating(token), stop_token_ids=[token])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)
    assert (choice["message"]["content"] or "", choice["token_ids"]) == ("", [token])


def test_stop_token_ids_with_include_stop_str_in_output(chat: Chat) -> None:
    token, word = word_tokens()[0]
    choice = chat.choice(**repeating(token), stop_token_ids=[token], include_stop_str_in_output=True)
    assert (choice["stop_reason"], choice["token_ids"]) == (token, [token])
    assert choice["message"]["content"] in ("", word)


@pytest.mark.parametrize("ids", [[999999], [-5]])
def test_unknown_stop_token_ids_are_400(chat: Chat, ids: list[int]) -> None:
    error = chat.refused(400, stop_token_ids=ids)
    assert error["param"] == "stop_token_ids" and str(ids[0]) in error["message"]


def test_min_tokens_keeps_stop_tokens_away(chat: Chat) -> None:
    token, _ = word_tokens()[0]
    ids = chat.token_ids(
        logit_bias={str(token): FORCED, str(end_token()): -100}, stop_token_ids=[token], min_tokens=3, max_tokens=8
    )
    assert len(ids) == 4 and ids[3] == token and token not in ids[:3]


def test_min_tokens_keeps_the_end_away(chat: Chat) -> None:
    fields = {"logit_bias": {str(end_token()): FORCED}, "max_tokens": 8}
    assert chat.token_ids(**fields) == [end_token()]
    ids = chat.token_ids(**fields, min_tokens=3)
    assert len(ids) == 4 and ids[3] == end_token() and end_token() not in ids[:3]


@pytest.mark.parametrize("fields", [{"min_tokens": 10, "max_tokens": 5}, {"min_tokens": -1}])
def test_min_tokens_that_cannot_be(chat: Chat, fields: dict[str, Any]) -> None:
    assert chat.refused(400, **fields)["param"] == "min_tokens"


def test_the_end_of_sequence_stops(chat: Chat) -> None:
    choice = chat.choice(logit_bias={str(end_token()): FORCED}, return_token_ids=True)
    assert (choice["finish_reason"], choice["stop_reason"], choice["token_ids"]) == ("stop", None, [end_token()])
    assert not choice["message"]["content"]


def test_ignore_eos_goes_on(chat: Chat) -> None:
    choice = chat.choice(logit_bias={str(end_token()): FORCED}, ignore_eos=True, return_token_ids=True)
    assert (choice["finish_reason"], choice["token_ids"]) == ("length", [end_token()] * 4)


def test_skip_special_tokens(chat: Chat) -> None:
    fields = {"logit_bias": {str(end_token()): FORCED}, "ignore_eos": True, "max_tokens": 3}
    assert not chat.content(**fields, skip_special_tokens=True)
    shown = chat.content(**fields, skip_special_tokens=False)
    assert shown == decoded([end_token()] * 3, skip_special_tokens=False) != ""
    assert joined(chat.chunks(**fields, skip_special_tokens=False)) == shown


def test_max_tokens_ends_with_length(chat: Chat) -> None:
    for count in (1, 5):
        answer = chat.answer(max_tokens=count, ignore_eos=True)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == count


def test_max_completion_tokens_goes_first(chat: Chat) -> None:
    for other in (2, 9, None):
        answer = chat.answer(max_completion_tokens=5, max_tokens=other, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 10_000_000])
def test_lengths_that_cannot_be(chat: Chat, name: str, value: int) -> None:
    error = chat.refused(400, **{"max_tokens": None, name: value})
    assert error["param"] == name and str(value) in error["message"]


def test_without_max_tokens_the_model_ends_by_itself(chat: Chat) -> None:
    choice = chat.choice(**{**spelled("abc"), "max_tokens": None})
    assert (choice["message"]["content"], choice["finish_reason"]) == ("abc", "stop")


@pytest.mark.parametrize("least", [0, 5])
def test_repetition_detection_ends_early(chat: Chat, least: int) -> None:
    token, _ = word_tokens()[0]
    rule = {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 3}
    fields = {**repeating(token), "max_tokens": 20, "min_tokens": least, "ignore_eos": True}
    choice = chat.choice(**fields, repetition_detection=rule)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert choice["token_ids"] == [token] * max(3, least)
    last = chat.chunks(**{**fields, "return_token_ids": False}, repetition_detection=rule)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("repetition", "repetition_detected")


def test_repetition_detection_min_count(chat: Chat) -> None:
    token, _ = word_tokens()[0]
    rule = {"max_pattern_size": 1, "min_pattern_size": 1, "min_count": 5}
    assert chat.choice(**repeating(token), repetition_detection=rule)["token_ids"] == [token] * 5


def test_repetition_detection_min_pattern_size(chat: Chat) -> None:
    """One token over and over is also a pattern of two tokens: three of those need six tokens."""
    token, _ = word_tokens()[0]
    rule = {"max_pattern_size": 2, "min_pattern_size": 2, "min_count": 3}
    choice = chat.choice(**{**repeating(token), "max_tokens": 20}, repetition_detection=rule)
    assert choice["token_ids"] == [token] * 6


def test_repetition_detection_max_pattern_size(chat: Chat) -> None:
    """A pattern of two tokens is not seen when patterns of one token only are looked for."""
    (token, word), (other, _), *_ = word_tokens()
    turns = {"allowed_token_ids": [token, other], "bad_words": [word * 2], "return_token_ids": True}
    fields = {"logit_bias": {str(token): FORCED}, "max_tokens": 12, "ignore_eos": True, **turns}
    for most, length, reason in ((1, 12, "length"), (2, 6, "repetition")):
        rule = {"max_pattern_size": most, "min_pattern_size": 1, "min_count": 3}
        choice = chat.choice(**fields, repetition_detection=rule)
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (length, reason)


@pytest.mark.parametrize("rule", [{}, {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}, None])
def test_repetition_detection_off(chat: Chat, rule: dict[str, int] | None) -> None:
    token, _ = word_tokens()[0]
    assert chat.choice(**repeating(token), repetition_detection=rule)["token_ids"] == [token] * 6


@pytest.mark.parametrize(
    "rule",
    [
        {"max_pattern_size": 1, "min_pattern_size": 4, "min_count": 3},
        {"max_pattern_size": 4, "min_pattern_size": -1, "min_count": 3},
        {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 1},
    ],
)
def test_repetition_detection_that_cannot_be(chat: Chat, rule: dict[str, int]) -> None:
    assert chat.refused(400, repetition_detection=rule)["param"].startswith("repetition_detection")

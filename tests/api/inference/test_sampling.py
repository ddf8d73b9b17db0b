"""How tokens are chosen: every sampling field changes the tokens, as its contract says."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.chat import FORCED, Chat, end_token, word_tokens
from tests.support.vllm_server import HOT_TOKENS, HOTTEST

HOT = {"temperature": HOTTEST, "seed": 7, "max_tokens": HOT_TOKENS, "ignore_eos": True}
"""Sampling so wide that it gives other tokens than greedy choice does, however sure the model is."""
Lead = tuple[int, dict[str, Any]]


@pytest.fixture
def greedy(chat: Chat) -> list[int]:
    """What greedy choice gives where HOT is asked for the rest."""
    return chat.token_ids(max_tokens=HOT_TOKENS, ignore_eos=True)


def forced(token: int, bias: float = FORCED) -> dict[str, Any]:
    """A bias that makes one token win everywhere."""
    return {"logit_bias": {str(token): bias}, "ignore_eos": True}


def test_temperature_0_is_greedy_and_repeats(chat: Chat, greedy: list[int]) -> None:
    assert len(greedy) == HOT_TOKENS
    for seed in (1, 2, 3):
        assert chat.token_ids(max_tokens=HOT_TOKENS, ignore_eos=True, seed=seed) == greedy
    top = chat.choice(
        max_tokens=HOT_TOKENS, ignore_eos=True, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True
    )
    best = [item["top_logprobs"][0]["token"] for item in top["logprobs"]["content"]]
    assert best == [f"token_id:{token}" for token in greedy]


def test_temperature_spreads_the_choice(chat: Chat, greedy: list[int]) -> None:
    seen = {tuple(chat.token_ids(**{**HOT, "seed": seed})) for seed in range(4)}
    assert len(seen) == 4 and tuple(greedy) not in seen


def test_tiny_temperature_is_raised_to_a_hundredth(chat: Chat) -> None:
    """1e-4 is above the greedy bound, so that it samples, at a temperature of 0.01."""
    fields = {"seed": 5, "max_tokens": 8, "ignore_eos": True}
    assert chat.token_ids(temperature=1e-4, **fields) == chat.token_ids(temperature=0.01, **fields)


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=["top_k", "top_p", "min_p"])
def test_narrow_sampling_is_greedy(chat: Chat, greedy: list[int], narrow: dict[str, Any]) -> None:
    assert chat.token_ids(**HOT) != greedy
    assert chat.token_ids(**HOT, **narrow) == greedy


@pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": -1}, {"top_p": 1}, {"min_p": 0}], ids=str)
def test_sampling_that_is_off_changes_nothing(chat: Chat, off: dict[str, Any]) -> None:
    assert chat.token_ids(**HOT, **off) == chat.token_ids(**HOT)


def test_top_k_keeps_k_tokens(chat: Chat) -> None:
    """With top_k 2 only the two most probable tokens are ever drawn, and both are."""
    first = chat.choice(max_tokens=1, logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
    best = {item["token"] for item in first["logprobs"]["content"][0]["top_logprobs"]}
    many = chat.answer(
        max_tokens=1, temperature=HOTTEST, n=40, seed=1, top_k=2, logprobs=True, return_tokens_as_token_ids=True
    )
    drawn = {choice["logprobs"]["content"][0]["token"] for choice in many["choices"]}
    assert drawn <= best
    wide = chat.answer(max_tokens=1, temperature=HOTTEST, n=40, seed=1, logprobs=True, return_tokens_as_token_ids=True)
    assert not {choice["logprobs"]["content"][0]["token"] for choice in wide["choices"]} <= best


def test_seed_repeats_whatever_else_runs(chat: Chat) -> None:
    """The same tokens alone and beside eight other requests of other lengths, seeds and kinds."""
    fields = {**HOT, "max_tokens": 24, "top_p": 0.95}
    alone = chat.token_ids(**fields)
    assert chat.token_ids(**fields) == alone
    assert chat.token_ids(**{**fields, "seed": 8}) != alone

    def other(number: int) -> list[int]:
        text = "Count to " + "ten " * (3 * number + 1)
        messages = [{"role": "user", "content": text}]
        return chat.token_ids(messages=messages, temperature=1.5, seed=number, max_tokens=16 + number, ignore_eos=True)

    with ThreadPoolExecutor(10) as pool:
        crowd = [pool.submit(other, number) for number in range(8)]
        mixed = [pool.submit(chat.token_ids, **fields) for _ in range(2)]
        assert [future.result() for future in mixed] == [alone, alone]
        together = [future.result() for future in crowd]
    assert together == [other(number) for number in range(8)]


def test_without_seed_answers_differ(chat: Chat) -> None:
    fields = {**HOT, "seed": None, "max_tokens": 16}
    assert chat.token_ids(**fields) != chat.token_ids(**fields)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 9223372036854776000, -9223372036854776000])
def test_seed_reaches_to_the_bounds_of_the_interface(chat: Chat, seed: int) -> None:
    fields = {**HOT, "seed": seed}
    assert chat.token_ids(**fields) == chat.token_ids(**fields)


@pytest.mark.parametrize("seed", [9223372036854777000, -9223372036854777000])
def test_seed_beyond_the_bounds_is_422(chat: Chat, seed: int) -> None:
    assert "seed" in chat.refused(422, seed=seed)["param"]


def test_n_gives_choices_of_their_own(chat: Chat) -> None:
    fields = {**HOT, "n": 4}
    answer = chat.answer(return_token_ids=True, **fields)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 4
    usage = answer["usage"]
    assert usage["completion_tokens"] == 4 * HOT_TOKENS
    assert usage["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    again = chat.answer(return_token_ids=True, **fields)["choices"]
    assert [choice["token_ids"] for choice in again] == [choice["token_ids"] for choice in choices]
    assert chat.token_ids(**HOT) == choices[0]["token_ids"]


@pytest.mark.parametrize(("fields", "status"), [({"n": 0}, 400), ({"n": 2}, 400), ({"n": -1}, 400), ({"n": "2"}, 422)])
def test_n_that_cannot_be(chat: Chat, fields: dict[str, Any], status: int) -> None:
    """n of 2 is refused because the request is greedy."""
    assert "n" in chat.refused(status, **fields)["param"]


def test_logit_bias_forces_and_forbids(chat: Chat) -> None:
    (token, _), *_ = word_tokens()
    assert chat.token_ids(max_tokens=3, **forced(token)) == [token] * 3
    first = chat.token_ids(max_tokens=1)[0]
    assert chat.token_ids(max_tokens=1, logit_bias={str(first): -100})[0] != first


def test_logit_bias_is_clamped(chat: Chat) -> None:
    """1000 counts as 100, so that it loses against two tokens at 100 only by the model's own choice."""
    (token, _), (other, _), *_ = word_tokens()
    both = {"logit_bias": {str(token): 1000, str(other): 100}, "ignore_eos": True}
    equal = {"logit_bias": {str(token): 100, str(other): 100}, "ignore_eos": True}
    assert chat.token_ids(**both) == chat.token_ids(**equal)


@pytest.mark.parametrize("bias", [{"9999999": 1}, {"-1": 1}, {"abc": 1}, {"1.5": 1}])
def test_logit_bias_of_no_token_is_400(chat: Chat, bias: dict[str, Any]) -> None:
    error = chat.refused(400, logit_bias=bias)
    assert error["param"] == "logit_bias" and next(iter(bias)) in error["message"]


def test_allowed_token_ids_bound_the_output(chat: Chat) -> None:
    (token, _), (other, _), *_ = word_tokens()
    ids = chat.token_ids(**{**HOT, "max_tokens": 16}, allowed_token_ids=[token, other])
    assert len(ids) == 16 and set(ids) <= {token, other}
    assert chat.token_ids(max_tokens=3, ignore_eos=True, allowed_token_ids=[other]) == [other] * 3


@pytest.mark.parametrize("ids", [[], [999999], [-1]])
def test_allowed_token_ids_that_cannot_be(chat: Chat, ids: list[int]) -> None:
    assert chat.refused(400, allowed_token_ids=ids)["param"] == "allowed_token_ids"


def test_bad_words_never_appear(chat: Chat) -> None:
    (token, word), *_ = word_tokens()
    ids = chat.token_ids(max_tokens=3, bad_words=[word], **forced(token))
    assert len(ids) == 3 and token not in ids


def test_bad_words_of_two_tokens_mask_the_second_only_after_the_first(chat: Chat) -> None:
    (token, word), (other, _), *_ = word_tokens()
    fields = {"max_tokens": 6, "allowed_token_ids": [token, other], **forced(token)}
    assert chat.token_ids(**fields) == [token] * 6
    assert chat.token_ids(bad_words=[word * 2], **fields) == [token, other] * 3


@pytest.mark.parametrize("word", ["", "a" * 2_000_000], ids=["empty", "longer than the context"])
def test_bad_words_that_cannot_be(chat: Chat, word: str) -> None:
    assert chat.refused(400, bad_words=["fine", word])["param"] == "bad_words"


@pytest.fixture
def narrow_lead(chat: Chat) -> Iterator[Lead]:
    """A token that wins twice, the second time by 1.0 exactly; and the fields of that request."""
    token = chat.token_ids(max_tokens=1, ignore_eos=True)[0]
    probe = chat.choice(max_tokens=2, logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True, **forced(token))
    second = probe["logprobs"]["content"][1]
    rivals = [item["logprob"] for item in second["top_logprobs"] if item["token"] != f"token_id:{token}"]
    fields = {"max_tokens": 2, **forced(token, rivals[0] - second["logprob"] + 1.0)}
    yield token, fields


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_are_subtracted_from_the_logit(chat: Chat, narrow_lead: Lead, name: str) -> None:
    """A lead of 1.0 survives a penalty of 0.9 and not one of 1.1; a negative penalty helps."""
    token, fields = narrow_lead
    if fields["logit_bias"][str(token)] < 0:
        pytest.skip("the model repeats this token by more than a bias can undo at the first position")
    assert chat.token_ids(**fields) == [token, token]
    assert chat.token_ids(**fields, **{name: 0.9}) == [token, token]
    ids = chat.token_ids(**fields, **{name: 1.1})
    assert ids[0] == token and ids[1] != token
    assert chat.token_ids(**fields, **{name: -2.0}) == [token, token]


def test_frequency_penalty_grows_and_presence_penalty_does_not(chat: Chat) -> None:
    """Against a lead of some 50, 2 per occurrence wins within 60 tokens; 2 once does not."""
    (token, _), (other, _), *_ = word_tokens()
    fields = {"max_tokens": 60, "allowed_token_ids": [token, other], **forced(token, 50)}
    assert chat.token_ids(**fields, presence_penalty=2) == [token] * 60
    ids = chat.token_ids(**fields, frequency_penalty=2)
    assert ids[0] == token and other in ids
    assert ids.index(other) == len([i for i in ids[: ids.index(other)] if i == token]) > 5


def test_repetition_penalty_counts_the_prompt(chat: Chat) -> None:
    """Divides a positive logit of what stands in prompt or output; 1 is off."""
    (token, _), (other, _), *_ = word_tokens()
    bias = {
        "logit_bias": {str(token): 100, str(other): 50},
        "allowed_token_ids": [token, other],
        "ignore_eos": True,
        "max_tokens": 2,
    }
    template = {"chat_template": "{{ text }}", "add_generation_prompt": False}
    empty = {**template, "chat_template_kwargs": {"text": "?"}}
    assert chat.token_ids(**bias, **empty) == [token, token]
    assert chat.token_ids(**bias, **empty, repetition_penalty=1) == [token, token]
    assert chat.token_ids(**bias, **empty, repetition_penalty=50) == [token, other]
    named = {**template, "chat_template_kwargs": {"text": word_tokens()[0][1]}}
    assert token in chat.prompt_ids(**named)
    assert chat.token_ids(**{**bias, "max_tokens": 1}, **named, repetition_penalty=50) == [other]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("temperature", [-0.1]),
        ("top_p", [0, -1, 1.01]),
        ("top_k", [-2]),
        ("min_p", [-0.1, 1.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("presence_penalty", [-2.1, 2.1]),
        ("repetition_penalty", [0, -1]),
    ],
)
def test_values_out_of_range_are_400(chat: Chat, name: str, wrong: list[float]) -> None:
    for value in wrong:
        error = chat.refused(400, **{name: value})
        assert error["param"] == name and name in error["message"], error


def test_length_penalty_needs_beam_search(chat: Chat) -> None:
    assert chat.token_ids(length_penalty=1) == chat.token_ids()
    assert chat.token_ids(length_penalty=1.0) == chat.token_ids()
    assert chat.refused(400, length_penalty=2.0)["param"] == "length_penalty"


def test_seed_does_not_hide_the_end(chat: Chat) -> None:
    """Sampling with a forced end stops at once, whatever the seed."""
    for seed in range(3):
        choice = chat.choice(temperature=1, seed=seed, logit_bias={str(end_token()): FORCED}, return_token_ids=True)
        assert (choice["finish_reason"], choice["token_ids"]) == ("stop", [end_token()])

"""From trajectories to token sequences, by the tiny model's own template and tokenizer."""

from typing import Any

import pytest

from heddle.training.sequences import TokenSequence, TrainingError, share_prompt
from tests.support.trajectories import (
    END,
    Json,
    choice,
    group,
    known,
    pair,
    prepared,
    said,
    tiny_renderer,
    trajectory,
    user,
)

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def prompt(*messages: Json, tools: list[Json] | None = None) -> list[int]:
    return tiny_renderer().render(messages, tools, generation_prompt=True)


def ids(text: str) -> list[int]:
    return tiny_renderer().encode(text)


def first(*groups: Json, **settings: Any) -> list[TokenSequence]:
    """The sequences of the first trajectory of the first group."""
    made = prepared(*groups, **settings).sequences
    return [sequence for sequence in made if (sequence.group, sequence.trajectory) == (0, 0)]


def test_one_turn() -> None:
    (sequence,) = first(pair(user("Is it warm?"), choice("yes", [40, 41, END], [-0.1, None, -0.3])))
    before = prompt(user("Is it warm?"))
    assert sequence.ids == [*before, 40, 41, END]
    assert sequence.mask == [False] * len(before) + [True] * 3
    assert known(sequence.logprobs) == [None] * len(before) + [-0.1, None, -0.3]
    assert sequence.advantage == pytest.approx(1.0, abs=1e-5)
    assert sequence.weight == pytest.approx(1 / 3, abs=1e-6)


def test_sampled_ids_are_never_tokenised_again() -> None:
    """The ids of the choice are not those of its text, and stay."""
    (sequence,) = first(pair(user("?"), choice("something else", [500, 501])))
    assert sequence.ids[-2:] == [500, 501]


def test_a_later_turn_extends() -> None:
    items = [{"role": "system", "content": "Be brief."}, user("a"), said("yes"), user("b"), said("no")]
    (sequence,) = first(pair(*items))
    start = prompt(*items[:2])
    middle = prompt(*items[:2], {"role": "assistant", "content": "yes"}, user("b"))
    assert sequence.ids == [*middle, *ids("no"), END]
    trained = [place for place, flag in enumerate(sequence.mask) if flag]
    size = len(ids("yes")) + 1
    assert trained == [
        *range(len(start), len(start) + size),
        *range(len(middle), len(middle) + len(ids("no")) + 1),
    ]


def test_a_turn_that_was_cut_short_extends() -> None:
    """Without its end of turn: the template writes that, untrained."""
    (sequence,) = first(pair(user("a"), choice("yes", ids("yes")), user("b"), said("no")))
    at = len(prompt(user("a"))) + len(ids("yes"))
    assert sequence.ids[at] == END and not sequence.mask[at]


def test_a_turn_splits_where_its_prompt_is_another_one() -> None:
    """Tokens that the tokenizer would not write for that text: the second turn saw the text written anew."""
    odd = [ids("y")[0], *ids("es"), END]
    assert odd[:-1] != ids("yes")
    made = prepared(pair(user("a"), choice("yes", odd), user("b"), said("no")))
    one, two = (sequence for sequence in made.sequences if sequence.trajectory == 0)
    assert one.ids == [*prompt(user("a")), *odd]
    context = prompt(user("a"), {"role": "assistant", "content": "yes"}, user("b"))
    assert two.ids == [*context, *ids("no"), END] and sum(two.mask) == len(ids("no")) + 1
    assert one.advantage == two.advantage
    assert one.weight == two.weight == pytest.approx(1 / (sum(one.mask) + sum(two.mask)), abs=1e-6)
    assert made.counts["data/split_turns"] == 1


def test_prompt_ids_of_the_choice_are_the_prompt() -> None:
    """Nothing is rendered then: a message that no template can write does not matter."""
    unwritable = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    turns = [
        unwritable,
        choice("a", [7, 8], prompt_token_ids=[1, 5, 6]),
        unwritable,
        choice("b", [9], prompt_token_ids=[1, 5, 6, 7, 8, 3]),
    ]
    (sequence,) = first(pair(*turns))
    assert sequence.ids == [1, 5, 6, 7, 8, 3, 9]
    assert sequence.mask == [False, False, False, True, True, False, True]


def test_empty_prompt_ids_are_none() -> None:
    assert first(pair(user("a"), choice("b", [9], prompt_token_ids=[]))) == first(pair(user("a"), choice("b", [9])))


@pytest.mark.parametrize("name", ["scale_rewards", "normalize_advantages"])
def test_rewards_are_scaled_unless_either_says_no(name: str) -> None:
    one = group(trajectory(user("a"), said("b"), reward=4.0), trajectory(user("a"), said("c")))
    assert first(one)[0].advantage == pytest.approx(1.0, abs=1e-6)
    assert first(one, **{name: False})[0].advantage == 2.0


def test_tools_and_calls_are_in_the_context() -> None:
    call = choice(None, [30, 31, END])
    call["message"]["tool_calls"] = [CALL]
    result = {"role": "tool", "tool_call_id": "call-1", "content": "3"}
    made = prepared(pair(user("1 + 2?"), call, result, said("3"), tools=[TOOL])).sequences
    one, two = (sequence for sequence in made if sequence.trajectory == 0)
    assert one.ids == [*prompt(user("1 + 2?"), tools=[TOOL]), 30, 31, END]
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert two.ids == [*prompt(user("1 + 2?"), called, result, tools=[TOOL]), *ids("3"), END]


def test_a_call_that_was_sampled_as_the_template_writes_it_extends() -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    before = prompt(user("1 + 2?"), tools=[TOOL])
    written = tiny_renderer().render([user("1 + 2?"), called], [TOOL], generation_prompt=False)
    assert written[: len(before)] == before
    end = len(written) - written[::-1].index(END)
    call = choice(None, written[len(before) : end])
    call["message"]["tool_calls"] = [CALL]
    result = {"role": "tool", "tool_call_id": "call-1", "content": "3"}
    (sequence,) = first(pair(user("1 + 2?"), call, result, said("3"), tools=[TOOL]))
    assert sum(sequence.mask) == end - len(before) + len(ids("3")) + 1


def test_additional_histories_share_the_weight() -> None:
    extra = {"messages_and_choices": [user("other"), choice("x", [50, END])], "tools": None}
    one, two = first(pair(user("a"), choice("y", [60, 61, END]), additional_histories=[extra]))
    assert (one.history, two.history) == (0, 1)
    assert one.weight == two.weight == pytest.approx(1 / 5, abs=1e-6)
    assert two.ids == [*prompt(user("other")), 50, END]


def test_what_follows_the_last_sampled_choice_is_cut() -> None:
    items = [user("a"), said("yes")]
    assert first(pair(*items, user("thanks"), {"role": "assistant", "content": "welcome"})) == first(pair(*items))


def test_a_refusal_is_trained() -> None:
    refused = choice(None, [70, END])
    refused["logprobs"] = {"content": None, "refusal": refused["logprobs"]["content"]}
    (sequence,) = first(pair(user("a"), refused))
    assert sequence.ids[-2:] == [70, END]


def test_tokens_by_their_text() -> None:
    """A server that names tokens by text: `token_ids` of the choice, else the vocabulary."""
    word = tiny_renderer().tokenizer.token_text(300)
    named = choice("x", [300, END], token_ids=[300, END])
    for entry, text in zip(named["logprobs"]["content"], [word, "<|im_end|>"], strict=True):
        entry["token"] = text
    without = {key: value for key, value in named.items() if key != "token_ids"}
    assert first(pair(user("a"), named)) == first(pair(user("a"), choice("x", [300, END])))
    assert first(pair(user("a"), without)) == first(pair(user("a"), choice("x", [300, END])))


def test_the_oldest_version_counts() -> None:
    both = first(pair(user("a"), said("b"), initial_policy_version=3, final_policy_version=5))
    last = first(pair(user("a"), said("b"), final_policy_version=5))
    assert [both[0].version, last[0].version, first(pair(user("a"), said("b")))[0].version] == [3, 5, None]


def test_written_answers_are_trained_when_allowed() -> None:
    written = [user("a"), {"role": "assistant", "content": "yes"}, user("b"), {"role": "assistant", "content": "no"}]
    lost = {**said("maybe"), "logprobs": None}
    assert first(pair(*written)) == []
    (sequence,) = first(pair(*written, user("c"), lost), allow_training_without_logprobs=True)
    trained = [token for token, flag in zip(sequence.ids, sequence.mask, strict=True) if flag]
    assert trained == [*ids("yes"), *ids("no"), *ids("maybe")]
    assert set(known(sequence.logprobs)) == {None}
    assert sequence.ids[-len(ids("maybe")) :] == ids("maybe")


def test_written_calls_stay_context() -> None:
    called = {"role": "assistant", "content": "wait", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call-1", "content": "3"}
    made = prepared(pair(user("a"), called, result, said("3"), tools=[TOOL]), allow_training_without_logprobs=True)
    (sequence,) = (sequence for sequence in made.sequences if sequence.trajectory == 0)
    assert sum(sequence.mask) == len(ids("3")) + 1
    assert made.counts["data/untrained_tool_call_messages"] == 1


def test_what_is_tolerated_is_counted() -> None:
    lost = {**said("x"), "logprobs": None}
    empty = {**said("x"), "logprobs": {"content": [], "refusal": None}}
    equal = group(trajectory(user("a"), said("x"), reward=2.0), trajectory(user("a"), said("y"), reward=2.0))
    long = group(trajectory(user("a " * 300), said("x"), reward=1.0), trajectory(user("a"), said("y")))
    made = prepared(
        group(),
        group(exceptions=[{"type": "ValueError", "message": "no"}]),
        equal,
        group(trajectory(user("a"), lost, reward=1.0), trajectory(user("a"), empty)),
        long,
        pair(user("a"), said("x")),
        max_length=200,
    )
    assert {name: value for name, value in made.counts.items() if value} == {
        "num_groups_submitted": 6,
        "num_groups_trainable": 2,
        "num_trajectories": 8,
        "num_datums": 3,
        "num_trainable_tokens": sum(sum(sequence.mask) for sequence in made.sequences),
        "data/exceptions": 1,
        "data/empty_groups": 2,
        "data/equal_reward_groups": 1,
        "data/trajectories_without_trained_tokens": 2,
        "data/dropped_choices_without_logprobs": 2,
        "data/dropped_too_long": 1,
    }
    assert all(isinstance(value, float) for value in made.counts.values())


def test_packed_sequence_length_is_a_limit_too() -> None:
    one = pair(user("a " * 60), said("x"))
    assert prepared(one, packed_sequence_length=50).counts["data/dropped_too_long"] == 1
    with pytest.raises(TrainingError, match=r"packed_sequence_length must be .*, got 4096"):
        prepared(one, packed_sequence_length=4096)


def test_a_sequence_of_exactly_the_limit_is_kept() -> None:
    items = [user("a " * 60), said("x")]
    (sequence,) = first(pair(*items))
    size = len(sequence.ids)
    assert prepared(pair(*items), packed_sequence_length=size).counts["data/dropped_too_long"] == 0
    assert prepared(pair(*items), packed_sequence_length=size - 1).counts["data/dropped_too_long"] == 1


def test_the_first_and_the_last_id_of_the_vocabulary_are_trained() -> None:
    last = tiny_renderer().vocab_size - 1
    (sequence,) = first(pair(user("a"), choice("x", [0, last], prompt_token_ids=[last, 0])))
    assert sequence.ids == [last, 0, 0, last]


def test_a_trajectory_without_a_reward_has_0() -> None:
    low, high = prepared(
        group({"messages_and_choices": [user("a"), said("x")]}, trajectory(user("a"), said("y"), reward=1.0))
    ).sequences
    assert low.advantage < 0 < high.advantage


def test_who_has_nothing_to_learn_lacks_no_trained_tokens() -> None:
    counts = prepared(group(*(trajectory(user("a"), said("x"), reward=1.0) for _ in range(3)))).counts
    assert counts["data/equal_reward_groups"] == 1 and counts["data/trajectories_without_trained_tokens"] == 0


def test_of_a_sequence_that_is_trained_as_a_whole_nothing_is_shared() -> None:
    def sequence(mask: list[bool]) -> TokenSequence:
        return TokenSequence([5] * len(mask), mask, [0.0] * len(mask), 0, 0)

    for masks, shared in (([[True] * 3] * 2, 0), ([[False] * 4, [False] * 5], 3), ([[False] * 4, [False, True]], 0)):
        members = [sequence(list(mask)) for mask in masks]
        share_prompt(members)
        assert [member.prompt_length for member in members] == [shared] * 2


def test_the_prompt_of_a_group_is_shared_but_for_one_token() -> None:
    made = prepared(group(*(trajectory(user("same"), said(str(n)), reward=float(n)) for n in range(3)))).sequences
    assert {sequence.prompt_length for sequence in made} == {len(prompt(user("same"))) - 1}
    other = prepared(group(trajectory(user("a"), said("x"), reward=1.0), trajectory(user("b"), said("x")))).sequences
    both = [prompt(user("a")), prompt(user("b"))]
    common = next(place for place in range(len(both[0])) if both[0][place] != both[1][place])
    assert {sequence.prompt_length for sequence in other} == {common - 1}


def test_nothing_sampled_is_shared() -> None:
    """Equal answers are stored for each trajectory: they have different advantages."""
    made = prepared(group(*(trajectory(user("same"), said("x"), reward=float(n)) for n in range(2)))).sequences
    assert {sequence.prompt_length for sequence in made} == {len(prompt(user("same"))) - 1}


BAD: dict[str, tuple[Json, str]] = {
    "vocabulary": (choice("x", [40, 9999]), "item 1: token id 9999 is outside the vocabulary of 968"),
    "negative": (choice("x", [-3]), "item 1: token id -3 is outside"),
    "ids of the choice": (choice("x", [40, 41], token_ids=[40]), "item 1: 2 logprobs and 1 token_ids"),
    "no ids at all": (choice("x", [40], token_ids=[]), "item 1: 1 logprobs and 0 token_ids"),
    "other ids": (choice("x", [40], token_ids=[41]), "item 1: token 0 has the id 40 in logprobs but 41 in token_ids"),
    "prompt ids": (choice("x", [40], prompt_token_ids=[1, 968]), "item 1: token id 968 is outside"),
    "negative prompt ids": (choice("x", [40], prompt_token_ids=[1, -1]), "item 1: token id -1 is outside"),
    "unknown token": (
        {**choice("x", [40]), "logprobs": {"content": [{"token": "no such token", "logprob": -1.0}]}},
        "item 1: token 0, 'no such token', is not in the vocabulary of 968",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_true_is_named(name: str) -> None:
    item, text = BAD[name]
    good = pair(user("a"), said("x"))
    with pytest.raises(TrainingError) as caught:
        prepared(good, group(trajectory(user("a"), said("x"), reward=1.0), trajectory(user("a"), item)))
    assert str(caught.value).startswith(f"group 1, trajectory 1, {text}")
    extra = {"messages_and_choices": [user("a"), item], "tools": None}
    with pytest.raises(TrainingError) as caught:
        prepared(pair(user("a"), said("x"), additional_histories=[extra]))
    assert str(caught.value).startswith(f"group 0, trajectory 0, history 1, {text}")


def test_what_the_template_cannot_write_is_named() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(
        TrainingError, match=r"^group 0, trajectory 0, item 2: the messages before it cannot .*: messages\.1"
    ):
        prepared(pair(user("a"), picture, said("x")))
    with pytest.raises(TrainingError, match=r"^group 0, trajectory 0, item 0: .* must not be empty"):
        prepared(pair(said("x")))
    prepared(group(trajectory(user("a"), said("x"), reward=1e100), trajectory(user("a"), said("x"))))
    with pytest.raises(TrainingError, match=r"^group 0, trajectory 0: the reward 1e\+300 is too large"):
        prepared(group(trajectory(user("a"), said("x"), reward=1e300), trajectory(user("a"), said("x"))))


def test_a_prompt_of_a_group_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[object] = []
    renderer = tiny_renderer()
    render = renderer.render

    def counting(*arguments: Any, **options: Any) -> list[int]:
        rendered.append(arguments)
        return render(*arguments, **options)

    monkeypatch.setattr(renderer, "render", counting)
    groups = [group(*(trajectory(user(f"ask {n}"), said(str(m)), reward=float(m)) for m in range(8))) for n in range(8)]
    made = prepared(*groups)
    assert len(made.sequences) == 64 and len(rendered) == 8

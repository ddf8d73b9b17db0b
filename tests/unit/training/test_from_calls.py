"""Calls of the trace service turned into trajectory groups, on hand-made calls."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from heddle import training
from heddle.training import trajectory_groups
from heddle.training.calls import collect
from heddle.training.schemas.trajectories import TrajectoryGroup
from tests.support.calls import USER, call, chat, said, sampled

Json = Any


def only(groups: list[Json]) -> Json:
    """The one trajectory of the one group, which must be what a training job accepts."""
    (group,) = groups
    TrajectoryGroup.model_validate(group)
    (trajectory,) = group["trajectories"]
    return trajectory


def test_a_completion_on_its_own_is_a_trajectory() -> None:
    choice = sampled("yes", 5, 6)
    made = only(
        trajectory_groups(
            [chat("a", None, 0, [USER], choice)], lambda subject: float(len(subject["inputs"]["messages"]))
        )
    )
    assert made["messages_and_choices"] == [USER, choice]
    assert made["reward"] == 1.0 and made["additional_histories"] == []
    assert made["metadata"] == {"call_id": "a", "trace_id": "t", "op_name": "rollout"}


def test_several_turns_become_one_conversation() -> None:
    """Each prompt goes on where the last answer ended; every sampled choice is kept as it was sampled."""
    first, second = sampled("one", 1), sampled("two", 2)
    more = {"role": "user", "content": "and?"}
    calls = [
        chat("second", "root", 2, [USER, said(first), more], second),
        chat("first", "root", 1, [USER], first),
        call("root", None, output={"score": 0.25}),
    ]
    made = only(trajectory_groups(calls, "output.score"))
    assert made["messages_and_choices"] == [USER, first, more, second]
    assert made["reward"] == 0.25 and made["additional_histories"] == []


def test_tool_calls_continue_a_conversation() -> None:
    """The answer of a tool call has no content; clients repeat it as null, as empty, or leave it out."""
    used = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    first = sampled("", 1)
    first["message"] = {"role": "assistant", "content": None, "tool_calls": [used]}
    second = sampled("3", 2)
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    tools = [{"type": "function", "function": {"name": "add"}}]
    for repeated in ({"role": "assistant", "tool_calls": [used]}, {**first["message"], "content": ""}):
        calls = [
            call("root", output={"score": 1}),
            chat("a", "root", 1, [USER], first, tools=tools),
            chat("b", "root", 2, [USER, repeated, result], second, tools=tools),
        ]
        made = only(trajectory_groups(calls, "output.score"))
        assert made["messages_and_choices"] == [USER, first, result, second]
        assert made["tools"] == tools


def test_branches_become_further_histories() -> None:
    """A second try from the same prompt is a history of its own, in which what was sampled before is context."""
    first, second, other = sampled("one", 1), sampled("two", 2), sampled("other", 3)
    more, else_ = {"role": "user", "content": "more"}, {"role": "user", "content": "else"}
    calls = [
        call("root", output={"score": 1}),
        chat("a", "root", 1, [USER], first),
        chat("b", "root", 2, [USER, said(first), more], second),
        chat("c", "root", 3, [USER, said(first), else_], other),
    ]
    made = only(trajectory_groups(calls, "output.score"))
    assert made["messages_and_choices"] == [USER, first, more, second]
    assert [history["messages_and_choices"] for history in made["additional_histories"]] == [
        [USER, said(first), else_, other]
    ]


def test_every_choice_of_several_is_trained_once() -> None:
    one, two = sampled("one", 1), sampled("two", 2, index=1)
    later = sampled("end", 3)
    calls = [
        call("root", output={"score": 1}),
        chat("a", "root", 1, [USER], one, two),
        chat("b", "root", 2, [USER, said(two), USER], later),
    ]
    made = only(trajectory_groups(calls, "output.score"))
    assert made["messages_and_choices"] == [USER, two, USER, later]
    assert [history["messages_and_choices"] for history in made["additional_histories"]] == [[USER, one]]


def test_other_tools_begin_another_history() -> None:
    first, second = sampled("one", 1), sampled("two", 2)
    tools = [{"type": "function", "function": {"name": "add"}}]
    calls = [
        call("root", output={"score": 1}),
        chat("a", "root", 1, [USER], first),
        chat("b", "root", 2, [USER, said(first), USER], second, tools=tools),
    ]
    made = only(trajectory_groups(calls, "output.score"))
    assert len(made["additional_histories"]) == 1


def test_a_completion_that_two_calls_show_counts_once() -> None:
    """An op that returns the response of the client's own call: the inner one holds the prompt."""
    choice = sampled("yes", 5)
    inner = chat("inner", "outer", 1, [USER], choice)
    outer = call("outer", output=inner["output"], inputs={"question": "?"})
    assert only(trajectory_groups([outer, inner], lambda _: 1.0))["messages_and_choices"] == [USER, choice]


def test_prompt_ids_and_policy_steps_are_kept() -> None:
    answer = chat(
        "a", None, 0, [USER], sampled("x", 1), prompt_token_ids=[7, 8], system_fingerprint="torch-0a1b2c3d-my-agent@4"
    )
    made = only(trajectory_groups([answer], lambda _: 0.0, policy="my-agent"))
    assert made["messages_and_choices"][1]["prompt_token_ids"] == [7, 8]
    assert (made["initial_policy_version"], made["final_policy_version"]) == (4, 4)
    assert only(trajectory_groups([answer], lambda _: 0.0, policy="other"))["final_policy_version"] is None
    answer["attributes"] = {"policy": "e/p/my-agent@6"}
    assert only(trajectory_groups([answer], lambda _: 0.0, policy="my-agent"))["final_policy_version"] == 6
    answer["attributes"] = {"policy": "-" * 20_000 + "/my-agent@6"}  # reading it took as long as its length squared
    assert only(trajectory_groups([answer], lambda _: 0.0, policy="my-agent"))["final_policy_version"] == 4


def rollouts(*inputs: Json) -> list[Json]:
    """Root calls with these inputs, each with a completion below it."""
    roots = [call(f"r{n}", None, n, inputs=item, output={"score": n}) for n, item in enumerate(inputs)]
    return [*roots, *(chat(f"c{n}", f"r{n}", n, [USER], sampled("x", n)) for n in range(len(inputs)))]


def grouped(groups: list[Json]) -> list[list[float]]:
    """The rewards of each group."""
    return [[trajectory["reward"] for trajectory in group["trajectories"]] for group in groups]


def test_equal_inputs_are_one_group() -> None:
    calls = rollouts({"q": "a", "n": 1}, {"q": "b", "n": 1}, {"n": 1, "q": "a"}, {"q": "b", "n": 2})
    assert grouped(trajectory_groups(calls, "output.score")) == [[0, 2], [1], [3]]
    assert grouped(trajectory_groups(calls, "output.score", group_by="inputs.q")) == [[0, 2], [1, 3]]
    assert grouped(trajectory_groups(calls, "output.score", group_by=["inputs.q", "inputs.n"])) == [[0, 2], [1], [3]]
    with pytest.raises(ValueError, match="group_by"):
        trajectory_groups(calls, "output.score", group_by="q")


def test_completions_are_grouped_by_their_prompt() -> None:
    """Not by seed or temperature, which differ between the samples of a group."""
    calls = [chat(f"c{n}", None, n, [USER], sampled("x", n)) for n in range(3)]
    for number, item in enumerate(calls):
        item["inputs"]["seed"] = number
    assert grouped(trajectory_groups(calls, lambda subject: subject["inputs"]["seed"])) == [[0, 1, 2]]


def test_failed_rollouts_are_exceptions_of_their_group() -> None:
    calls = rollouts({"q": 1}, {"q": 1})
    calls[1]["exception"] = "Traceback (most recent call last):\n  ...\nValueError: too long: 3"
    (group,) = trajectory_groups(calls, "output.score")
    TrajectoryGroup.model_validate(group)
    assert [item["type"] for item in group["exceptions"]] == ["ValueError"]
    assert group["exceptions"][0]["message"] == "too long: 3"
    assert grouped([group]) == [[0]]


def test_what_is_left_out_is_counted() -> None:
    calls = rollouts({"q": 1}, {"q": 1}, {"q": 1}, {"q": 1})
    calls[1]["output"] = None
    calls[2] |= {"output": None, "ended_at": None}
    calls[7]["inputs"] = {"prompt": "no messages"}
    calls[4]["output"]["choices"][0]["logprobs"] = None
    calls.append(call("alone", output={"score": 1}))
    found = collect(calls, "output.score")
    assert {name: count for name, count in found.counts.items() if count} == {
        "calls": 5,
        "groups": 1,
        "trajectories": 1,
        "choices": 1,
        "choices_without_logprobs": 1,
        "without_reward": 1,
        "unfinished": 1,
        "without_messages": 1,
        "without_completions": 1,
    }
    assert collect(calls, "output.score", group_by="inputs.z").counts["without_group"] == 5


def test_a_completion_belongs_to_the_nearest_chosen_call() -> None:
    outer, inner = call("outer", output={"score": 1}), call("inner", "outer", 1, output={"score": 2})
    deep, shallow = (
        chat("deep", "inner", 2, [USER], sampled("x", 1)),
        chat("shallow", "outer", 3, [USER], sampled("y", 2)),
    )
    calls = [outer, inner, deep, shallow]
    groups = trajectory_groups(calls, "output.score", subjects=["outer", "inner"])
    items = [trajectory["messages_and_choices"][1] for group in groups for trajectory in group["trajectories"]]
    assert items == [shallow["output"]["choices"][0], deep["output"]["choices"][0]]


def test_call_objects_of_the_sdk_are_read_too() -> None:
    fields = chat("a", None, 0, [USER], sampled("x", 1))
    fields["started_at"] = datetime(2026, 1, 1, tzinfo=UTC)
    assert only(trajectory_groups([SimpleNamespace(**fields)], lambda _: 0.5))["reward"] == 0.5


def test_stored_objects_lose_the_names_of_their_classes() -> None:
    """As the SDK stores the response object of the openai package."""
    answer = chat("a", None, 0, [{"_type": "Message", **USER}], {"_type": "Choice", **sampled("x", 1)})
    assert only(trajectory_groups([answer], lambda _: 1.0))["messages_and_choices"] == [USER, sampled("x", 1)]


def test_the_public_names_are_there() -> None:
    assert all(getattr(training, name) is not None for name in training.__all__)
    with pytest.raises(AttributeError):
        _ = training.nothing

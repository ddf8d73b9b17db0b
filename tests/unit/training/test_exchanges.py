"""Trajectories as openpipe-art 0.5.23 captures them: requests and responses in place of messages and choices."""

import json
from typing import Any

import pytest

from heddle.errors import ValidationFailed
from heddle.training.intake import check
from tests.support.trajectories import said, user

Json = dict[str, Any]
POLICY = "wandb-artifact:///team/lab/agent"
ASKED = user("Say yes, no or maybe.")


def exchange(messages: list[Json], answer: str, model: str = POLICY, at: int = 0, **request: Any) -> Json:
    """One captured chat completion."""
    response = {"choices": [said(answer)], "model": "served", "system_fingerprint": "heddle-tiny-agent@3"}
    body = {"request": {"model": model, "messages": messages, "temperature": 1.0, **request}, "response": response}
    return {**body, "model": model, "start_time": f"2026-01-01T00:00:0{at}Z", "end_time": "2026-01-01T00:00:09Z"}


def taken(exchanges: Json, **fields: Any) -> Json:
    """The trajectory that a job keeps of captured requests."""
    body = {
        "model_id": "00000000-0000-4000-8000-000000000000",
        "trajectory_groups": [{"trajectories": [{"exchanges": exchanges, "reward": 1.0, **fields}]}],
    }
    groups = check("job", json.dumps(body).encode())[1]
    assert groups is not None
    return dict(groups[0]["trajectories"][0])


def test_turns_of_one_conversation() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    second = [ASKED, {"role": "assistant", "content": "yes"}, user("Sure?")]
    found = taken(
        {
            "chat_completions": [
                exchange(second, "no", f"{POLICY}:step3", 2, tools=tools),
                exchange([ASKED], "yes", at=1, tools=tools),
            ]
        },
        metadata={"nested": {"a": [1]}},
    )
    items = found["messages_and_choices"]
    assert items[0] == ASKED and items[2] == user("Sure?") and len(items) == 4
    assert [items[at]["message"]["content"] for at in (1, 3)] == ["yes", "no"]
    assert items[1]["logprobs"] == said("yes")["logprobs"]
    assert found["tools"] == tools and found["reward"] == 1.0 and found["metadata"] == {"nested": {"a": [1]}}
    assert "exchanges" not in found and found["additional_histories"] == []
    assert (found["initial_policy_version"], found["final_policy_version"]) == (3, 3)


def test_requests_to_other_models_are_not_trained() -> None:
    others = [exchange([ASKED], "good", name) for name in ("heddle-tiny", "gpt-5", "openai/gpt-5")]
    messages = [{"request": {"model": "claude", "messages": []}, "response": {}}]
    found = taken({"chat_completions": [*others, exchange([ASKED], "yes")], "messages": messages})
    assert [item.get("role") or item["message"]["content"] for item in found["messages_and_choices"]] == ["user", "yes"]
    assert "messages_and_choices" not in taken({"chat_completions": others})


def test_another_conversation_is_a_further_history() -> None:
    other = user("Something else.")
    found = taken({"chat_completions": [exchange([ASKED], "yes"), exchange([other], "no", at=1)]})
    (history,) = found["additional_histories"]
    assert history["messages_and_choices"][0] == other


@pytest.mark.parametrize(
    ("exchanges", "fields", "place", "words"),
    [
        (
            {"chat_completions": [exchange([ASKED], "a"), exchange([ASKED], "a", "heddle:///team/lab/b@2")]},
            {},
            ["exchanges"],
            "team/lab/agent, team/lab/b",
        ),
        ({"responses": [{"request": {"model": POLICY}}]}, {}, ["exchanges"], "got responses"),
        ({"chat_completions": [exchange([ASKED], "a")]}, {"messages_and_choices": [ASKED]}, [], "not both"),
        (
            {"chat_completions": [{"request": {"messages": []}}]},
            {},
            ["exchanges", "chat_completions", 0, "response"],
            "",
        ),
        (
            {"chat_completions": [{"request": {"messages": [5]}, "response": {"choices": []}}]},
            {},
            ["exchanges", "chat_completions", 0, "request", "messages", 0],
            "",
        ),
    ],
)
def test_what_is_refused(exchanges: Json, fields: Json, place: list[Any], words: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        taken(exchanges, **fields)
    (problem,) = refused.value.detail
    assert problem["loc"] == ["body", "trajectory_groups", 0, "trajectories", 0, *place] and words in problem["msg"]

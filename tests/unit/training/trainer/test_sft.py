"""Supervised jobs: which tokens are trained, in which steps, and that the model learns them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.training.config import SftConfig  # noqa: E402
from heddle.training.messages import Message, Started, Stepped  # noqa: E402
from heddle.training.sequences import TrainingError  # noqa: E402
from heddle.training.trainer.rows import make_rows, render_examples  # noqa: E402
from heddle.wire.jsontypes import Json  # noqa: E402
from tests.unit.training.trainer.jobs import END, RENDERER, make_task, perform  # noqa: E402

CHAT = [
    {"role": "user", "content": "Say abc"},
    {"role": "assistant", "content": "abc"},
    {"role": "user", "content": "Say x"},
    {"role": "assistant", "content": "x"},
]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class ThinkingRenderer:
    """A template that keeps thoughts only in the last answer, one id per letter."""

    vocab_size = 256

    def render(self, messages: Sequence[Json], tools: Sequence[Json] | None, *, generation_prompt: bool) -> list[int]:
        del tools
        text = ""
        for place, message in enumerate(messages):
            thought = "<t>" if message["role"] == "assistant" and place == len(messages) - 1 else ""
            text += f"{message['role'][0]}{thought}{message['content']}|"
        return list((text + ("a" if generation_prompt else "")).encode())

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_id(self, token: str) -> int | None:
        return None


def shown(ids: Sequence[int], mask: Sequence[bool]) -> str:
    """Text with the trained part in capitals."""
    return "".join(chr(token).upper() if trained else chr(token) for token, trained in zip(ids, mask, strict=True))


def test_answers_are_trained_with_the_mark_of_their_end() -> None:
    (example,) = render_examples({"messages": CHAT}, RENDERER, "all", "row 0")
    assert example.ids == RENDERER.render(CHAT, None, generation_prompt=False)
    trained = [token for token, own in zip(example.ids, example.mask, strict=True) if own]
    answers = [RENDERER.encode("abc"), RENDERER.encode("x")]
    for answer in answers:
        assert trained[: len(answer) + 1] == [*answer, END]
        rest = trained[len(answer) + 1 :]
        trained = rest[next((place for place, token in enumerate(rest) if token in answers[1]), len(rest)) :]
    assert trained == []
    (last,) = render_examples({"messages": CHAT}, RENDERER, "last", "row 0")
    assert last.ids == example.ids
    assert sum(last.mask) < sum(example.mask)
    assert last.mask[-2:] == example.mask[-2:]


def test_a_template_that_rewrites_turns_gives_a_sequence_for_each() -> None:
    found = [
        shown(example.ids, example.mask)
        for example in render_examples({"messages": CHAT}, ThinkingRenderer(), "all", "")
    ]
    assert found == ["uSay abc|a<T>ABC|", "uSay abc|aabc|uSay x|a<T>X|"]


def test_long_batches_are_computed_in_parts() -> None:
    parts = list(render_examples({"messages": CHAT}, RENDERER, "all", "")) * 5
    length = len(parts[0].ids)
    found = list(make_rows(parts, 2 * length + 1))
    assert [len(row.tokens) for row in found] == [2 * length, 2 * length, length]
    assert found[0].positions.tolist() == list(range(length)) * 2
    assert sum(row.mask.sum() for row in found) == 5 * sum(parts[0].mask)


def sft_task(folder: Path, chats: Sequence[Json], config: SftConfig, **changes: Any) -> Any:
    return make_task(folder, {"rows": list(chats)}, kind="sft", config=config.as_json(), **changes)


def data_of(messages: Sequence[Message]) -> list[dict[str, float]]:
    return [message.data for message in messages if isinstance(message, Stepped)]


def test_it_learns_and_counts(tmp_path: Path) -> None:
    chats = [{"messages": CHAT}] * 5 + [
        {"messages": CHAT[:1]},
        {"messages": [CHAT[0] | {"content": "a " * 400}, CHAT[1]]},
    ]
    task = sft_task(tmp_path, chats, SftConfig(batch_size=2, learning_rate=5e-3), max_length=200)
    messages = perform(task)
    started = messages[0]
    assert isinstance(started, Started)
    assert started.num_sequences == 3
    assert started.data["data/rows_without_answers"] == 1
    assert started.data["data/dropped_too_long"] == 1
    steps = data_of(messages)
    assert [step["num_trajectories"] for step in steps] == [2, 2, 1]
    assert steps[-1]["loss/train"] < 0.7 * steps[0]["loss/train"]
    assert {step["loss/learning_rate"] for step in steps} == {5e-3}


def test_a_step_does_not_depend_on_how_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for place, tokens in enumerate((8192, 30)):
        monkeypatch.setattr("heddle.training.trainer.rows.TOKENS_AT_ONCE", tokens)
        task = sft_task(tmp_path / str(place), [{"messages": CHAT}] * 4, SftConfig(batch_size=4))
        found.append(data_of(perform(task))[0])
        del found[-1]["tokens_per_second"]
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_rate_for_each_step(tmp_path: Path) -> None:
    chats = [{"messages": CHAT}] * 4
    task = sft_task(tmp_path / "fits", chats, SftConfig(learning_rate=[1e-4, 1e-5]))
    assert SftConfig(**task.config).learning_rate == [1e-4, 1e-5]
    assert [step["loss/learning_rate"] for step in data_of(perform(task))] == [1e-4, 1e-5]
    with pytest.raises(TrainingError, match="learning_rate has 3 values for 2 gradient steps"):
        perform(sft_task(tmp_path / "not", chats, SftConfig(learning_rate=[1e-4, 1e-5, 1e-6])))


def test_what_cannot_be_rendered_fails_by_place(tmp_path: Path) -> None:
    bad = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, CHAT[1]]}
    with pytest.raises(TrainingError, match="row 1, message 1: cannot be rendered"):
        perform(sft_task(tmp_path, [{"messages": CHAT}, bad], SftConfig()))

"""The renderer of recorded conversations: the chat's own prompt, and reasons for what cannot be rendered."""

import json
from pathlib import Path

import pytest

from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.trajectory_renderer import TrajectoryRenderer

USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def renderer() -> TrajectoryRenderer:
    return TrajectoryRenderer.load(TINY_FOLDER)


def test_with_and_without_the_generation_prompt(renderer: TrajectoryRenderer) -> None:
    whole = renderer.render(USER, None, generation_prompt=True)
    before = renderer.render(USER, None, generation_prompt=False)
    text = renderer.tokenizer.decode(whole, skip_special_tokens=False)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert whole[: len(before)] == before and len(before) < len(whole)


def test_ids_of_tokens(renderer: TrajectoryRenderer) -> None:
    assert renderer.vocab_size == 968
    assert [renderer.token_id(f"token_id:{n}") for n in (0, 967, 968)] == [0, 967, None]
    assert renderer.token_id("token_id:" + "9" * 5000) is None
    assert renderer.token_id("<|im_end|>") == 2
    assert all(renderer.token_id(renderer.tokenizer.token_text(n)) == n for n in (40, 300, 500))
    assert renderer.token_id("no such token") is None and renderer.token_id("token_id:x") is None
    assert renderer.encode("Hello") == renderer.tokenizer.encode("Hello")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages must not be empty"),
        ([{"content": "x"}], "messages.0.role: Field required"),
        ([*USER, {"role": "user", "content": 7}], "messages.1.content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.0.content.0: .*reads text"),
    ],
)
def test_what_cannot_be_rendered(renderer: TrajectoryRenderer, messages: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        renderer.render(messages, None, generation_prompt=True)


def test_a_tool_that_is_none(renderer: TrajectoryRenderer) -> None:
    with pytest.raises(ValueError, match=r"tools\.0\.function: Field required"):
        renderer.render(USER, [{"type": "function"}], generation_prompt=True)


@pytest.mark.parametrize(
    ("config", "size"), [({"vocab_size": 1000}, 1000), ({"text_config": {"vocab_size": 990}}, 990), ({}, 968)]
)
def test_the_vocabulary_is_the_models(config: dict[str, object], size: int, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((TINY_FOLDER / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert TrajectoryRenderer.load(tmp_path).vocab_size == size

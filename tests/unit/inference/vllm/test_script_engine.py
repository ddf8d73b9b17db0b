"""The engine that plays a script in place of a model (`tests.support.script_engine`)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from heddle.inference.engine.base import RequestRefused, Sampling, TokenEvent, TokenRequest
from heddle.inference.engine.local.client import LocalEngine, LocalOptions
from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.structured.guidance import Constraint
from heddle.inference.tokenizer import Tokenizer
from tests.support.script_engine import BLOCK, ScriptEngine, write_script

TOKENIZER = Tokenizer.load(TINY_FOLDER)


def engine(folder: Path, *rules: dict[str, Any]) -> ScriptEngine:
    """An engine that plays these rules."""
    return ScriptEngine(write_script(folder, list(rules)), TINY_FOLDER, LocalEngine(LocalOptions(TINY_FOLDER)).info())


def play(playing: ScriptEngine, *messages: tuple[str, str], grammar: str = "", most: int = 1000) -> list[TokenEvent]:
    """The events of one request with messages as roles and texts."""
    text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in messages) + "<|im_start|>assistant\n"
    constraint = Constraint(json.dumps({"grammars": [{"lark_grammar": grammar}]})) if grammar else None
    request = TokenRequest("1", tuple(TOKENIZER.encode(text)), Sampling(most, 1), constraint=constraint)

    async def collect() -> list[TokenEvent]:
        return [event async for event in playing.generate(request)]

    return asyncio.run(collect())


def said(events: list[TokenEvent]) -> str:
    """The text of events, special tokens included."""
    return TOKENIZER.decode([token for event in events for token in event.token_ids], skip_special_tokens=False)


def test_the_first_rule_that_fits_is_played(tmp_path: Path) -> None:
    """By the last message, its role, the number of results and the prompt; as text, thoughts and calls of tools."""
    call = {"name": "look", "arguments": {"at": "it"}}
    playing = engine(
        tmp_path,
        {"role": "tool", "results": 2, "say": "Both seen."},
        {"role": "tool", "calls": [call, call]},
        {"prompt": "be brief", "last": "^why", "say": "So."},
        {"last": "^why", "think": "Hm.", "say": "Because."},
        {"last": "^call me (?P<name>\\w+)", "say": "Hello {name}, {other}."},
        {"say": "Hello."},
    )
    assert said(play(playing, ("user", "hi"))) == "Hello.<|im_end|>"
    assert said(play(playing, ("user", "call me Ann"))) == "Hello Ann, {other}.<|im_end|>"
    assert said(play(playing, ("user", "why?"))) == "<think>Hm.</think>Because.<|im_end|>"
    assert said(play(playing, ("system", "be brief"), ("user", "why?"))) == "So.<|im_end|>"
    written = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    assert said(play(playing, ("user", "why?"), ("tool", "1"))) == f"{written}\n{written}<|im_end|>"
    assert said(play(playing, ("user", "why?"), ("tool", "1"), ("tool", "2"))) == "Both seen.<|im_end|>"


def test_tokens_ends_and_the_cache(tmp_path: Path) -> None:
    """One token an event; the last says why it ends; whole blocks of an earlier prompt's beginning were cached."""
    playing = engine(tmp_path, {"say": "Hello there."})
    question = ("user", "how are you " * 20)
    first = play(playing, question)
    assert [len(event.token_ids) for event in first] == [1] * (len(TOKENIZER.encode("Hello there.")) + 1)
    assert [event.finish_reason for event in first] == [*[None] * (len(first) - 1), "stop"]
    assert (first[0].cached_tokens, first[1].cached_tokens) == (0, None)
    short = play(playing, question, ("assistant", "Hello there."), ("user", "and you?"), most=2)
    assert [event.finish_reason for event in short] == [None, "length"]
    common = len(TOKENIZER.encode("<|im_start|>user\n" + question[1] + "<|im_end|>\n<|im_start|>assistant\n"))
    assert short[0].cached_tokens == common // BLOCK * BLOCK > 0


def test_a_constraint_passes_over_what_it_does_not_allow(tmp_path: Path) -> None:
    """The next text is played that it allows; where there is none the request is refused, as without any rule."""
    playing = engine(tmp_path, {"last": "x", "say": ["no", "maybe"]}, {"last": "x", "say": "yes"})
    assert said(play(playing, ("user", "x"), grammar='start: "maybe" | "yes"')) == "maybe<|im_end|>"
    assert said(play(playing, ("user", "x"), grammar='start: "yes"')) == "yes<|im_end|>"
    for message, grammar in (("x", 'start: "never"'), ("y", "")):
        with pytest.raises(RequestRefused, match="the script has nothing for"):
            play(playing, ("user", message), grammar=grammar)


def test_a_rule_with_an_unknown_key_is_no_rule(tmp_path: Path) -> None:
    """A condition that is misspelt would always hold."""
    with pytest.raises(TypeError, match="lats"):
        engine(tmp_path, {"lats": "x", "say": "hi"})

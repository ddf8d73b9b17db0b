"""Grammars in the engine core."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
llguidance = pytest.importorskip("llguidance")
tokenizers = pytest.importorskip("tokenizers")

import numpy as np  # noqa: E402

from heddle.inference.engine.base import EngineFailed, RequestRefused  # noqa: E402
from heddle.inference.engine.local.grammar import Grammars  # noqa: E402
from heddle.inference.structured import guidance  # noqa: E402
from heddle.inference.structured.guidance import Constraint  # noqa: E402
from tests.unit.inference.engine.conftest import CoreMaker  # noqa: E402
from tests.unit.inference.engine.helpers import request, run  # noqa: E402

PROMPT = list(range(40, 60))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def regex(text: str, after: tuple[int, ...] = ()) -> Constraint:
    return Constraint(llguidance.LLMatcher.grammar_from_regex(text), after)


def schema(content: Any) -> Constraint:
    compact = {"whitespace_flexible": False}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(content), overrides=compact)
    return Constraint(grammar)


@pytest.fixture(scope="module")
def text_of(folder: Path) -> Any:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).decode


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_the_output_is_what_the_grammar_says_and_ends_with_it(
    make_core: CoreMaker, text_of: Any, temperature: float
) -> None:
    fields = {"temperature": temperature, "max_tokens": 60}
    results = run(
        make_core(),
        request(PROMPT, constraint=schema(SCHEMA), **fields),
        request(PROMPT, constraint=regex("[0-9]{3}-[a-c]{2}"), **fields),
        request(PROMPT, ignore_eos=True, **fields),
        request(PROMPT, constraint=regex("[0-9]{3}-[a-c]{2}"), ignore_eos=True, **fields),
        request(PROMPT, constraint=regex("[0-9]{3}-[a-c]{2}"), min_tokens=40, **fields),
    )
    value = json.loads(text_of(results[0].tokens))
    assert set(value) == {"name", "age"} and value["name"] in ("ann", "bob") and 0 <= value["age"] <= 99
    for result in (results[1], results[3], results[4]):
        text = text_of(result.tokens)
        assert len(text) == 6 and text[:3].isdecimal() and text[3] == "-" and set(text[4:]) <= set("abc")
    assert [result.end for result in results] == [("stop", None)] * 2 + [("length", None)] + [("stop", None)] * 2
    assert [result.tokens[-1] == 2 for result in results[:2]] == [True, True], "the end token is drawn"
    assert [2 in result.tokens for result in results[3:]] == [False, False], "nothing can follow, and it must not"


def test_a_constraint_begins_after_its_marker(make_core: CoreMaker, text_of: Any) -> None:
    core = make_core()
    (free,) = run(core, request(PROMPT, max_tokens=12, temperature=1.0, ignore_eos=True))
    marker = tuple(free.tokens[2:4])
    constrained = request(
        PROMPT, constraint=regex("[0-9]{4}", after=marker), max_tokens=12, temperature=1.0, ignore_eos=True
    )
    (result,) = run(core, constrained)
    assert result.tokens[:4] == free.tokens[:4]
    assert text_of(result.tokens[4:]).isdecimal() and len(text_of(result.tokens[4:])) == 4
    (never,) = run(
        core,
        request(PROMPT, constraint=regex("[0-9]{4}", after=(3, 3)), max_tokens=12, temperature=1.0, ignore_eos=True),
    )
    assert never.tokens == free.tokens


def lark(text: str) -> Constraint:
    return Constraint(llguidance.LLMatcher.grammar_from_lark(text))


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_the_letters_of_a_special_token_are_not_that_token(
    make_core: CoreMaker, folder: Path, temperature: float
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    think = tokenizer.token_to_id("<think>")
    fields = {"max_tokens": 80, "temperature": temperature}
    letters, begun, named, ends = run(
        make_core(),
        request(PROMPT, constraint=lark('start: "<think>so 17</think>Blue."'), **fields),
        request(PROMPT, constraint=regex("[ab]{3}<think>x|c<im_end>"), **fields),
        request(PROMPT, constraint=lark('start: <think> "so" </think> "Blue."'), **fields),
        request(PROMPT, constraint=lark('start: "<|im_end|>a"'), **fields),
    )
    assert tokenizer.decode(letters.tokens[:-1], skip_special_tokens=False) == "<think>so 17</think>Blue."
    assert tokenizer.decode(begun.tokens[:-1], skip_special_tokens=False) in ("c<im_end>",) or (
        think not in begun.tokens and tokenizer.decode(begun.tokens[:-1])[3:] == "<think>x"
    )
    assert think not in letters.tokens and named.tokens[0] == think
    assert tokenizer.decode(ends.tokens[:-1], skip_special_tokens=False) == "<|im_end|>a"
    assert [each.end for each in (letters, begun, named, ends)] == [("stop", None)] * 4
    assert 2 not in ends.tokens[:-1]


def test_what_others_found_of_a_grammar_takes_no_states_from_a_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guidance, "MAX_LEXER_STATES", 3000)
    grammars = Grammars(folder / "tokenizer.json", 512, (2,))
    words = np.zeros(grammars.words, dtype=np.int32)

    def walk(seed: int) -> int:
        """The tokens that one matcher takes, at most 10 random ones."""
        chance, matcher = random.Random(seed), grammars.matcher(regex(".*(a.{60}|b.{61}|c.{62}|d.{63}|e.{64})x"))
        for taken in range(10):
            matcher.fill(words)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            matcher.accept([int(chance.choice(np.flatnonzero(bits)))], taken + 1)
        return 10

    # The states that all need together are many times those that one may have.
    assert [walk(seed) for seed in range(30)] == [10] * 30


def test_a_grammar_that_cannot_be_used_is_refused(make_core: CoreMaker) -> None:
    core = make_core()
    with pytest.raises(RequestRefused, match=r"the constraint cannot be used: [^\n]+$") as caught:
        core.add(1, request(PROMPT, constraint=Constraint('{"grammars": [{"lark_grammar": "start: nothing"}]}')))
    assert caught.value.param == "structured_outputs"
    assert not core.has_work


def test_a_tokenizer_that_grammars_cannot_use_is_said_to_be_so(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"decoder": None}))
    for file in (tmp_path / "tokenizer.json", tmp_path / "missing.json"):
        with pytest.raises(RequestRefused, match="do not work with this model's tokenizer") as caught:
            Grammars(file, 512, (2,)).matcher(regex("[0-9]"))
        assert caught.value.param == "structured_outputs"


def test_a_grammar_without_room_among_the_allowed_tokens_fails_alone(make_core: CoreMaker) -> None:
    core = make_core()
    good, bad = run(
        core,
        request(PROMPT, constraint=regex("[ab]{2}")),
        request(PROMPT, constraint=regex("[0-9]{4}"), allowed_token_ids=(3, 4, 5)),
    )
    assert good.end == ("stop", None)
    assert isinstance(bad.failure, RequestRefused)
    assert core.scheduler.pool.used == 0


def test_a_finished_grammar_whose_end_is_not_allowed_ends_all_the_same(make_core: CoreMaker, folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    allowed = tuple(tokenizer.token_to_id(text) for text in "ab")
    (result,) = run(make_core(), request(PROMPT, constraint=regex("[ab]{3}"), allowed_token_ids=allowed))
    assert len(result.tokens) == 3 and set(result.tokens) <= set(allowed)
    assert result.end == ("stop", None)


def test_after_a_preemption_a_grammar_goes_on_where_it_was(make_core: CoreMaker, text_of: Any) -> None:
    core = make_core(blocks=14)
    constraint = regex("[a-z]{50}")
    results = run(core, *(request([*range(40, 90), seed], constraint=constraint, max_tokens=60) for seed in (5, 6, 7)))
    assert core.scheduler.preemptions > 0
    for result in results:
        assert len(text_of(result.tokens)) == 50 and text_of(result.tokens).islower()


def test_an_unexpected_error_in_one_grammar_fails_its_request_only(
    make_core: CoreMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core()
    core.add(1, request(PROMPT, max_tokens=3, ignore_eos=True))
    core.add(2, request(PROMPT[1:], max_tokens=3, constraint=regex("[0-9]{9}")))
    monkeypatch.setattr(core._sequences[2].matcher, "accept", lambda *_: 1 / 0, raising=False)
    events = [event for _ in range(3) for event in core.step()]
    assert [type(event.failure) for event in events if event.number == 2] == [ZeroDivisionError]
    assert [event.end for event in events if event.number == 1][-1] == ("length", None)
    assert not isinstance(events[0].failure, EngineFailed)

"""What the front does for an engine that can do less than the embedded one."""

import json
from dataclasses import replace

import pytest
from llguidance import LLMatcher, LLTokenizer

from heddle.inference.chat.plan import Rollout
from heddle.inference.chat.request import parse_request
from heddle.inference.engine.base import EngineInfo, Sampling
from heddle.inference.engine.vllm.protocol import join_lark
from heddle.inference.prompt.reasoning import ReasoningMarks, finish_reasoning_before
from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.structured.constraints import StructuredOutputs, constraint_for
from heddle.inference.tokenizer import Tokenizer

INFO = EngineInfo("x", max_model_len=100, vocab_size=10, eos_token_ids=(2,))


@pytest.fixture(scope="module")
def made() -> Tokenizer:
    """The shipped model's tokenizer."""
    return Tokenizer.load(TINY_FOLDER)


def written(made: Tokenizer, vocabulary: LLTokenizer, grammar: str, text: str) -> tuple[str, bool]:
    """How much of a text the grammar allows, and whether it may end there."""
    matcher = LLMatcher(vocabulary, grammar)
    ids = made.encode(text)
    count = next((n for n, token in enumerate(ids) if not matcher.try_consume_tokens([token])), len(ids))
    return made.decode(ids[:count], skip_special_tokens=False), matcher.is_accepting()


@pytest.mark.parametrize("is_one_token", [True, False])
def test_a_constraint_after_a_block_that_the_prompt_opened(made: Tokenizer, is_one_token: bool) -> None:
    """Free text up to the end mark, and then what is wanted: also as the one text that vLLM takes."""
    end = "</think>" if is_one_token else "<end-of-thought>"
    marks = ReasoningMarks("<think>", end, (), tuple(made.encode(end)))
    assert (len(marks.end_token_ids) == 1) is is_one_token
    vocabulary = LLTokenizer(made.backend.to_str(), eos_token=made.token_id("<|im_end|>"))
    tag = {"type": "structural_tag", "format": {"type": "grammar", "grammar": 'start: "@g0" /[0-9]{2}/'}}
    wanted = constraint_for(StructuredOutputs.model_validate({"structural_tag": tag}), None, vocabulary)
    assert wanted is not None
    grammar = finish_reasoning_before(wanted.grammar, vocabulary, marks)
    for form in (grammar, LLMatcher.grammar_from_lark(join_lark(grammar))):
        assert written(made, vocabulary, form, f"1 < 2{end}@g042") == (f"1 < 2{end}@g042", True)
        assert written(made, vocabulary, form, f"{end}no") == (end, False)
        assert written(made, vocabulary, form, "for ever") == ("for ever", False)


def test_a_json_schema_stays_what_it_is_in_one_text(made: Tokenizer) -> None:
    vocabulary = LLTokenizer(made.backend.to_str(), eos_token=made.token_id("<|im_end|>"))
    schema = {"type": "object", "properties": {"@g0": {"enum": ["/a/", '"@g0"']}}, "required": ["@g0"]}
    wanted = constraint_for(StructuredOutputs.model_validate({"json": schema}), None, vocabulary)
    assert wanted is not None
    form = LLMatcher.grammar_from_lark(join_lark(wanted.grammar))
    for value in ("/a/", '"@g0"'):
        text = json.dumps({"@g0": value})
        assert written(made, vocabulary, form, text) == (text, True)
    assert not written(made, vocabulary, form, '{"@g0": "b"}')[1]


@pytest.mark.parametrize(("scales", "expected"), [(True, 0.5), (False, 1.0)])
def test_log_probabilities_are_raw_where_the_engine_has_no_others(
    made: Tokenizer, scales: bool, expected: float
) -> None:
    rollout = Rollout.of(parse_request({"messages": [{"role": "user", "content": "x"}]}), made)
    sampling = Sampling(max_tokens=1, seed=0, temperature=0.5)
    assert rollout.sampling(sampling, replace(INFO, scales_logprobs=scales)).logprobs_temperature == expected

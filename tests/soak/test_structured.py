"""Answers of the tiny model at temperature 1 under many schemas: what is finished is valid, and nearly all finish.

HEDDLE_SOAK=1 takes all 200 schemas, otherwise 40 of them.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llguidance")

from jsonschema import Draft202012Validator  # noqa: E402

from heddle.errors import InvalidRequest  # noqa: E402
from heddle.inference.engine.base import Sampling, TokenRequest  # noqa: E402
from heddle.inference.engine.local.engine import EngineCore  # noqa: E402
from heddle.inference.engine.local.options import LocalOptions, read_info  # noqa: E402
from heddle.inference.served_model import TINY_FOLDER  # noqa: E402
from heddle.inference.structured.constraints import StructuredOutputs, constraint_for  # noqa: E402
from heddle.inference.structured.guidance import Constraint, grammar_tokenizer  # noqa: E402
from heddle.inference.tokenizer import Tokenizer  # noqa: E402
from heddle.models.load import load_model  # noqa: E402
from tests.soak.schemas import REFUSED, Case, sample  # noqa: E402
from tools.tiny_model.chat import render  # noqa: E402

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SCHEMAS = 200 if SOAK else 40
MAX_TOKENS = 512
FINISHED = 0.95

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.soak,
    pytest.mark.skipif(not (TINY_FOLDER / "model.safetensors").is_file(), reason="the tiny model is not built"),
]


@dataclass
class Answer:
    """The text for one case, and how it ended."""

    case: Case
    text: str
    finish: str


@pytest.fixture(scope="module")
def core() -> Iterator[EngineCore]:
    """The tiny model on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    options = LocalOptions(folder=TINY_FOLDER, device="cpu", max_running=16)
    yield EngineCore(
        load_model(TINY_FOLDER, device="cpu"), options, read_info("local", options).eos_token_ids, kv_bytes=64 << 20
    )
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def answers(core: EngineCore) -> list[Answer]:
    """One sampled answer per schema."""
    tokenizer = Tokenizer.load(TINY_FOLDER)
    words = grammar_tokenizer(TINY_FOLDER / "tokenizer.json", core.model.vocab_size, core.eos)
    cases = sample(SCHEMAS)
    tokens: dict[int, list[int]] = {number: [] for number in range(len(cases))}
    ends: dict[int, str] = {}
    for number, case in enumerate(cases):
        constraint = constraint_for(StructuredOutputs(json=case.schema), None, words)
        assert constraint is not None
        core.add(number, _request(number, tokenizer, case, constraint))
    while core.has_work:
        for event in core.step():
            assert event.failure is None, (cases[event.number].name, event.failure)
            if event.token is not None:
                tokens[event.number].append(event.token)
            if event.end is not None:
                ends[event.number] = event.end[0]
    return [Answer(case, tokenizer.decode(tokens[number]), ends[number]) for number, case in enumerate(cases)]


def _request(number: int, tokenizer: Tokenizer, case: Case, constraint: Constraint) -> TokenRequest:
    asked = f"Give an example of {case.name.replace('-', ' ')} as JSON."
    prompt = tokenizer.encode(render([{"role": "user", "content": asked}], add_generation_prompt=True))
    sampling = Sampling(max_tokens=MAX_TOKENS, seed=number, temperature=1.0)
    return TokenRequest(id=str(number), prompt=tuple(prompt), sampling=sampling, constraint=constraint)


def test_every_finished_answer_is_valid(answers: list[Answer]) -> None:
    """With formats checked; the text is nothing but the JSON value."""
    finished = [answer for answer in answers if answer.finish == "stop"]
    for answer in finished:
        validator = Draft202012Validator(answer.case.schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        problems = [error.message for error in validator.iter_errors(json.loads(answer.text))]
        assert not problems, (answer.case.name, answer.text, problems)
    counts = Counter((answer.case.bounded, answer.finish) for answer in answers)
    print(f"\n{len(answers)} schemas:", {f"bounded={key[0]} {key[1]}": value for key, value in sorted(counts.items())})
    assert len({answer.text for answer in finished}) > len(finished) // 2


def test_nearly_all_bounded_schemas_finish(answers: list[Answer]) -> None:
    """Within 512 tokens, whitespace included."""
    bounded = [answer for answer in answers if answer.case.bounded]
    cut = [answer for answer in bounded if answer.finish != "stop"]
    assert len(bounded) >= SCHEMAS // 2
    assert len(cut) <= (1 - FINISHED) * len(bounded), [(answer.case.name, answer.text[-200:]) for answer in cut]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused(name: str) -> None:
    """Each with the place and a reason on one line."""
    with pytest.raises(InvalidRequest) as refused:
        constraint_for(StructuredOutputs.model_validate({"json": REFUSED[name]}))
    assert refused.value.reason.startswith("structured_outputs.json: ")
    assert len(refused.value.reason) < 500 and "\n" not in refused.value.reason

"""A model as the judge: which objects describe one, and what it is asked."""

import asyncio
from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.evals.judge import JudgeScorer, judge

Json = dict[str, Any]
PROMPT = "Is {output} right for {question}? {{json}} {inputs[meta][0]}"
ROW = {"question": "2 + 2", "meta": ["sum"], "topic": "numbers"}


def model(**parameters: Any) -> Json:
    """A published model."""
    given = {"_type": "Params", "temperature": 0.5, "response_format": "json_object", **parameters}
    return {"_class_name": "LLMStructuredCompletionModel", "llm_model_id": "judge-model", "default_params": given}


def made(template: Any = PROMPT, value: Json | None = None, /, **parameters: Any) -> JudgeScorer | str:
    """The judge of a published scorer."""
    return judge("j", "ref", value or {}, model(**parameters), template)


def asked(scorer: JudgeScorer | str, answer: str = '{"score": 1}', row: Json = ROW) -> tuple[Any, Json]:
    """The score, and the request that was made."""
    assert isinstance(scorer, JudgeScorer), scorer
    bodies: list[Json] = []

    async def ask(body: Json) -> Json:
        bodies.append(body)
        return {"choices": [{"message": {"content": answer}}]}

    score = asyncio.run(scorer.score("4", row, ask))
    return score, bodies[0]


def test_the_judge_sees_the_answer_and_its_row() -> None:
    template = [{"_type": "Message", "role": "system", "content": "You judge."}]
    score, body = asked(made(messages_template=template, max_tokens=9, n_times=1, stop=None))
    assert score == {"score": 1}
    assert body == {
        "model": "judge-model",
        "temperature": 0.5,
        "max_tokens": 9,
        "response_format": {"type": "json_object"},
        "messages": [
            {"role": "system", "content": "You judge."},
            {"role": "user", "content": "Is 4 right for 2 + 2? {json} sum"},
        ],
    }


def test_names_can_stand_for_other_columns() -> None:
    scorer = made("{output} {asked} {topic}", {"column_map": {"asked": "question"}})
    assert isinstance(scorer, JudgeScorer) and scorer.needs == ["question", "topic"]
    assert asked(scorer)[1]["messages"][0]["content"] == "4 2 + 2 numbers"


def test_a_stored_prompt_has_several_messages() -> None:
    stored = {"_class_name": "MessagesPrompt", "messages": [{"role": "system", "content": "Be strict."}]}
    stored["messages"].append({"role": "user", "content": "{output}"})
    assert asked(made(stored))[1]["messages"] == [*stored["messages"][:1], {"role": "user", "content": "4"}]


def test_an_answer_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="answered no JSON: 'good'"):
        asked(made(), "good")
    with pytest.raises(InvalidRequest, match=r"names \[0\]"):
        asked(made(), row={**ROW, "meta": []})


@pytest.mark.parametrize(
    ("prompt", "value", "parameters", "reason"),
    [
        (PROMPT, {}, {"response_format": "text"}, "a text is no score"),
        (PROMPT, {}, {"response_format": None}, "a text is no score"),
        (PROMPT, {}, {"n_times": 2}, "n_times"),
        (PROMPT, {}, {"functions": [{}]}, "functions"),
        (PROMPT, {}, {"prompt": "weave:///e/p/object/x:v0"}, "prompt"),
        (PROMPT, {"enable_image_input_scoring": True}, {}, "media"),
        (PROMPT, {"column_map": []}, {}, "column_map"),
        (None, {}, {}, "neither a text nor messages"),
        ({"messages": [{"role": "user", "content": []}]}, {}, {}, "neither a text nor messages"),
        ("{output.__class__}", {}, {}, "no name of a column"),
        ("{output!r}", {}, {}, "layout"),
        ("{output:>9}", {}, {}, "layout"),
        ("{}", {}, {}, "no name of a column"),
        ("{output", {}, {}, "cannot be filled in"),
    ],
)
def test_judges_that_cannot_be_run_are_refused(prompt: Any, value: Json, parameters: Json, reason: str) -> None:
    found = made(prompt, value, **parameters)
    assert isinstance(found, str) and reason in found


@pytest.mark.parametrize("model_id", [None, "weave:///e/p/object/m:v0", "custom::other::m"])
def test_a_judge_of_another_server_is_refused(model_id: Any) -> None:
    found = judge("j", "ref", {}, {**model(), "llm_model_id": model_id}, PROMPT)
    assert isinstance(found, str) and "no model of this server" in found
    assert "is no LLMStructuredCompletionModel but Other" in str(judge("j", "", {}, {"_type": "Other"}, PROMPT))

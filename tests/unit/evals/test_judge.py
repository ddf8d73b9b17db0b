"""A model as the judge: which objects describe one, and what it is asked."""

import asyncio
from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.evals.objects import StructuredModel
from heddle.evals.scorers import JudgeScorer, read_judge

Json = dict[str, Any]
PROMPT = "Is {output} right for {question}? {{json}} {inputs[meta][0]}"
ROW = {"question": "2 + 2", "meta": ["sum"], "topic": "numbers"}


def model(prompt: list[Json] | None = None, **parameters: Any) -> StructuredModel:
    """A model that was read."""
    given = {"temperature": 0.5, "response_format": "json_object", **parameters}
    return StructuredModel("ref", "judge-model", {key: item for key, item in given.items() if item is not None}, prompt)


def made(template: Any = PROMPT, value: Json | None = None, /, **parameters: Any) -> JudgeScorer | str:
    """The judge of a published scorer."""
    return read_judge("j", "ref", value or {}, model(**parameters), template)


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
    template = [{"_type": "Message", "role": "system", "content": "You judge {as you like}."}]
    score, body = asked(made(messages_template=template, max_tokens=9, n_times=1, stop=None))
    assert score == {"score": 1}
    assert body == {
        "model": "judge-model",
        "temperature": 0.5,
        "max_tokens": 9,
        "n": 1,
        "response_format": {"type": "json_object"},
        "messages": [
            {"role": "system", "content": "You judge {as you like}."},
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


def test_a_prompt_may_have_parts_and_its_model_a_prompt_of_its_own() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "{output}!"}]}]
    scorer = read_judge(
        "j", "ref", {}, model(prompt=[{"role": "system", "content": "Be {strict}."}]), {"messages": parts}
    )
    assert asked(scorer)[1]["messages"] == [
        {"role": "system", "content": "Be {strict}."},
        {"role": "user", "content": [{"type": "text", "text": "4!"}]},
    ]


def test_a_text_is_the_answer_of_a_judge_of_texts() -> None:
    scorer = made(response_format="text")
    assert isinstance(scorer, JudgeScorer) and not scorer.is_numeric
    assert asked(scorer, "fine")[0] == "fine"


def test_an_answer_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="judge j: The model did not return valid JSON: 'good'"):
        asked(made(), "good")
    with pytest.raises(InvalidRequest, match="returned an empty answer"):
        asked(made(), " ")
    with pytest.raises(InvalidRequest, match=r"uses \[0\]"):
        asked(made(), row={**ROW, "meta": []})
    with pytest.raises(InvalidRequest, match=r"uses \[question\]"):
        asked(made(), row={"meta": [1]})


@pytest.mark.parametrize(
    ("prompt", "value", "parameters", "reason"),
    [
        (PROMPT, {}, {"response_format": None}, "got None"),
        (PROMPT, {}, {"response_format": "json_schema"}, "got 'json_schema'"),
        (PROMPT, {}, {"n_times": 2}, "n_times"),
        (PROMPT, {}, {"top_k": 3}, "no parameter 'top_k'"),
        (PROMPT, {"enable_image_input_scoring": True}, {}, "media"),
        (PROMPT, {"media_scoring_json_paths": ["$.a"]}, {}, "media"),
        (PROMPT, {"column_map": [1]}, {}, "column_map"),
        (PROMPT, {"column_map": {"a": 1}}, {}, "column_map"),
        (None, {}, {}, "neither a string nor messages"),
        ({"messages": [{"role": "user", "content": 3}]}, {}, {}, "neither a string nor messages"),
        ("{output.__class__}", {}, {}, "is not a column name"),
        ("{}", {}, {}, "is not a column name"),
        ("{output", {}, {}, "cannot be rendered"),
        ("{output:>1000000000}", {}, {}, "format"),
        ("{output:{output}}", {}, {}, "format"),
        ("{output!x}", {}, {}, "conversion"),
    ],
)
def test_judges_that_cannot_be_run_are_refused(prompt: Any, value: Json, parameters: Json, reason: str) -> None:
    found = made(prompt, value, **parameters)
    assert isinstance(found, str) and reason in found, found

"""A model as the judge of answers: a prompt about the answer and its row, and a JSON object of scores back.

The objects are the SDK's own: an LLMAsAJudgeScorer that holds (or refers to) an LLMStructuredCompletionModel.
"""

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.errors import InvalidRequest
from heddle.evals.scorers import Ask

Json = dict[str, Any]
CLASS_NAME = "LLMAsAJudgeScorer"
MODEL_CLASS = "LLMStructuredCompletionModel"
_GIVEN = ("output", "inputs")
"""What a judge's prompt may name beside the columns of the row."""
_PLACE = re.compile(r"(\w+)((?:\[[^\[\]]+\])*)")
_MEDIA = ("enable_image_input_scoring", "enable_audio_input_scoring", "enable_video_input_scoring")
_PASSED_ON = ("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "stop")
_REFUSED = ("prompt", "functions")


@dataclass(frozen=True, slots=True)
class JudgeScorer:
    """One judge of an evaluation."""

    name: str
    ref: str
    prompt: Sequence[Json]
    """Messages with `{column}` places, `{output}` and `{inputs}` (the whole row)."""
    columns: Mapping[str, str]
    """Which column a name of the prompt stands for, where it is another."""
    fields: Json
    """The request to the judging model, without the messages of the prompt."""

    @property
    def needs(self) -> Sequence[str]:
        """The columns that every row must have."""
        named = {name for message in self.prompt for name in _names(message["content"])}
        return sorted(self.columns.get(name, name) for name in named if name not in _GIVEN)

    async def score(self, output: str, row: Json, ask: Ask) -> Any:
        """What the judge says, a JSON value; raises HeddleError when it answers none."""
        values = {**row, **{name: row.get(column) for name, column in self.columns.items()}}
        values |= {"output": output, "inputs": row}
        asked = [{**message, "content": _filled(message["content"], values)} for message in self.prompt]
        answer = await ask({**self.fields, "messages": [*self.fields["messages"], *asked]})
        text = str(answer["choices"][0]["message"].get("content") or "")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"The judge {self.name} answered no JSON: {text[:200]!r}") from None


def judge(name: str, ref: str, value: Json, model: Json, prompt: Any) -> JudgeScorer | str:
    """The judge that an object describes, given its model and prompt; a text when it cannot be run, saying why."""
    class_name = model.get("_class_name") or model.get("_type")
    if class_name != MODEL_CLASS:
        return f"its model is no {MODEL_CLASS} but {class_name}"
    parameters = _plain(model.get("default_params") or {})
    problem = _problem(value, model.get("llm_model_id"), parameters)
    messages = _prompt(prompt)
    if problem is not None or messages is None:
        return problem or "its scoring_prompt is neither a text nor messages of texts"
    fields = {name: parameters[name] for name in _PASSED_ON if parameters.get(name) is not None}
    template = [_plain(message) for message in parameters.get("messages_template") or ()]
    fields |= {"model": model["llm_model_id"], "messages": template, "response_format": {"type": "json_object"}}
    try:
        for message in messages:
            _names(message["content"])
    except ValueError as error:
        return f"its scoring_prompt cannot be filled in: {error}"
    return JudgeScorer(name, ref, messages, value.get("column_map") or {}, fields)


def _problem(value: Json, model_id: Any, parameters: Json) -> str | None:
    """Why a judge cannot be run here, None when it can."""
    if not isinstance(model_id, str) or model_id.startswith(("weave:", "weave-", "custom::")):
        return "its llm_model_id is no model of this server"
    if parameters.get("response_format") != "json_object":
        return "its response_format is not json_object, and a text is no score"
    if parameters.get("n_times") not in (None, 1):
        return "it asks for several answers (n_times)"
    for key in _REFUSED:
        if parameters.get(key):
            return f"its model has {key}, which is not supported here"
    if any(value.get(key) for key in _MEDIA):
        return "it judges media"
    columns = value.get("column_map")
    return None if columns is None or isinstance(columns, dict) else "its column_map is no object"


def _prompt(prompt: Any) -> list[Json] | None:
    """The messages of a text, or of a stored MessagesPrompt."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    listed = prompt.get("messages") if isinstance(prompt, dict) else None
    messages = [_plain(item) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    fitting = all(isinstance(item.get("role"), str) and isinstance(item.get("content"), str) for item in messages)
    return messages if messages and fitting else None


def _plain(value: Mapping[str, Any]) -> Json:
    return {key: item for key, item in value.items() if not key.startswith("_") and item is not None}


def _names(template: str) -> set[str]:
    """The names that a template uses; raises ValueError for a place that is more than a name and keys."""
    names = set()
    for _, field, layout, conversion in string.Formatter().parse(template):
        if field is not None:
            if layout or conversion:
                raise ValueError(f"{{{field[:100]}}} has a layout")
            names.add(_place(field)[0])
    return names


def _place(field: str) -> tuple[str, list[str]]:
    found = _PLACE.fullmatch(field)
    if found is None:
        raise ValueError(f"{{{field[:100]}}} is no name of a column")
    return found[1], re.findall(r"\[([^\[\]]+)\]", found[2])


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """The template with its places filled, by the SDK's rules; attributes of values are not reached."""
    made = []
    for text, field, *_ in string.Formatter().parse(template):
        made.append(text)
        if field is not None:
            name, keys = _place(field)
            made.append(_text(_inside(values[name], keys)))
    return "".join(made)


def _inside(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise InvalidRequest(f"The prompt of the judge names [{key[:100]}], which a row does not have")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)

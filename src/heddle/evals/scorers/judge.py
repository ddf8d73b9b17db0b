"""A model as the judge of answers: a prompt about the answer and its row, and a text or JSON of scores back.

The objects are the SDK's own: an LLMAsAJudgeScorer that holds (or refers to) an LLMStructuredCompletionModel.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.errors import InvalidRequest
from heddle.evals import template
from heddle.evals.model import StructuredModel, prompt_messages
from heddle.evals.scorers.base import Ask
from heddle.wire.jsontypes import Json

CLASS_NAME = "LLMAsAJudgeScorer"
LONGEST_SCORE = 500_000
"""Characters of JSON: a score is feedback, and the payload of feedback has a limit."""
_GIVEN = ("output", "inputs")
"""What a judge's prompt may name beside the columns of the row."""
_MEDIA = ("enable_image_input_scoring", "enable_audio_input_scoring", "enable_video_input_scoring")
_MEDIA_PATHS = ("media_scoring_json_paths", "audio_input_scoring_json_paths")


@dataclass(frozen=True, slots=True)
class JudgeScorer:
    """One judge of an evaluation."""

    name: str
    ref: str
    prompt: Sequence[Json]
    """Messages with `{column}` places, `{output}` and `{inputs}` (the whole row)."""
    columns: Mapping[str, str]
    """Which column a name of the prompt stands for, where it is another."""
    model: StructuredModel

    @property
    def class_name(self) -> str:
        """The class of the SDK."""
        return CLASS_NAME

    @property
    def is_numeric(self) -> bool:
        """A JSON object can hold numbers; a text is no score."""
        return self.model.parameters.get("response_format") == "json_object"

    @property
    def needs(self) -> Sequence[str]:
        """The columns that every row must have."""
        return sorted(self.columns.get(name, name) for name in template.names(list(self.prompt)) if name not in _GIVEN)

    def arguments(self, columns: Mapping[str, Any]) -> Json:
        """Every column, and those that the column_map names once more."""
        return {**columns, **{name: columns[column] for name, column in self.columns.items() if column in columns}}

    async def score(self, output: Any, row: Json, ask: Ask) -> Any:
        """What the judge says; raises HeddleError when it cannot be asked or says nothing that can be used."""
        mapped = {name: row[column] for name, column in self.columns.items() if column in row}
        values = {**row, **mapped, "output": output, "inputs": row}
        asked = template.filled(list(self.prompt), values)
        # Its own template is sent as it is: only the prompt of the scorer speaks of the row.
        answer = await ask(self.model.request([*self.model.messages(None), *asked]))
        try:
            score = self.model.read(answer)
        except InvalidRequest as error:
            raise InvalidRequest(f"The judge {self.name}: {error.reason}") from None
        if len(json.dumps(score)) > LONGEST_SCORE:
            raise InvalidRequest(f"The judge {self.name} answered more than {LONGEST_SCORE} characters of JSON")
        return score

    def measured(self, score: Any) -> Any:
        """All of it."""
        return score


def judge(name: str, ref: str, value: Json, model: StructuredModel, prompt: Any) -> JudgeScorer | str:
    """The judge that an object describes, given its model and prompt; a text when it cannot be run, saying why."""
    columns = value.get("column_map") or {}
    if not isinstance(columns, dict) or not all(isinstance(column, str) for column in columns.values()):
        return "its column_map does not map names to columns"
    if any(value.get(key) for key in (*_MEDIA, *_MEDIA_PATHS)):
        return "it judges media"
    if model.parameters.get("n_times") not in (None, 1):
        return "it asks for several answers (n_times)"
    messages = prompt_messages(prompt)
    if messages is None:
        return "its scoring_prompt is neither a text nor messages"
    try:
        template.names(messages)
        model.request([])
    except ValueError as error:
        return f"its scoring_prompt cannot be filled in: {error}"
    except InvalidRequest as error:
        return error.reason
    return JudgeScorer(name, ref, messages, columns, model)

"""An evaluation that the server runs: the SDK publishes everything, asks for the run, and reads its calls."""

import time
from typing import Any

import weave
from common import PROJECT, plain, report, start
from weave.flow.llm_structured_model import LLMStructuredCompletionModel
from weave.scorers import LLMAsAJudgeScorer, ValidJSONScorer

client = start()


class ContainsScorer(weave.Scorer):
    """Built into the server: the name and the settings are all that it needs."""

    ignore_case: bool = False


PARAMETERS = {"temperature": 0, "max_tokens": 8, "response_format": "text"}
model = LLMStructuredCompletionModel(
    name="talker",
    llm_model_id="heddle-tiny",
    default_params={**PARAMETERS, "messages_template": [{"role": "user", "content": "Say {word}."}]},
)
judging = LLMStructuredCompletionModel(
    name="judging",
    llm_model_id="heddle-tiny",
    default_params={"temperature": 0, "max_tokens": 400, "response_format": "json_object"},
)
judge = LLMAsAJudgeScorer(name="judge", model=judging, scoring_prompt="Rate {output} for {word}. Answer in JSON.")
valid = ValidJSONScorer(name="valid")
evaluation = weave.Evaluation(
    name="words",
    dataset=weave.Dataset(name="words-data", rows=[{"word": word} for word in ("loom", "weft")]),
    scorers=[judge, valid, ContainsScorer(name="contains", ignore_case=True, column_map={"target": "word"})],
)
published, asked = weave.publish(evaluation), weave.publish(model)


def ask(name: str, **body: Any) -> Any:
    """The answer of the SDK's own client, whose requests are models or dictionaries by its version."""
    body = {"project_id": PROJECT, **body}
    try:
        from weave.shared import trace_server_interface as tsi
    except ImportError:
        return plain_answer(getattr(client.server, name)(body))
    kinds = {
        "evaluate_model": "EvaluateModelReq",
        "evaluation_status": "EvaluationStatusReq",
        "calls_score": "CallsScoreReq",
    }
    return plain_answer(getattr(client.server, name)(getattr(tsi, kinds[name])(**body)))


def plain_answer(value: Any) -> Any:
    """An answer as JSON."""
    return value.model_dump() if hasattr(value, "model_dump") else value


def until_ended(call_id: str) -> Any:
    """The last status of a run, and every code that was seen."""
    codes = []
    deadline = time.monotonic() + 120
    while True:
        status = ask("evaluation_status", call_id=call_id)["status"]
        codes.append(status["code"])
        if status["code"] != "running" or time.monotonic() > deadline:
            return status, codes
        time.sleep(0.1)


call_id = ask("evaluate_model", evaluation_ref=published.uri(), model_ref=asked.uri())["call_id"]
status, codes = until_ended(call_id)
roots = list(weave.ref(published.uri()).get().get_evaluate_calls())
root = client.get_call(call_id)
rows = []
for row in root.children():
    if row.func_name != "Evaluation.predict_and_score":
        continue
    predicted = next(child for child in row.children() if child.func_name.endswith(".predict"))
    rows.append(
        {
            "example": plain(row.inputs["example"])["word"],
            "output": plain(row.output["output"]),
            "scores": plain(row.output["scores"]),
            "children": sorted(child.func_name for child in row.children()),
            "feedback": sorted(item.feedback_type for item in predicted.feedback),
            "model": plain(row.inputs["model"].llm_model_id),
        }
    )

traced = model.predict("Say hello.")
client.flush()
(plain_call,) = [call for call in client.get_calls() if call.parent_id is None and ".predict" in call.op_name]
ask("calls_score", call_ids=[plain_call.id], scorer_refs=[weave.publish(valid).uri()])
deadline = time.monotonic() + 120
while not (found := list(client.get_call(plain_call.id).feedback)) and time.monotonic() < deadline:
    time.sleep(0.1)
report(
    project=PROJECT,
    call_id=call_id,
    status=status,
    codes=codes,
    roots=[call.id for call in roots],
    rows=rows,
    eval_table=[plain(row["scores"]) for row in list(root.children())[-1].inputs["eval_table"].rows],
    scored=[[item.feedback_type, plain(item.payload)] for item in found],
    traced=traced,
)

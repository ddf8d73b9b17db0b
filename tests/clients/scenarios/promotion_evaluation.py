"""An evaluation as a program publishes it with the SDK, for the safe promotion of training jobs."""

import weave
from common import plain, report, start
from weave.flow.llm_structured_model import LLMStructuredCompletionModel
from weave.scorers import LLMAsAJudgeScorer, StringMatchScorer, ValidJSONScorer

client = start()
rows = [{"question": "say yes or no", "target": "yes or no"}, {"question": "What is 2 + 2?", "target": "4"}]
dataset = weave.Dataset(name="questions", rows=rows)
judging = LLMStructuredCompletionModel(
    name="judging",
    llm_model_id="heddle-tiny",
    default_params={"temperature": 0, "max_tokens": 200, "response_format": "json_object"},
)
judge = LLMAsAJudgeScorer(name="judge", model=judging, scoring_prompt="Give JSON about {output} for {question}.")
known = weave.Evaluation(name="known", dataset=dataset, scorers=[StringMatchScorer(), ValidJSONScorer(), judge])


@weave.op
def mine(output: str) -> bool:
    """A scorer that is code."""
    return bool(output)


other = weave.Evaluation(name="other", dataset=dataset, scorers=[mine, StringMatchScorer()])
refs = {"known": weave.publish(known).uri(), "other": weave.publish(other).uri()}
client.flush()
report(refs=plain(refs))

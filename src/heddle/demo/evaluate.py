"""The evaluating program: an evaluation of the unmodified weave SDK, whose model is a policy that heddle serves.

Prints what it found as a JSON line: the mean reward, and the call in which everything stands.
"""

import asyncio
import json
import sys
from functools import cache
from typing import Any

import weave
from openai import AsyncOpenAI

from heddle.demo import task

_TRIALS = 3


@cache
def _client(address: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{address}/v1", api_key="demo")


@weave.op
def preference(output: str) -> dict[str, Any]:
    """The scorer: what the answer is worth."""
    return {"reward": task.reward(output)}


class Policy(weave.Model):
    """One step of the model that is taught, reached through the OpenAI SDK."""

    address: str
    model: str

    @weave.op
    async def predict(self, question: str) -> str:
        """One sampled answer."""
        answer = await _client(self.address).chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": question}], temperature=1.0, max_tokens=8
        )
        return answer.choices[0].message.content or ""


async def main(address: str, project: str, model: str) -> None:
    """Evaluate one policy on the questions that training never sees."""
    client = weave.init(project)
    _, rows = task.split()
    dataset = weave.Dataset(name="preference-questions", rows=[{"question": question} for question in rows])
    evaluation = weave.Evaluation(name="preference-rewards", dataset=dataset, scorers=[preference], trials=_TRIALS)
    policy = Policy(name=model.rsplit("/", 1)[-1].replace(":", "-"), address=address, model=model)
    summary, call = await evaluation.evaluate.call(evaluation, policy)
    client.finish()
    answers = len(rows) * _TRIALS
    found = {"reward": summary["preference"]["reward"]["mean"], "answers": answers, "questions": len(rows)}
    print(json.dumps({"evaluation": found | {"call": call.id}}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

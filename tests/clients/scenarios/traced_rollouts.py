"""Rollouts of a program that is traced by the SDK: two chat turns each, through the OpenAI SDK, scored by a scorer."""

import asyncio
import json
import os
import random
from typing import Any

import weave
from common import plain, report, start
from openai import OpenAI
from weave.integrations.openai.openai_sdk import get_openai_patcher

from heddle.training import trajectory_groups

client = start()
get_openai_patcher().attempt_patch()
openai = OpenAI(base_url=os.environ["SCENARIO_CHAT"], api_key=os.environ["WANDB_API_KEY"])
FIELDS: dict[str, Any] = {
    "model": os.environ.get("SCENARIO_MODEL", "heddle-tiny"),
    "max_tokens": 12,
    "logprobs": True,
    "extra_body": {"return_tokens_as_token_ids": True},
}


@weave.op
def rollout(question: str) -> dict:
    """A conversation of two turns; the answer's own message object goes back into the prompt."""
    messages: list[Any] = [{"role": "user", "content": question}]
    first = openai.chat.completions.create(messages=messages, **FIELDS)
    messages += [first.choices[0].message, {"role": "user", "content": "Sure?"}]
    second = openai.chat.completions.create(messages=messages, **FIELDS)
    texts = [answer.choices[0].message.content for answer in (first, second)]
    return {"texts": texts, "share": len(texts[0]) / (1 + len("".join(texts)))}


@weave.op
def brevity(output: dict) -> dict:
    """A scorer."""
    return {"score": 1.0 / (1 + len("".join(output["texts"])))}


def run(question: str) -> dict:
    """One rollout with its score."""
    result, call = rollout.call(question)
    scored = asyncio.run(call.apply_scorer(brevity))
    return {"question": question, "texts": result["texts"], "score": plain(scored.result)["score"]}


random.seed(0)
runs = [run(question) for question in ("Say yes or no.", "Say a word.") for _ in range(3)]
client.flush()
groups = trajectory_groups(
    client.get_calls(include_feedback=True), {"feedback_type": "wandb.runnable.brevity", "path": "output.score"}
)
report(runs=runs, groups=json.dumps(groups))

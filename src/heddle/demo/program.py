"""The traced program: a shop assistant on the unmodified weave SDK, with stand-ins for its two models.

It knows nothing of heddle but the address in its environment.
"""

import json
import sys
import time
from typing import Any

import weave

HOSTED_MODEL = "gpt-4o-mini"
OWN_MODEL = "shop-writer-1"
FACTS = {
    "return": "Unworn shoes can be returned within 60 days.",
    "ship": "Parcels leave the same day when ordered before 14:00.",
    "size": "Between two sizes, take the larger one.",
}
QUESTIONS = (
    "How long do I have to return shoes?",
    "When will my parcel ship?",
    "Where is order 1007?",
    "Which size should I take?",
)
ORDERS = {"1003": "delivered"}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, description, argument in (
        ("search", "The facts that bear on a question", "question"),
        ("find_order", "The state of an order", "number"),
    )
]
SYSTEM = {"role": "system", "content": "You are the assistant of a shoe shop. Answer in one sentence."}


@weave.op(kind="tool")
def search(question: str) -> list[str]:
    """The facts that bear on a question."""
    time.sleep(0.004)
    return [fact for word, fact in FACTS.items() if word in question.lower()]


@weave.op(kind="tool")
def find_order(number: str) -> str:
    """The state of an order."""
    time.sleep(0.002)
    if number not in ORDERS:
        raise LookupError(f"order {number} is not known")
    return ORDERS[number]


@weave.op(kind="llm")
def complete(model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A stand-in for a chat model: takes its time, counts its tokens, and answers in the usual shape."""
    last = messages[-1]
    if tools and last["role"] == "user":
        message, told = _tool_call(last["content"]), 12
    else:
        text = last["content"].rsplit("\n", 1)[-1]
        message, told = {"role": "assistant", "content": text}, len(text.split())
    time.sleep(0.002 * told)
    asked = 40 + sum(len(str(item["content"]).split()) for item in messages)
    usage = {"prompt_tokens": asked, "completion_tokens": told, "total_tokens": asked + told}
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {"model": model, "object": "chat.completion", "choices": choices, "usage": usage}


def _tool_call(question: str) -> dict[str, Any]:
    number = next((word.strip("?") for word in question.split() if word.strip("?").isdigit()), None)
    name, arguments = ("find_order", {"number": number}) if number else ("search", {"question": question})
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


@weave.op
def polish(draft: str) -> str:
    """The draft in the shop's own voice, by the shop's own model."""
    messages = [{"role": "system", "content": "Rewrite kindly."}, {"role": "user", "content": draft}]
    return str(complete(OWN_MODEL, messages)["choices"][0]["message"]["content"])


@weave.op(kind="agent")
def assistant(question: str) -> str:
    """Answer one question: let the model choose a tool, use it, let the model answer, and polish that."""
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": question}]
    wanted = complete(HOSTED_MODEL, messages, TOOLS)["choices"][0]["message"]
    (call,) = wanted["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    found = find_order(**arguments) if call["function"]["name"] == "find_order" else "\n".join(search(**arguments))
    told = {"role": "tool", "tool_call_id": call["id"], "content": found}
    draft = complete(HOSTED_MODEL, [*messages, wanted, told], TOOLS)["choices"][0]["message"]["content"]
    return polish(str(draft))


def main(project: str) -> None:
    """Run everything once."""
    client = weave.init(project)
    client.add_cost(llm_id=OWN_MODEL, prompt_token_cost=2e-7, completion_token_cost=8e-7)
    rows: list[dict[str, Any]] = [{"question": question} for question in QUESTIONS]
    dataset = weave.Dataset(name="shop-questions", rows=rows)
    weave.publish(dataset)
    calls = []
    with weave.thread("demo-visitor"):
        for question in QUESTIONS:
            try:
                calls.append(assistant.call(question)[1])
            except LookupError as error:
                print(f"the assistant failed: {error}")
    calls[0].feedback.add_reaction("👍")
    calls[1].feedback.add_note("Too short: say which carrier it is.")
    calls[-1].feedback.add("rating", {"stars": 5})
    client.finish()


if __name__ == "__main__":
    main(sys.argv[1])

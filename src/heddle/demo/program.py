"""The traced program: a shop assistant on the unmodified weave SDK, with stand-ins for its two models.

It knows nothing of heddle but the address in its environment.
"""

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


@weave.op
def search(question: str) -> list[str]:
    """The facts that bear on a question."""
    time.sleep(0.004)
    return [fact for word, fact in FACTS.items() if word in question.lower()]


@weave.op
def find_order(number: str) -> str:
    """The state of an order."""
    time.sleep(0.002)
    if number not in ORDERS:
        raise LookupError(f"order {number} is not known")
    return ORDERS[number]


@weave.op
def complete(model: str, prompt: str) -> dict[str, Any]:
    """A stand-in for a model: takes its time and counts its tokens, in the shape that the SDK takes usage from."""
    text = prompt.rsplit("\n", 1)[-1]
    asked, answered = 40 + len(prompt.split()), len(text.split())
    time.sleep(0.002 * answered)
    usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
    return {"model": model, "text": text, "usage": usage}


@weave.op
def polish(draft: str) -> str:
    """The draft in the shop's own voice, by the shop's own model."""
    return str(complete(OWN_MODEL, f"Rewrite kindly.\n{draft}")["text"])


@weave.op
def assistant(question: str) -> str:
    """Answer one question."""
    number = next((word.strip("?") for word in question.split() if word.strip("?").isdigit()), None)
    facts = [find_order(number)] if number else search(question)
    draft = complete(HOSTED_MODEL, "\n".join(["Answer in one sentence.", question, *facts]))
    return polish(str(draft["text"]))


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

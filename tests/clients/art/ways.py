"""Other ways to sample than one whole answer per request: streams, several choices at once, cut answers."""

import asyncio
from typing import Any

import art
from art.openai import consume_chat_completion_stream
from common import Model, ask, backend, report, trainable
from openai.types.chat.chat_completion import Choice

QUESTION: list[Any] = [{"role": "user", "content": "Say something."}]


async def streamed(model: Model) -> Choice:
    """An answer put together from a stream by the client's own helper."""
    stream = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=QUESTION, max_tokens=6, stream=True
    )
    return (await consume_chat_completion_stream(stream)).choices[0]


async def several(model: Model, count: int) -> list[Choice]:
    """Choices of one request."""
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=QUESTION, max_tokens=6, n=count
    )
    return answer.choices


def trajectories(choices: list[Choice]) -> art.TrajectoryGroup:
    """A group of one-turn trajectories with rewards 0, 1, 0, 1, ..."""
    return art.TrajectoryGroup(
        [
            art.Trajectory(messages_and_choices=[*QUESTION, choice], reward=number % 2)
            for number, choice in enumerate(choices)
        ]
    )


async def main() -> None:
    """A job for each way; the tokens that it must train, and what it told."""
    client = backend()
    model = trainable("ways")
    await model.register(client)
    seen: dict[str, Any] = {}
    for name in ("streamed", "several", "cut", "unasked"):
        if name == "several":
            choices = await several(model, 4)
        elif name == "streamed":
            choices = await asyncio.gather(*(streamed(model) for _ in range(4)))
        else:
            fields = {"max_tokens": 3} if name == "cut" else {"logprobs": False, "max_tokens": 6}
            choices = await asyncio.gather(*(ask(model, QUESTION, **fields) for _ in range(4)))
        result = await client.train(model, [trajectories(list(choices))], learning_rate=1e-2)
        seen[name] = {
            "tokens": sum(len(choice.logprobs.content) for choice in choices),
            "ends": sorted({choice.finish_reason for choice in choices}),
            "metrics": result.metrics,
        }
    report(**seen)
    await client.close()


asyncio.run(main())

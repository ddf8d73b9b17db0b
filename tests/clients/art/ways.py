"""Other ways to sample than one whole answer per request: streams, several choices, cut answers, captured requests."""

import asyncio
from typing import Any

import art
from art.openai import consume_chat_completion_stream
from common import BASE_MODEL, Model, ask, backend, report, trainable
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


async def captured(model: Model) -> tuple[art.Trajectory, Choice]:
    """A trajectory that the client filled with the requests made inside it; one of them asks another model."""
    with art.Trajectory() as trajectory:
        choice = await ask(model, QUESTION, max_tokens=6)
        await model.openai_client().chat.completions.create(model=BASE_MODEL, messages=QUESTION, max_tokens=2)
    assert trajectory.exchanges
    return trajectory, choice


def rewarded(trajectories: list[art.Trajectory]) -> art.TrajectoryGroup:
    """A group of trajectories with rewards 0, 1, 0, 1, ..."""
    for number, trajectory in enumerate(trajectories):
        trajectory.reward = float(number % 2)
    return art.TrajectoryGroup(trajectories)


async def main() -> None:
    """A job for each way; the tokens that it must train, and what it told."""
    client = backend()
    model = trainable("ways")
    await model.register(client)
    seen: dict[str, Any] = {}
    captures = ["captured"] if hasattr(art.Trajectory, "__enter__") else []
    for name in ("streamed", "several", "cut", "unasked", *captures):
        made = []
        if name == "captured":
            pairs = await asyncio.gather(*(captured(model) for _ in range(4)))
            made, choices = [trajectory for trajectory, _ in pairs], [choice for _, choice in pairs]
        elif name == "several":
            choices = await several(model, 4)
        elif name == "streamed":
            choices = await asyncio.gather(*(streamed(model) for _ in range(4)))
        else:
            fields = {"max_tokens": 3} if name == "cut" else {"logprobs": False, "max_tokens": 6}
            choices = await asyncio.gather(*(ask(model, QUESTION, **fields) for _ in range(4)))
        made = made or [art.Trajectory(messages_and_choices=[*QUESTION, choice]) for choice in choices]
        result = await client.train(model, [rewarded(made)], learning_rate=1e-2)
        seen[name] = {
            "tokens": sum(len(choice.logprobs.content) for choice in choices),
            "ends": sorted({choice.finish_reason for choice in choices}),
            "metrics": result.metrics,
        }
    report(**seen)
    await client.close()


asyncio.run(main())

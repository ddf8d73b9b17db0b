"""RULER of the client: its judge is the model that the server plays, asked over chat completions."""

import asyncio
import os

import art
from art.rewards import ruler_score_group
from common import KEY, SERVER, report

os.environ["OPENAI_API_KEY"] = KEY
ASKED = {"role": "user", "content": "Say yes, no or maybe."}


def told(*words: str) -> art.TrajectoryGroup:
    """A group whose trajectories answer with these words."""
    return art.TrajectoryGroup(
        [
            art.Trajectory(messages_and_choices=[ASKED, {"role": "assistant", "content": word}], reward=0.25)
            for word in words
        ]
    )


async def main() -> None:
    """Groups of different and of equal trajectories, by the client's own rubric and by another."""
    seen = {}
    where = {"api_base": f"{SERVER}/v1", "temperature": 0}
    for name, words, rubric in (("all", ("yes", "maybe", "no"), {}), ("equal", ("no", "no"), {"rubric": "Be strict."})):
        scored = await ruler_score_group(told(*words), "openai/heddle-tiny", where, **rubric)
        seen[name] = [
            {"reward": one.reward, "metrics": one.metrics, "logs": [log.partition(" ")[2] for log in one.logs]}
            for one in scored.trajectories
        ]
    report(**seen)


asyncio.run(main())

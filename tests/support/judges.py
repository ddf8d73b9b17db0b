"""A judge of trajectories that goes by the word of their answers, for a provider or in place of a model."""

import json
import re
from typing import Any

Json = dict[str, Any]
WORTH = {"maybe": 0.9, "no": 0.5, "yes": 0.1}
_TRAJECTORY = re.compile(r'<trajectory id="(\d+)">\n(.*?)\n</trajectory>', re.DOTALL)


def read_trajectories(body: Json) -> dict[str, list[Json]]:
    """The messages of each trajectory that a request shows, by its id."""
    (shown,) = [message["content"] for message in body["messages"][:2] if message["role"] == "user"]
    return {name: json.loads(text) for name, text in _TRAJECTORY.findall(shown)}


def rank_words(body: Json) -> str:
    """The answer of the judge to a request: a score for each trajectory."""
    scores = [
        {"trajectory_id": name, "explanation": f"it says {word}", "score": WORTH.get(word, 0.0)}
        for name, messages in read_trajectories(body).items()
        for word in [str(messages[-1].get("content") or "").strip()]
    ]
    return json.dumps({"scores": scores})

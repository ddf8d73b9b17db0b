"""What a job is trained on, as people look at it: groups with their advantages, and one trajectory token by token."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from heddle.errors import InvalidRequest, NotFound
from heddle.training import files
from heddle.training.config import RlConfig
from heddle.training.intake import GROUPS
from heddle.training.sequences import (
    GroupData,
    Renderer,
    TokenSequence,
    TrainingError,
    TrajectoryData,
    group_advantages,
    is_choice,
    mean_and_deviation,
    sequences,
)
from heddle.wire.jsontypes import Json

MOST_TOKENS = 20_000
_PREVIEW = 300


class ReadableRenderer(Renderer, Protocol):
    """A renderer that also says what a token reads like."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        ...


LoadRenderer = Callable[[Path], ReadableRenderer]


class Rollouts:
    """Reads the bodies of jobs and logs; the last one read stays in memory."""

    def __init__(self, path_of: Callable[[str], Path], load_renderer: LoadRenderer | None) -> None:
        self._path_of = path_of
        self._load_renderer = load_renderer
        self._renderers: dict[Path, ReadableRenderer] = {}
        self._last: tuple[str, list[GroupData]] = ("", [])

    async def groups(self, key: str, settings: Json | None) -> list[Json]:
        """A summary of each group of a body; advantages are those that a job of these settings trains with."""
        config = RlConfig.of_json(settings) if settings else RlConfig()
        return [_summary(group, place, config) for place, group in enumerate(await self._read(key))]

    async def trajectory(
        self, key: str, settings: Json | None, place: tuple[int, int], base: Path | None, max_length: int
    ) -> Json:
        """One trajectory as it came, with its sequences where the base model's folder is known; raises NotFound."""
        groups = await self._read(key)
        group, index = place
        if not 0 <= group < len(groups) or not 0 <= index < len(groups[group]["trajectories"]):
            raise NotFound("Trajectory not found")
        config = RlConfig.of_json(settings) if settings else RlConfig()
        members = groups[group]["trajectories"]
        found: Json = {"trajectory": members[index], "advantage": _advantages(members, config)[index]}
        if base is None or self._load_renderer is None:
            return found | {"sequences": [], "problem": "The base model is not served any more"}
        try:
            made = await asyncio.to_thread(self._sequences, groups[group], config, base, max_length)
        except (TrainingError, ValueError) as error:
            return found | {"sequences": [], "problem": str(error)}
        return found | {"sequences": [one for number, one in made if number == index], "problem": None}

    async def _read(self, key: str) -> list[GroupData]:
        if self._last[0] != key:
            body = await asyncio.to_thread(lambda: files.read_payload(self._path_of(key)))
            if GROUPS not in body:
                raise InvalidRequest("This job has no trajectories: it is a fine-tuning job")
            self._last = (key, body[GROUPS])
        return self._last[1]

    def _sequences(self, group: GroupData, config: RlConfig, base: Path, max_length: int) -> list[tuple[int, Json]]:
        assert self._load_renderer is not None
        renderer = self._renderers.get(base)
        if renderer is None:
            renderer = self._renderers[base] = self._load_renderer(base)
        prepared = sequences([group], renderer, config, max_length)
        return [(one.trajectory, _tokens(one, renderer)) for one in prepared.sequences]


def _advantages(members: Sequence[TrajectoryData], config: RlConfig) -> list[float]:
    if not members:
        return []
    rewards = [float(member.get("reward", 0.0)) for member in members]
    return group_advantages(rewards, config.scale_rewards and config.normalize_advantages)


def _summary(group: GroupData, place: int, config: RlConfig) -> Json:
    members = group["trajectories"]
    rewards = [float(member.get("reward", 0.0)) for member in members]
    mean, spread = mean_and_deviation(rewards) if rewards else (None, None)
    return {
        "group": place,
        "prompt": _prompt(members[0]) if members else "",
        "mean": mean,
        "spread": spread,
        "exceptions": [f"{one.get('type', '')}: {one.get('message', '')}" for one in group.get("exceptions") or ()],
        "metadata": group.get("metadata") or {},
        "trajectories": [
            {
                "reward": reward,
                "advantage": advantage,
                "preview": _answer(member),
                "turns": sum(is_choice(item) for item in member.get("messages_and_choices") or ()),
                "metrics": member.get("metrics") or {},
                "metadata": member.get("metadata") or {},
            }
            for member, reward, advantage in zip(members, rewards, _advantages(members, config), strict=True)
        ],
    }


def _prompt(member: TrajectoryData) -> str:
    """The newest words of the user before the first answer."""
    said = ""
    for item in member.get("messages_and_choices") or ():
        if is_choice(item):
            break
        if item.get("role") == "user" or not said:
            said = _text(item.get("content")) or said
    return said[:_PREVIEW]


def _answer(member: TrajectoryData) -> str:
    """The last words of the model."""
    for item in reversed(member.get("messages_and_choices") or ()):
        message = item.get("message") if is_choice(item) else item
        if isinstance(message, dict) and (is_choice(item) or message.get("role") == "assistant"):
            calls = message.get("tool_calls") or ()
            named = ", ".join(str((call.get("function") or {}).get("name")) for call in calls)
            return (_text(message.get("content")) or (f"calls {named}" if named else ""))[:_PREVIEW]
    return ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _tokens(one: TokenSequence, renderer: ReadableRenderer) -> Json:
    shown = min(len(one.ids), MOST_TOKENS)
    logprobs = [None if math.isnan(value) else value for value in one.logprobs[:shown]]
    return {
        "history": one.history,
        "advantage": one.advantage,
        "length": len(one.ids),
        "trained": sum(one.mask),
        "shared": one.prompt_length,
        "version": one.version,
        "tokens": renderer.pieces(one.ids[:shown]),
        "mask": [int(trained) for trained in one.mask[:shown]],
        "logprobs": logprobs,
    }

"""What clients call an adapter: a name, perhaps with a project before it and a step behind it.

`name`, `team/project/name`, `wandb-artifact:///team/project/name` and `heddle:///team/project/name` mean the latest
step; `@3`, `:step3` or `:3` behind them means one step, `:latest` the latest.
"""

import re
from dataclasses import dataclass

_FULL = re.compile(
    r"(?:(?:wandb-artifact|heddle):/{2,3})?"
    r"(?P<entity>[^/:@]+)/(?P<project>[^/:@]+)/(?P<name>[^/:@]+)(?:[:@](?P<at>[^/]+))?"
)
_SHORT = re.compile(r"(?P<name>[^/:@]+)(?:@(?P<at>[^/]+)|:(?P<step>step\d+|latest))?")


@dataclass(frozen=True, slots=True)
class Address:
    """What a client calls an adapter; a step of None is the latest."""

    name: str
    step: int | None = None
    entity: str = ""
    project: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Entity, project and name."""
        return (self.entity, self.project, self.name)

    @classmethod
    def parse(cls, text: str) -> "Address | None":
        """The address in a model name, None when it cannot be one."""
        if match := _FULL.fullmatch(text):
            step = _step(match["at"])
            return None if step == -1 else cls(match["name"], step, match["entity"], match["project"])
        if match := _SHORT.fullmatch(text):
            step = _step(match["at"] or match["step"])
            return None if step == -1 else cls(match["name"], step)
        return None


def artifact(entity: str, project: str, name: str) -> str:
    """The name of a project's adapter as clients of training write it, without a step."""
    return f"wandb-artifact:///{entity}/{project}/{name}"


def _step(text: str | None) -> int | None:
    """The number in `stepN` or `N`; None for the latest, -1 for what is neither."""
    if text is None or text == "latest":
        return None
    digits = text.removeprefix("step")
    return int(digits) if digits.isdigit() and digits.isascii() and len(digits) < 16 else -1

"""Where the reward of a call is found: in feedback, or in the call itself."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.wire import jsontext
from heddle.wire.jsontypes import Json, is_index
from heddle.wire.query import split_path

Call = Json
"""A call of the trace service, as /calls/stream_query gives it."""
RewardOf = Callable[[Call], float | None]
CALL_FIELDS = ("inputs", "output", "attributes", "summary")
_PAYLOAD_PATHS = {
    "wandb.runnable.": "output",
    "wandb.annotation.": "value",
    "wandb.reaction.": "emoji",
    "wandb.note.": "note",
}
"""Where the usual kinds of feedback keep what was said."""


@dataclass(frozen=True, slots=True)
class Reward:
    """Where the reward is found.

    With a `feedback_type`, `path` leads into the payload of the newest feedback of that type (empty: to its usual
    place); without one it leads into the call, `output.reward` for instance. `values` gives texts and booleans their
    number, `default` stands where nothing is found.
    """

    path: str = ""
    feedback_type: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    default: float | None = None

    @classmethod
    def of(cls, value: "str | Mapping[str, Any] | Reward") -> "Reward":
        """A reward from its fields, or from one text: a path into the call, or else a type of feedback."""
        if isinstance(value, Reward):
            return value
        if isinstance(value, str):
            return cls(path=value) if split_path(value)[0] in CALL_FIELDS else cls(feedback_type=value)
        return cls(**{**value, "values": value.get("values") or {}, "path": value.get("path") or ""})

    def __post_init__(self) -> None:
        if self.feedback_type is None and split_path(self.path)[0] not in CALL_FIELDS:
            raise ValueError(f"A reward requires a feedback_type, or a path that starts with {', '.join(CALL_FIELDS)}")

    def find(self, subject: Call, others: list[Call]) -> float | None:
        """The reward of a call; feedback on the calls below it (`others`) counts where it has none itself."""
        if self.feedback_type is None:
            found = self._number(value_at(subject, self.path))
        else:
            found = next(self._said([subject]), None)
            found = next(self._said(others), None) if found is None else found
        return self.default if found is None else found

    def _said(self, calls: list[Call]) -> Iterator[float]:
        """The numbers of the feedback on some calls, the newest first."""
        items = [
            item for call in calls for item in feedback_of(call) if item.get("feedback_type") == self.feedback_type
        ]
        items.sort(key=lambda item: str(item.get("created_at") or ""), reverse=True)
        for item in items:
            number = self._number(value_at(item.get("payload"), self._payload_path))
            if number is not None:
                yield number

    @property
    def _payload_path(self) -> str:
        kind = self.feedback_type or ""
        usual = (path for prefix, path in _PAYLOAD_PATHS.items() if kind.startswith(prefix))
        return self.path or next(usual, "output")

    def _number(self, value: Any) -> float | None:
        """The value as a finite number; None when it is none."""
        if isinstance(value, str | bool) and self.values:
            return self.values.get(value if isinstance(value, str) else jsontext.dumps(value))
        if not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None


def feedback_of(call: Call) -> list[Call]:
    """The feedback that came with a call (`include_feedback` of /calls/stream_query)."""
    found = value_at(call, "summary.weave.feedback")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def value_at(value: Any, path: str) -> Any:
    """What lies at a dotted path (`choices.0.message`; `\\.` is a dot inside a name), None where nothing does."""
    for part in split_path(path) if path else ():
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and is_index(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value

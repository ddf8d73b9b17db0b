"""Which call made which score of a trial: told by the scorer's object, its op, its feedback, or likeness of names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from heddle.errors import InvalidRequest
from heddle.wire import refs
from heddle.wire.calls import CallRow

RUNNABLE = "wandb.runnable."
_NO_NAME = re.compile(r"[^\w._]+")
_RUN_OF_SIGNS = re.compile(r"[._-]{2,}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A child of a trial that may have made a score; names as people read them."""

    id: str
    op: str
    scorer: str | None
    """The name of the object behind `inputs.self`."""
    is_marked: bool

    @classmethod
    def of(cls, row: CallRow) -> "Candidate":
        """What a stored call says about itself."""
        attributes = _object(row.attributes)
        weave, noted = attributes.get("weave"), attributes.get("_weave_eval_meta")
        marks = [weave.get("score") == "true", weave.get("kind") == "scorer"] if isinstance(weave, dict) else []
        is_marked = any(marks) or (isinstance(noted, dict) and bool(noted.get("score")))
        return cls(row.id, refs.operation_name(row.op_name), _name(_object(row.inputs).get("self")), is_marked)

    @property
    def looks_like_scorer(self) -> bool:
        """True when it is marked as one, or its op says so."""
        op = self.op.lower()
        return self.is_marked or ".score" in op or "scorer" in op


def _object(text: str | None) -> dict[str, Any]:
    value = orjson.loads(text) if text else None
    return value if isinstance(value, dict) else {}


def _name(ref: Any) -> str | None:
    if not isinstance(ref, str) or not ref.startswith(refs.INTERNAL):
        return None
    try:
        return refs.parse(ref).name
    except InvalidRequest:
        return None


def _made_name(name: str) -> str:
    """The name of an object or op that SDKs make of a text: other signs and runs of them become one dash."""
    return _RUN_OF_SIGNS.sub("-", _NO_NAME.sub("-", name)).strip("-_")


def certain(keys: Iterable[str], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Call ids by score, where a scorer object or an op has exactly that name, or the name that SDKs make of it."""
    found: dict[str, str] = {}
    for key in keys:
        made = _made_name(key)
        by_object = (item for item in candidates if item.scorer == key)
        by_op = (item for item in candidates if item.op in (key, f"{key}.score"))
        by_made = (
            item for item in candidates if made and made in (item.scorer, item.op, item.op.removesuffix(".score"))
        )
        match = next(by_object, None) or next(by_op, None) or next(by_made, None)
        if match is not None:
            found[key] = match.id
    return found


def by_feedback(
    keys: Iterable[str], candidates: Sequence[Candidate], rows: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Call ids by score, where the call left feedback under that name on the call of the model."""
    known = {item.id for item in candidates}
    calls = {row["feedback_type"]: str(row["call_ref"] or "").rpartition("/")[2] for row in rows}
    return {key: calls[RUNNABLE + key] for key in keys if calls.get(RUNNABLE + key) in known}


def alike(keys: Iterable[str], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Call ids by score, where the op of a scorer holds the name or is held by it."""
    found: dict[str, str] = {}
    for key in keys:
        name = key.lower()
        for item in candidates:
            op = item.op.lower()
            if item.looks_like_scorer and (name in op or op in name):
                found[key] = item.id
                break
    return found

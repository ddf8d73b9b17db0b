"""What a rollout recorded about a sampled choice: token ids and logprobs, checked and taken as they are."""

import math
import re
from dataclasses import dataclass

from heddle.training.base import Renderer, TrainingError
from heddle.wire.jsontypes import Json

_NAMED = re.compile(r"token_id:(-?\d{1,18})")


@dataclass(slots=True)
class Turn:
    """One answer that is trained."""

    item: int
    """Its place among the messages and choices."""
    ids: list[int]
    logprobs: list[float]
    """Of the policy that sampled it; NaN where unknown."""
    prompt: list[int] | None = None
    """What the model had read, where the choice says so."""


def is_choice(item: Json) -> bool:
    """True for a sampled choice, False for a plain message."""
    return "finish_reason" in item and "message" in item


def sampled_turn(choice: Json, item: int, renderer: Renderer, at: str) -> Turn | None:
    """The sampled tokens of a choice; None when it has no logprobs.

    Ids are read from `token_id:17` in the logprobs, else from `token_ids` of the choice, else from the tokens' texts.
    `prompt_token_ids` of the choice is the prompt. TrainingError, beginning with `at`, for what cannot be true.
    """
    entries = _entries(choice, at)
    if not entries:
        return None
    stated = _id_list(choice, "token_ids", renderer, at)
    if stated is not None and len(stated) != len(entries):
        raise TrainingError(f"{at}: {len(entries)} logprobs and {len(stated)} token_ids")
    ids, logprobs = [], []
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
            raise TrainingError(f"{at}: logprob {place} has no token")
        ids.append(_id(entry["token"], place, stated, renderer, at))
        logprobs.append(_logprob(entry.get("logprob"), place, at))
    return Turn(item, ids, logprobs, _id_list(choice, "prompt_token_ids", renderer, at) or None)


def _entries(choice: Json, at: str) -> list[object]:
    logprobs = choice.get("logprobs")
    if logprobs is None:
        return []
    if not isinstance(logprobs, dict):
        raise TrainingError(f"{at}: logprobs is not an object")
    entries = logprobs.get("content") or logprobs.get("refusal") or []
    if not isinstance(entries, list):
        raise TrainingError(f"{at}: logprobs holds no list of tokens")
    return entries


def _id(token: str, place: int, stated: list[int] | None, renderer: Renderer, at: str) -> int:
    known = None if stated is None else stated[place]
    if named := _NAMED.fullmatch(token):
        found = int(named[1])
        if known is not None and found != known:
            raise TrainingError(f"{at}: token {place} is id {found} in logprobs and {known} in token_ids")
        return _checked(found, renderer, at)
    if known is not None:
        return known
    looked_up = renderer.token_id(token)
    if looked_up is None:
        raise TrainingError(
            f"{at}: token {place}, {token[:100]!r}, is not in the vocabulary of {renderer.vocab_size}; "
            "sample with return_tokens_as_token_ids"
        )
    return looked_up


def _checked(token_id: int, renderer: Renderer, at: str) -> int:
    if not 0 <= token_id < renderer.vocab_size:
        raise TrainingError(f"{at}: token id {token_id} is outside the vocabulary of {renderer.vocab_size}")
    return token_id


def _id_list(choice: Json, name: str, renderer: Renderer, at: str) -> list[int] | None:
    """A list of ids that the server of the choice added; None where there is none."""
    ids = choice.get(name)
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(token_id) is not int for token_id in ids):
        raise TrainingError(f"{at}: {name} is not a list of integers")
    if ids:
        _checked(min(ids), renderer, at)
        _checked(max(ids), renderer, at)
    return ids


def _logprob(value: object, place: int, at: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TrainingError(f"{at}: the logprob of token {place} is not a finite number")
    return float(value)

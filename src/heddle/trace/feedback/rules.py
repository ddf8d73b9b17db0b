"""Which feedback is accepted: the rules of each feedback type (contract: trace-core, section 9)."""

import json
import re
from functools import lru_cache
from typing import Any

import emoji
import orjson

from heddle import json_schemas
from heddle.errors import InvalidRequest
from heddle.ipc.bounded import TooMuchWork
from heddle.trace.feedback.models import FeedbackCreateReq
from heddle.wire import jsontext, refs

REACTION = "wandb.reaction.1"
NOTE = "wandb.note.1"
ANNOTATION = "wandb.annotation"
RUNNABLE = "wandb.runnable"
AGENT_MONITOR = "wandb.agent_monitor"
AGENT_USER_FEEDBACK = "wandb.agent_user_feedback"

MAX_NOTE = 1024
MAX_REACTION = 1000
MAX_PAYLOAD = 1024 * 1024

SCORER_FIELDS = (
    "scorer_tags",
    "scorer_tag_reasons",
    "scorer_tag_confidences",
    "scorer_ratings",
    "scorer_rating_reasons",
    "scorer_rating_confidences",
)
_TONE = re.compile("_(?:medium-light|medium-dark|medium|light|dark)_skin_tone")


def check(row: FeedbackCreateReq, project: str) -> None:
    """Raise InvalidRequest where a row breaks the rules of its type; what needs the store is not looked at.

    `project` is the internal id; refs are internal.
    """
    kind = row.feedback_type
    if kind == REACTION:
        _check_reaction(row)
    elif kind == NOTE:
        _check_note(row)
    if kind.startswith(ANNOTATION):
        _check_annotation(row, project)
    elif row.annotation_ref:
        raise InvalidRequest("annotation_ref is not allowed for non-annotation feedback")
    elif kind.startswith(RUNNABLE):
        _check_runnable(row)
    elif kind == AGENT_MONITOR:
        _require(row, ("runnable_ref", "call_ref", "trigger_ref"), "agent monitor feedback")
    else:
        for name in ("runnable_ref", "call_ref", "trigger_ref"):
            if getattr(row, name):
                raise InvalidRequest(f"{name} is not allowed for non-runnable feedback")
    _check_scorer_fields(row)
    _check_refs(row)


def _check_reaction(row: FeedbackCreateReq) -> None:
    shown = row.payload.get("emoji")
    if not isinstance(shown, str):
        raise InvalidRequest(f"Invalid payload for feedback_type {REACTION}: emoji must be a text")
    if len(shown) > MAX_REACTION or _emoji_count(shown) != 1:
        raise InvalidRequest("Value of emoji key in payload must be exactly one emoji")


@lru_cache(2000)
def _emoji_count(text: str) -> int:
    return int(emoji.emoji_count(text))


def _check_note(row: FeedbackCreateReq) -> None:
    note = row.payload.get("note")
    if not isinstance(note, str) or not 1 <= len(note) <= MAX_NOTE:
        raise InvalidRequest(
            f"Invalid payload for feedback_type {NOTE}: note must be a text of 1 to {MAX_NOTE} characters"
        )


def _check_annotation(row: FeedbackCreateReq, project: str) -> None:
    name = _subtype(row.feedback_type, ANNOTATION, "annotation")
    _require(row, ("annotation_ref",), "annotation feedback")
    ref = _ref(row, "annotation_ref", ("object",))
    if ref.name != name:
        raise InvalidRequest(f"annotation_ref must point to an object with name {name}")
    if ref.project != project:
        raise InvalidRequest("annotation_ref does not belong to the project of the feedback")
    if "value" not in row.payload:
        raise InvalidRequest(f"Invalid payload for feedback_type {row.feedback_type}: value is required")


def _check_runnable(row: FeedbackCreateReq) -> None:
    name = _subtype(row.feedback_type, RUNNABLE, "runnable")
    _require(row, ("runnable_ref",), "runnable feedback")
    ref = _ref(row, "runnable_ref", ("object", "op"))
    if ref.name != name:
        raise InvalidRequest(f"runnable_ref must point to an object with name {name}")
    if ref.kind == "op" and not row.call_ref:
        raise InvalidRequest("call_ref is required for runnable feedback on ops")
    if "output" not in row.payload:
        raise InvalidRequest(f"Invalid payload for feedback_type {row.feedback_type}: output is required")


def _subtype(feedback_type: str, family: str, word: str) -> str:
    if not feedback_type.startswith(family + "."):
        raise InvalidRequest(f"Invalid {word} feedback type: {feedback_type[:200]}")
    return feedback_type[len(family) + 1 :]


def _require(row: FeedbackCreateReq, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if not getattr(row, name):
            raise InvalidRequest(f"{name} is required for {what}")


def _check_scorer_fields(row: FeedbackCreateReq) -> None:
    kind = row.feedback_type
    scored = kind.startswith(RUNNABLE) or kind in (AGENT_MONITOR, AGENT_USER_FEEDBACK)
    if not scored and any(getattr(row, name) for name in SCORER_FIELDS):
        raise InvalidRequest(
            f"{', '.join(SCORER_FIELDS[:-1])}, and {SCORER_FIELDS[-1]} are only allowed on {AGENT_MONITOR}, "
            f"{AGENT_USER_FEEDBACK}, or {RUNNABLE} feedback"
        )
    if kind == AGENT_USER_FEEDBACK and not row.scorer_tags:
        raise InvalidRequest("scorer_tags is required for agent user feedback")


def _check_refs(row: FeedbackCreateReq) -> None:
    if row.runnable_ref:
        _ref(row, "runnable_ref", ("object", "op"))
    if row.call_ref:
        _ref(row, "call_ref", ("call",))
    if row.trigger_ref:
        _ref(row, "trigger_ref", ("object",))


def _ref(row: FeedbackCreateReq, name: str, kinds: tuple[str, ...]) -> refs.Ref:
    text: str = getattr(row, name)
    ref = refs.parse(text)
    if ref.kind not in kinds:
        raise InvalidRequest(
            f"Invalid ref: {refs.to_external(text)[:500]}, {name} must be a ref of kind {' or '.join(kinds)}"
        )
    return ref


def payload_text(row: FeedbackCreateReq) -> str:
    """The payload as it is stored, JSON text; reactions get their aliases. Raises InvalidRequest over 1 MiB."""
    payload = reaction(row.payload) if row.feedback_type == REACTION else row.payload
    text = jsontext.dumps(payload)
    # The limit counts the characters of ASCII JSON with blanks: at most six for a character here.
    if len(text) * 6 > MAX_PAYLOAD and len(json.dumps(orjson.loads(text))) > MAX_PAYLOAD:
        raise InvalidRequest("Feedback payload too large")
    return text


def reaction(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload of a reaction with `alias`, `detoned` and `detoned_alias` of its emoji."""
    alias, detoned, detoned_alias = _aliases(payload["emoji"])
    return {**payload, "alias": alias, "detoned": detoned, "detoned_alias": detoned_alias}


@lru_cache(2000)
def _aliases(shown: str) -> tuple[str, str, str]:
    detoned = without_tone(shown)
    return emoji.demojize(shown), detoned, emoji.demojize(detoned)


def without_tone(text: str) -> str:
    """The text with every emoji in its form without skin tones."""
    return str(emoji.replace_emoji(text, lambda found, _: emoji.emojize(_TONE.sub("", emoji.demojize(found)))))


async def check_annotation_value(row: FeedbackCreateReq, spec_text: str | None) -> None:
    """Raise InvalidRequest when the value of an annotation does not satisfy its AnnotationSpec (JSON text)."""
    shown = refs.to_external(row.annotation_ref or "")
    if spec_text is None:
        raise InvalidRequest(f"Annotation ref {shown} not found")
    spec = orjson.loads(spec_text)
    if not isinstance(spec, dict) or not all(_fits(spec.get(name), kinds) for name, kinds in _SPEC_FIELDS.items()):
        raise InvalidRequest(f"Annotation ref {shown} is not a valid annotation spec")
    try:
        valid = await json_schemas.is_valid(row.payload["value"], spec.get("field_schema", {}))
    except json_schemas.BadSchema:
        raise InvalidRequest(f"Annotation ref {shown} is not a valid annotation spec") from None
    except TooMuchWork as error:
        raise InvalidRequest(f"payload.value: to check it by the field_schema of {shown} {error}") from None
    if not valid:
        raise InvalidRequest("Feedback payload does not match annotation spec")


_SPEC_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "description": (str,),
    "field_schema": (dict,),
    "unique_among_creators": (bool,),
    "op_scope": (list,),
}


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    return value is None or isinstance(value, kinds)

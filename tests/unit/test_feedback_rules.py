"""What each type of feedback must have, the aliases of reactions, and the leaves of payloads."""

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import emoji
import pytest

from heddle.errors import InvalidRequest
from heddle.trace.feedback import models
from heddle.trace.feedback.models import FeedbackCreateReq
from heddle.trace.feedback.stats import find_payload_paths, object_id, span_type
from heddle.wire import refs

PROJECT = refs.internal_project("team/project")
OTHER = refs.internal_project("team/other")
REFERENCE = Path(__file__).parents[2] / ".clients" / "weave-0.53.0"


def ref(kind: str, tail: str, project: str = PROJECT) -> str:
    """An internal ref."""
    return f"{refs.INTERNAL}{project}/{kind}/{tail}"


CALL = ref("call", "c1")
OBJECT = ref("object", "judge:abc")
OP = ref("op", "judge:abc")


def row(feedback_type: str, payload: dict[str, Any] | None = None, **fields: Any) -> FeedbackCreateReq:
    """A request of that type on a call."""
    return FeedbackCreateReq(
        project_id="team/project", weave_ref=CALL, feedback_type=feedback_type, payload=payload or {}, **fields
    )


ACCEPTED = [
    row("wandb.reaction.1", {"emoji": "👍"}),
    row("wandb.note.1", {"note": "x" * 1024, "extra": 1}),
    row("wandb.note.1", {"note": "é"}),
    row("custom"),
    row("custom", {"deep": {"x": [1]}}),
    row("wandb.annotation.judge", {"value": None}, annotation_ref=OBJECT),
    row("wandb.runnable.judge", {"output": None}, runnable_ref=OBJECT),
    row("wandb.runnable.judge", {"output": 1}, runnable_ref=OP, call_ref=CALL),
    row(
        "wandb.runnable.judge", {"output": 1}, runnable_ref=OBJECT, trigger_ref=ref("object", "m:1"), scorer_tags=["a"]
    ),
    row("wandb.runnable.judge", {"output": 1}, runnable_ref=ref("object", "judge:abc", OTHER)),
    row(
        "wandb.agent_monitor", {}, runnable_ref=OP, call_ref=CALL, trigger_ref=OBJECT, scorer_ratings={"_rating_": 0.5}
    ),
    row("wandb.agent_user_feedback", {}, scorer_tags=["good"]),
]

REFUSED = [
    (row("wandb.reaction.1", {"emoji": "👍👍"}), "exactly one emoji"),
    (row("wandb.reaction.1", {"emoji": "x"}), "exactly one emoji"),
    (row("wandb.reaction.1", {"emoji": ""}), "exactly one emoji"),
    (row("wandb.reaction.1", {"emoji": 5}), "Invalid payload for feedback_type wandb.reaction.1"),
    (row("wandb.reaction.1", {}), "Invalid payload for feedback_type wandb.reaction.1"),
    (row("wandb.note.1", {"note": ""}), "Invalid payload for feedback_type wandb.note.1"),
    (row("wandb.note.1", {"note": "x" * 1025}), "Invalid payload for feedback_type wandb.note.1"),
    (row("wandb.note.1", {"text": "x"}), "Invalid payload for feedback_type wandb.note.1"),
    (row("wandb.note.1", {"note": "x"}, call_ref=CALL), "call_ref is not allowed"),
    (row("custom", annotation_ref=OBJECT), "annotation_ref is not allowed"),
    (row("custom", runnable_ref=OBJECT), "runnable_ref is not allowed"),
    (row("custom", call_ref=CALL), "call_ref is not allowed"),
    (row("custom", trigger_ref=OBJECT), "trigger_ref is not allowed"),
    (row("custom", scorer_tags=["a"]), "are only allowed on"),
    (row("custom", scorer_ratings={"a": 0.5}), "are only allowed on"),
    (row("wandb.annotation", {"value": 1}, annotation_ref=OBJECT), "Invalid annotation feedback type"),
    (row("wandb.annotationjudge", {"value": 1}, annotation_ref=OBJECT), "Invalid annotation feedback type"),
    (row("wandb.annotation.judge", {"value": 1}), "annotation_ref is required"),
    (row("wandb.annotation.other", {"value": 1}, annotation_ref=OBJECT), "object with name other"),
    (row("wandb.annotation.judge", {"value": 1}, annotation_ref=OP), "Invalid ref"),
    (row("wandb.annotation.judge", {"value": 1}, annotation_ref="nonsense"), "Invalid ref"),
    (row("wandb.annotation.judge", {"worth": 1}, annotation_ref=OBJECT), "value is required"),
    (
        row("wandb.annotation.judge", {"value": 1}, annotation_ref=ref("object", "judge:abc", OTHER)),
        "does not belong to the project",
    ),
    (row("wandb.annotation.judge", {"value": 1}, annotation_ref=OBJECT, scorer_tags=["a"]), "are only allowed on"),
    (row("wandb.runnable", {"output": 1}, runnable_ref=OBJECT), "Invalid runnable feedback type"),
    (row("wandb.runnable.judge", {"output": 1}), "runnable_ref is required"),
    (row("wandb.runnable.other", {"output": 1}, runnable_ref=OBJECT), "object with name other"),
    (row("wandb.runnable.judge", {"output": 1}, runnable_ref=OP), "call_ref is required"),
    (row("wandb.runnable.judge", {"score": 1}, runnable_ref=OBJECT), "output is required"),
    (row("wandb.runnable.judge", {"output": 1}, runnable_ref=CALL), "Invalid ref"),
    (row("wandb.runnable.judge", {"output": 1}, runnable_ref=OBJECT, call_ref=OBJECT), "Invalid ref"),
    (row("wandb.runnable.judge", {"output": 1}, runnable_ref=OBJECT, trigger_ref=OP), "Invalid ref"),
    (row("wandb.runnable.judge", {"output": 1}, runnable_ref=OBJECT, annotation_ref=OBJECT), "annotation_ref is not"),
    (row("wandb.agent_monitor", {}, call_ref=CALL, trigger_ref=OBJECT), "runnable_ref is required"),
    (row("wandb.agent_monitor", {}, runnable_ref=OP, trigger_ref=OBJECT), "call_ref is required"),
    (row("wandb.agent_monitor", {}, runnable_ref=OP, call_ref=CALL), "trigger_ref is required"),
    (row("wandb.agent_user_feedback", {}), "scorer_tags is required"),
    (row("wandb.agent_user_feedback", {}, scorer_tags=["a"], call_ref=CALL), "call_ref is not allowed"),
]


@pytest.mark.parametrize("request_row", ACCEPTED, ids=lambda item: f"{item.feedback_type} {sorted(item.payload)}")
def test_accepted(request_row: FeedbackCreateReq) -> None:
    """Each type with what it needs."""
    models.check_feedback(request_row, PROJECT)


@pytest.mark.parametrize(("request_row", "reason"), REFUSED, ids=lambda item: getattr(item, "feedback_type", item))
def test_refused(request_row: FeedbackCreateReq, reason: str) -> None:
    """Each rule, with the word that tells which."""
    with pytest.raises(InvalidRequest, match=reason) as caught:
        models.check_feedback(request_row, PROJECT)
    assert refs.INTERNAL not in caught.value.reason


@pytest.mark.parametrize(
    ("shown", "alias", "detoned", "detoned_alias"),
    [
        ("👍", ":thumbs_up:", "👍", ":thumbs_up:"),
        ("👍🏾", ":thumbs_up_medium-dark_skin_tone:", "👍", ":thumbs_up:"),
        ("👋🏻", ":waving_hand_light_skin_tone:", "👋", ":waving_hand:"),
        ("🎉", ":party_popper:", "🎉", ":party_popper:"),
    ],
)
def test_reactions_get_their_aliases(shown: str, alias: str, detoned: str, detoned_alias: str) -> None:
    """And keep what else the payload holds."""
    found = models.complete_reaction({"emoji": shown, "by": "me"})
    assert found == {"emoji": shown, "by": "me", "alias": alias, "detoned": detoned, "detoned_alias": detoned_alias}


def test_aliases_are_those_of_the_reference() -> None:
    """Every emoji of the data file, and some texts around one, side by side with weave 0.53.0."""
    found = list(REFERENCE.glob("lib/*/site-packages/weave/trace_server/emoji_util.py"))
    if not found:
        pytest.skip("weave 0.53.0 is not installed: run `make clients`")
    module = importlib.util.spec_from_file_location("reference_emoji_util", found[0])
    assert module is not None and module.loader is not None
    reference = importlib.util.module_from_spec(module)
    module.loader.exec_module(reference)
    for shown in [*emoji.EMOJI_DATA, "a 👍🏿 b", "👩🏽‍🤝‍👨🏿", "👍🏿👋🏻", "no emoji", ""]:
        detoned = reference.detone_emojis(shown)
        aliases = {"alias": emoji.demojize(shown), "detoned": detoned, "detoned_alias": emoji.demojize(detoned)}
        assert models.complete_reaction({"emoji": shown}) == {"emoji": shown, **aliases}


def test_payloads_are_limited_to_one_mebibyte_of_json() -> None:
    """Counted as ASCII JSON with blanks, as the reference counts."""
    overhead = len(json.dumps({"a": ""}))
    assert json.loads(models.dump_payload(row("custom", {"a": "x" * (models.MAX_PAYLOAD - overhead)})))
    with pytest.raises(InvalidRequest, match="too large"):
        models.dump_payload(row("custom", {"a": "x" * (models.MAX_PAYLOAD - overhead + 1)}))
    with pytest.raises(InvalidRequest, match="too large"):
        models.dump_payload(row("custom", {"a": "é" * (models.MAX_PAYLOAD // 6)}))


def spec(schema: Any = None, **fields: Any) -> str:
    """The JSON text of an AnnotationSpec."""
    value = {"_type": "AnnotationSpec", "name": "judge", "description": None, "op_scope": None, **fields}
    return json.dumps(value if schema is None else {**value, "field_schema": schema})


def annotation(value: Any) -> FeedbackCreateReq:
    """An annotation with that value."""
    return row("wandb.annotation.judge", {"value": value}, annotation_ref=OBJECT)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 5}, 5, 6),
        ({"type": "string", "enum": ["a", "b"]}, "a", "c"),
        ({"type": "boolean"}, False, 0),
        ({"type": "object", "required": ["x"]}, {"x": 1}, {}),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}, None, 1),
    ],
)
def test_annotation_values_satisfy_the_schema_of_the_spec(schema: Any, good: Any, bad: Any) -> None:
    """JSON Schema decides."""
    asyncio.run(models.check_annotation_value(annotation(good), spec(schema)))
    with pytest.raises(InvalidRequest, match="does not match"):
        asyncio.run(models.check_annotation_value(annotation(bad), spec(schema)))


def test_a_spec_without_a_schema_takes_everything() -> None:
    """The default schema is empty."""
    asyncio.run(models.check_annotation_value(annotation([1, {"x": None}]), spec()))


@pytest.mark.parametrize(
    "text",
    [
        '"text"',
        "[1]",
        spec({"type": "nonsense"}),
        spec("schema"),
        spec({"$ref": "https://example.com/schema.json"}),
        spec({"$ref": "#"}),
        spec({}, unique_among_creators="yes"),
        spec({}, name=5),
    ],
)
def test_what_is_no_annotation_spec_is_refused(text: str) -> None:
    """Also schemas that point elsewhere or only at themselves: nothing is fetched."""
    with pytest.raises(InvalidRequest, match="is not a valid annotation spec"):
        asyncio.run(models.check_annotation_value(annotation(1), text))


def test_a_missing_spec_is_named_by_its_external_ref() -> None:
    """Internal forms never reach a client."""
    with pytest.raises(InvalidRequest, match="weave:///team/project/object/judge:abc not found"):
        asyncio.run(models.check_annotation_value(annotation(1), None))


def test_leaves_of_payloads() -> None:
    """Paths, types, and what is skipped."""
    payloads = [
        {"score": 1, "ok": True, "mixed": 1, "none": None, "deep": {"x": 0.5, "Low quality": "a"}, "list": [1, 2.5]},
        {"score": None, "ok": None, "mixed": "a", "a.b": 1, " ": 2, "é": 3, "list": [{"y": 1}, [2]], "empty": []},
        {"flags": [True, None], "deep": {"x": 2}},
    ]
    assert find_payload_paths(json.dumps(payload) for payload in payloads) == [
        {"json_path": "deep.Low quality", "value_type": "categorical"},
        {"json_path": "deep.x", "value_type": "numeric"},
        {"json_path": "flags", "value_type": "boolean"},
        {"json_path": "list", "value_type": "numeric"},
        {"json_path": "mixed", "value_type": "categorical"},
        {"json_path": "none", "value_type": "boolean"},
        {"json_path": "ok", "value_type": "boolean"},
        {"json_path": "score", "value_type": "numeric"},
    ]


def test_parts_of_refs() -> None:
    """The dimensions of aggregates."""
    assert [object_id(OBJECT), object_id(None), object_id("")] == ["judge", "", ""]
    assert span_type(ref("agent_turn", "t1")) == "agent_turn"
    assert span_type("x") == ""

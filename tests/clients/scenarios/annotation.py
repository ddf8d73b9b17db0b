"""Annotation specs and queues: made, filled, worked through and labelled."""

from typing import Any

import weave
from common import PROJECT, plain, report, start
from weave.flow.annotation_spec import AnnotationSpec

try:
    from weave.shared.common_interface import AnnotationQueueItemsFilter as Filter
except ImportError:
    Filter = dict

client = start()


def request(name: str, **fields: Any) -> Any:
    """What a method of the server binding takes: a model in older SDKs, plain fields in newer ones."""
    try:
        from weave.trace_server import trace_server_interface
    except ImportError:
        return fields
    return getattr(trace_server_interface, name)(**fields)


@weave.op
def answer(question: str) -> str:
    """What people look at."""
    return question.upper()


def shown(items: Any) -> list[dict[str, Any]]:
    """The parts of items that matter."""
    names = ("call_id", "annotation_state", "annotator_user_id", "position_in_queue", "display_fields")
    return [{name: plain(getattr(item, name)) for name in names} for item in items]


spec = AnnotationSpec(name="Quality", field_schema={"type": "integer", "minimum": 1, "maximum": 5})
spec_ref = weave.publish(spec, "quality").uri()
calls = [answer.call(question)[1] for question in ("a", "b", "c")]
client.flush()

queue = client.create_annotation_queue(name="To check", scorer_refs=[spec_ref], description="All of them")
added = client.add_calls_to_annotation_queue(
    queue, call_ids=[call.id for call in calls], display_fields=["inputs.question", "output"]
)
again = client.add_calls_to_annotation_queue(queue, call_ids=[calls[0].id], display_fields=[])
before = client.list_annotation_queue_items(queue, include_position=True)


def go(item: Any, state: str) -> str:
    """The state of an item after a step, or the refusal."""
    step = request(
        "AnnotatorQueueItemsProgressUpdateReq",
        project_id=PROJECT,
        queue_id=queue,
        item_id=item.id,
        annotation_state=state,
    )
    try:
        return str(client.server.annotator_queue_items_progress_update(step).item.annotation_state)
    except Exception as error:
        return str(error)


steps = [
    go(before[0], "in_progress"),
    go(before[0], "completed"),
    go(before[0], "in_progress"),
    go(before[1], "skipped"),
]
labelled = client.server.feedback_create(
    request(
        "FeedbackCreateReq",
        project_id=PROJECT,
        weave_ref=calls[0].ref.uri(),
        feedback_type="wandb.annotation.quality",
        payload={"value": 4},
        annotation_ref=spec_ref,
        queue_id=queue,
    )
)
calls[1].feedback.add("wandb.annotation.quality", {"value": 2}, annotation_ref=spec_ref)
client.flush()
# SDKs send feedback in batches of their own: one that is refused takes its batch with it.
calls[2].feedback.add("wandb.annotation.quality", {"value": 9}, annotation_ref=spec_ref)
client.flush()

after = client.list_annotation_queue_items(queue)
unstarted = client.list_annotation_queue_items(queue, filter=Filter(annotation_states=["unstarted"]))
stats = client.get_annotation_queue_stats([queue])
updated = client.update_annotation_queue(queue, name="Checked")
listed = client.list_annotation_queues(name="check")
read = client.get_annotation_queue(queue)
deleted = client.delete_annotation_queue(queue)
left = client.list_annotation_queues()

report(
    queue=queue,
    spec=spec_ref,
    calls=[call.id for call in calls],
    added=[added.added_count, added.duplicates, again.added_count, again.duplicates],
    before=shown(before),
    after=shown(after),
    unstarted=[item.call_id for item in unstarted],
    steps=steps,
    label=labelled.id,
    stats=[[entry.queue_id, entry.total_items, entry.completed_items] for entry in stats],
    names=[updated.name, read.name, *(entry.name for entry in listed)],
    description=read.description,
    scorer_refs=list(read.scorer_refs),
    deleted=deleted.deleted_at is not None,
    left=len(left),
)

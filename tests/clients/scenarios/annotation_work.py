"""A queue with fields of every kind, as somebody leaves it for others to work through."""

import weave
from common import plain, report, start
from weave.flow.annotation_spec import AnnotationSpec

client = start()

SCHEMAS = {
    "correct": {"type": "boolean"},
    "quality": {"type": "integer", "minimum": 1, "maximum": 5},
    "tone": {"type": "string", "enum": ["friendly", "neutral", "rude"]},
    "better": {"type": "string"},
}
GUIDELINE = "Read the question first.\nChoose rude only where a customer would complain."


@weave.op
def answer(question: str, context: str = "") -> str:
    """What people look at."""
    return f"{question.upper()}!"


specs = {
    name: weave.publish(AnnotationSpec(name=name.title(), field_schema=schema), name).uri()
    for name, schema in SCHEMAS.items()
}
calls = [answer.call(f"question {number}", "مرحبا 🎉 " * 3 * number)[1] for number in range(6)]
client.flush()
queue = client.create_annotation_queue(name="Answers to check", scorer_refs=list(specs.values()), description=GUIDELINE)
client.add_calls_to_annotation_queue(
    queue, call_ids=[call.id for call in calls[:5]], display_fields=["inputs.question", "output"]
)

report(queue=queue, specs=plain(specs), calls=[call.id for call in calls])

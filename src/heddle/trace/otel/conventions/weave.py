"""What the weave SDK's own tracers write besides the GenAI conventions: `weave.*`.

Evaluation context (`weave.eval.*`), references to stored content, compaction of a conversation's history, and every
GenAI name also with `weave.` in the place of `gen_ai.`. `weave.parent_call.*`, which names the call that a span belongs
below, is left among the custom attributes: the index of spans finds it there.

Tokens: as the GenAI conventions have them.
"""

from heddle.trace.otel.conventions import genai
from heddle.trace.otel.conventions.convention import Convention, Fields, offer, text
from heddle.trace.otel.span import OtelSpan
from heddle.wire.spans import AgentSpan

_ALIASES = {
    field: tuple(
        "weave." + name.removeprefix("gen_ai.")
        for name in names
        if name.startswith("gen_ai.") and ".details." not in name
    )
    for field, names in genai.FIELDS.items()
}
_MESSAGES = {"weave." + key.removeprefix("gen_ai."): key for key in genai.MESSAGES}
FIELDS: Fields = {
    **_ALIASES,
    "eval_run_id": ("weave.eval.run_id",),
    "eval_predict_and_score_call_id": ("weave.eval.predict_and_score_call_id",),
    "eval_kind": ("weave.eval.kind",),
    "eval_row_digest": ("weave.eval.row_digest",),
    "eval_example_id": ("weave.eval.example_id",),
    "eval_trial_index": ("weave.eval.trial_index",),
    "eval_evaluation_name": ("weave.eval.evaluation_name",),
    "compaction_summary": ("weave.compaction.summary",),
    "compaction_items_before": ("weave.compaction.items_before",),
    "compaction_items_after": ("weave.compaction.items_after",),
    "content_refs": ("weave.content_refs",),
    "artifact_refs": ("weave.artifact_refs",),
    "object_refs": ("weave.object_refs",),
    "error_type": ("weave.error.type",),
    "server_address": ("weave.server.address",),
    "server_port": ("weave.server.port",),
}


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Messages and tools under their weave names."""
    offer(into, "reasoning_content", text(span.attributes.get("weave.reasoning_content")))
    found = {_MESSAGES[key]: value for key, value in span.attributes.items() if key in _MESSAGES}
    if found:
        genai.read_attributes(found, into)


CONVENTION = Convention("weave", FIELDS, more=(*_MESSAGES, "weave.reasoning_content"), messages=_messages)

"""What the weave SDK's own tracers write besides the GenAI conventions: `weave.*`.

Evaluation context (`weave.eval.*`), references to stored content, compaction of a conversation's history, and every
GenAI name also with `weave.` in the place of `gen_ai.`. `weave.parent_call.*`, which names the call that a span belongs
below, is left among the custom attributes: the index of spans finds it there.

Tokens: as the GenAI conventions have them.
"""

from heddle.trace.otel.conventions import genai
from heddle.trace.otel.conventions.values import Scalar, count, fill, offer, text, texts, whole
from heddle.trace.otel.span import OtelSpan
from heddle.wire.spans import AgentSpan

_ALIASES = tuple(row for row in genai.SCALARS if row.key.startswith("gen_ai.") and ".details." not in row.key)
_MESSAGES = {"weave." + key.removeprefix("gen_ai."): key for key in genai.MESSAGES}

SCALARS = (
    Scalar("weave.eval.run_id", "eval_run_id", text),
    Scalar("weave.eval.predict_and_score_call_id", "eval_predict_and_score_call_id", text),
    Scalar("weave.eval.kind", "eval_kind", text),
    Scalar("weave.eval.row_digest", "eval_row_digest", text),
    Scalar("weave.eval.example_id", "eval_example_id", text),
    Scalar("weave.eval.trial_index", "eval_trial_index", whole),
    Scalar("weave.eval.evaluation_name", "eval_evaluation_name", text),
    Scalar("weave.compaction.summary", "compaction_summary", text),
    Scalar("weave.compaction.items_before", "compaction_items_before", count),
    Scalar("weave.compaction.items_after", "compaction_items_after", count),
    Scalar("weave.content_refs", "content_refs", texts),
    Scalar("weave.artifact_refs", "artifact_refs", texts),
    Scalar("weave.object_refs", "object_refs", texts),
    Scalar("weave.error.type", "error_type", text),
    Scalar("weave.server.address", "server_address", text),
    Scalar("weave.server.port", "server_port", count),
    *(Scalar("weave." + row.key.removeprefix("gen_ai."), row.field, row.convert) for row in _ALIASES),
)


class Weave:
    """Attributes that begin with `weave.`."""

    name = "weave"
    keys = frozenset(row.key for row in SCALARS) | frozenset(_MESSAGES) | {"weave.reasoning_content"}
    prefixes: tuple[str, ...] = ()
    shared: frozenset[str] = frozenset()

    def recognises(self, span: OtelSpan) -> bool:
        """True with any of the attributes."""
        return not self.keys.isdisjoint(span.attributes)

    def describe(self, span: OtelSpan, into: AgentSpan) -> None:
        """Evaluation context, references, compaction, and the GenAI fields under their weave names."""
        fill(SCALARS, span.attributes, into)

    def messages(self, span: OtelSpan, into: AgentSpan) -> None:
        """Messages and tools under their weave names."""
        offer(into, "reasoning_content", text(span.attributes.get("weave.reasoning_content")))
        found = {_MESSAGES[key]: value for key, value in span.attributes.items() if key in _MESSAGES}
        if found:
            genai.read_attributes(found, into)

"""Which attributes become which field of a call (contract: trace-core, 12); the first of a list that holds anything."""

from dataclasses import dataclass
from typing import Any

from heddle.trace.otel.expand import parts
from heddle.wire.jsontypes import Json

Path = tuple[str, ...]
Keys = tuple[tuple[str, Path], ...]
Named = tuple[tuple[str, Keys], ...]
_MOST_TABLES, _MOST_KEYS = 2000, 200


def _keys(*names: str) -> Keys:
    return tuple((name, parts(name)) for name in names)


_INPUTS = _keys(
    "ai.prompt",
    "gen_ai.prompt",
    "input.value",
    "mlflow.spanInputs",
    "gen_ai.input.messages",
    "pydantic_ai.all_messages",
    "traceloop.entity.input",
    "gcp.vertex.agent.tool_call_args",
    "gcp.vertex.agent.llm_request",
    "input",
    "inputs",
)
_OUTPUT = _keys(
    "ai.response",
    "gen_ai.completion",
    "output.value",
    "gen_ai.output.messages",
    "mlflow.spanOutputs",
    "final_result",
    "gen_ai.content.completion",
    "traceloop.entity.output",
    "gcp.vertex.agent.tool_response",
    "gcp.vertex.agent.llm_response",
    "output",
    "outputs",
)
_ATTRIBUTES = {
    "system": _keys("gen_ai.system_instructions", "gen_ai.system", "llm.system"),
    "kind": _keys("weave.span.kind", "traceloop.span.kind", "openinference.span.kind"),
    "model": _keys("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.model.id"),
    "provider": _keys("gen_ai.provider.name", "llm.provider", "ai.model.provider"),
    "model_parameters": _keys("gen_ai.request", "llm.invocation_parameters"),
    "operation_name": _keys("gen_ai.operation.name"),
    "response_id": _keys("gen_ai.response.id"),
    "finish_reasons": _keys("gen_ai.response.finish_reasons"),
    "agent_name": _keys("gen_ai.agent.name"),
    "agent_id": _keys("gen_ai.agent.id"),
}
_USAGE = {
    "prompt_tokens": _keys("gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "ai.usage.promptTokens"),
    "completion_tokens": _keys(
        "gen_ai.usage.completion_tokens", "llm.token_count.completion", "ai.usage.completionTokens"
    ),
    "input_tokens": _keys("gen_ai.usage.input_tokens"),
    "output_tokens": _keys("gen_ai.usage.output_tokens"),
    "total_tokens": _keys("llm.usage.total_tokens", "llm.token_count.total"),
    "cache_creation_input_tokens": _keys("gen_ai.usage.cache_creation.input_tokens"),
    "cache_read_input_tokens": _keys("gen_ai.usage.cache_read.input_tokens"),
}
_THREAD = _keys("gen_ai.conversation.id", "gcp.vertex.agent.session_id", "wandb.thread_id")
_TURN = _keys("gen_ai.conversation.id", "gcp.vertex.agent.session_id", "wandb.is_turn")
_START_TIME = _keys("langfuse.startTime")
_END_TIME = _keys("langfuse.endTime")
OWN = "wandb"
"""Below it lie the attributes that follow; few spans have it."""
CUSTOM = parts("wandb.attributes")
DISPLAY_NAME = parts("wandb.display_name")
RUN_ID = parts("wandb.wb_run_id")
RUN_STEP = parts("wandb.wb_run_step")
RUN_STEP_END = parts("wandb.wb_run_step_end")
ENTITY, PROJECT = "wandb.entity", "wandb.project"
RESOURCE_RUN_ID = ("wandb.run_id", "wandb.wb_run_id")


@dataclass(frozen=True, slots=True)
class Table:
    """The keys of each field, with the paths in the tree of attributes."""

    inputs: Keys
    output: Keys
    attributes: Named
    usage: Named
    thread: Keys
    turn: Keys
    start_time: Keys
    end_time: Keys

    def within(self, tree: Json) -> "Table":
        """Only the keys of which the tree may hold something: their first two parts are there."""

        def some(keys: Keys) -> Keys:
            return tuple((key, path) for key, path in keys if _may_hold(tree, path))

        def named(rows: Named) -> Named:
            return tuple((name, kept) for name, keys in rows if (kept := some(keys)))

        return Table(
            some(self.inputs),
            some(self.output),
            named(self.attributes),
            named(self.usage),
            some(self.thread),
            some(self.turn),
            some(self.start_time),
            some(self.end_time),
        )


def _may_hold(tree: Json, path: Path) -> bool:
    below: Any = tree.get(path[0])
    if len(path) == 1 or not isinstance(below, dict):
        return path[0] in tree
    return path[1] in below


WHOLE = Table(
    _INPUTS,
    _OUTPUT,
    tuple(_ATTRIBUTES.items()),
    tuple(_USAGE.items()),
    _THREAD,
    _TURN,
    _START_TIME,
    _END_TIME,
)
_tables: dict[tuple[Any, ...], Table] = {}


def table_for(tree: Json) -> Table:
    """The part of the table that can find something in a tree; spans of one kind share it."""
    shape = tuple((top, tuple(below) if type(below) is dict else None) for top, below in tree.items())
    found = _tables.get(shape)
    if found is None:
        found = WHOLE.within(tree)
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        if sum(len(below or ()) for _, below in shape) + len(shape) <= _MOST_KEYS:
            _tables[shape] = found
    return found

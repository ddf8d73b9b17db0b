"""Platforms that observe or evaluate: Laminar, LangWatch, AgentOps, promptfoo, DeepEval, Braintrust, TruLens, more."""

from typing import Any

from heddle.trace.otel.conventions.convention import (
    OPERATIONS,
    PARAMETERS,
    Convention,
    Fields,
    fill_from,
    nest_attributes,
    object_below,
    offer,
    offer_name,
    to_json_text,
    to_text,
)
from heddle.trace.otel.conventions.products import read_numbered, read_numbered_tools
from heddle.trace.otel.span import OtelSpan
from heddle.wire.conversation.messages import read_answer, read_request, text_message
from heddle.wire.conversation.parts import arguments_of, as_object, as_text, first_of, parse_json
from heddle.wire.spans import MODEL_OPERATIONS, AgentSpan


def _say(into: AgentSpan, given: Any, came: Any) -> None:
    """What a model was asked and answered; everything else has values, not messages."""
    if into.operation_name == "chat":
        offer(into, "input_messages", read_request(given) if given else None)
        offer(into, "output_messages", read_answer(came) if came else None)


_LMNR, _LMNR_OF = "lmnr.span.", "lmnr.association.properties."
_LMNR_TYPE, _LMNR_INPUT, _LMNR_OUTPUT = _LMNR + "type", _LMNR + "input", _LMNR + "output"


def _derive_laminar(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type as an operation."""
    offer(into, "operation_name", OPERATIONS.get(str(span.attributes.get(_LMNR_TYPE)).lower()))
    offer_name(into, span.name)


def _messages_laminar(span: OtelSpan, into: AgentSpan) -> None:
    """Those of a model's span that was made by hand; those of libraries have the GenAI attributes."""
    _say(into, span.attributes.get(_LMNR_INPUT), span.attributes.get(_LMNR_OUTPUT))


LAMINAR = Convention(
    "laminar",
    {"conversation_id": (_LMNR_OF + "session_id",)},
    more=(_LMNR_TYPE, *(_LMNR + name for name in ("path", "ids_path", "parent_path", "parent_ids_path"))),
    context={
        "user": (_LMNR_OF + "user_id",),
        "tags": (_LMNR_OF + "tags", _LMNR_OF + "label"),
        "metadata": (_LMNR_OF + "metadata", _LMNR_OF + "metadata."),
    },
    roots=frozenset({"lmnr"}),
    tool=(_LMNR_INPUT, _LMNR_OUTPUT),
    derive=_derive_laminar,
    messages=_messages_laminar,
)
"""Laminar: `lmnr.*` beside what its forks of OpenLLMetry's libraries write of models.

Tokens: inside, as OpenLLMetry has them.
"""


_LW = "langwatch."
_LW_TYPE, _LW_INPUT, _LW_OUTPUT = _LW + "span.type", _LW + "input", _LW + "output"
_LW_PARAMS, _LW_METRICS, _LW_CONTEXTS, _ABOUT = _LW + "params", _LW + "metrics", _LW + "rag_contexts", "metadata"
_LW_OPERATIONS = {**OPERATIONS, "rag": "retrieval", "evaluation": "evaluator"}
_LW_COUNTS: Fields = {
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("completion_tokens",),
    "reasoning_tokens": ("reasoning_tokens",),
    "cache_read_input_tokens": ("cache_read_input_tokens",),
    "cache_creation_input_tokens": ("cache_creation_input_tokens",),
}


def _value_of(told: Any) -> Any:
    """What is said in `{"type": "json", "value": …}`."""
    told = parse_json(told)
    return told["value"] if isinstance(told, dict) and "value" in told and "type" in told else told


def _derive_langwatch(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type as an operation; settings, tokens and the thread out of the objects that hold them."""
    values = span.attributes
    offer(into, "operation_name", _LW_OPERATIONS.get(str(values.get(_LW_TYPE))))
    offer_name(into, span.name)
    fill_from(PARAMETERS, as_object(values.get(_LW_PARAMS)), into)
    fill_from(_LW_COUNTS, as_object(values.get(_LW_METRICS)), into)
    offer(into, "conversation_id", to_text(as_object(values.get(_ABOUT)).get("thread_id")))


def _messages_langwatch(span: OtelSpan, into: AgentSpan) -> None:
    """Messages of a model, and its tools."""
    values = span.attributes
    offer(into, "tool_definitions", to_json_text(as_object(values.get(_LW_PARAMS)).get("tools")))
    _say(into, _value_of(values.get(_LW_INPUT)), _value_of(values.get(_LW_OUTPUT)))


LANGWATCH = Convention(
    "langwatch",
    {"conversation_id": (_LW + "thread.id", _LW + "session.id")},
    more=(_LW_TYPE, _LW_PARAMS, _LW_METRICS, _LW_CONTEXTS, _LW + "timestamps"),
    context={
        "user": (_LW + "user.id", "metadata:user_id"),
        "tags": (_LW + "labels", "metadata:labels"),
        "metadata": (_ABOUT,),
    },
    details={"rag_contexts": (_LW_CONTEXTS,), "model_parameters": (_LW_PARAMS,)},
    roots=frozenset({"langwatch"}),
    tool=(_LW_INPUT, _LW_OUTPUT),
    value_of=_value_of,
    derive=_derive_langwatch,
    messages=_messages_langwatch,
)
"""LangWatch: `langwatch.*`, each value beside its type, and `metadata` of a trace on its outermost span.

Tokens: as the provider counts them, OpenAI's with cached tokens inside, which are not told.
"""


_OPS = "agentops."
_OPS_KIND, _OPS_NAME = _OPS + "span.kind", "operation.name"
_OPS_STEPS = ("entity", "session", "workflow", "chain", "operation", "task", "agent", "guardrail")
_OPS_TOOL = (
    ("tool_call_arguments", (_OPS + "tool.input", "tool.parameters")),
    ("tool_call_result", (_OPS + "tool.output", "tool.result")),
)


def _called_with(told: Any) -> Any:
    return arguments_of(parse_json(told))


def _derive_agentops(span: OtelSpan, into: AgentSpan) -> None:
    """The span's kind as an operation; the name of the function is the tool's or the agent's."""
    # Its instrumentations set the kind of their tools to an object, which the OpenTelemetry SDK drops.
    assumed = "tool" if into.tool_name is not None else None
    kind = str(span.attributes.get(_OPS_KIND, assumed)).rpartition(".")[2].lower()
    offer(into, "operation_name", OPERATIONS.get(kind))
    offer_name(into, to_text(span.attributes.get(_OPS_NAME)))


def _messages_agentops(span: OtelSpan, into: AgentSpan) -> None:
    """What a tool was given and gave."""
    if into.operation_name == "execute_tool":
        for field, names in _OPS_TOOL:
            told = next((value for name in names if (value := span.attributes.get(name)) is not None), None)
            offer(into, field, to_json_text(_called_with(told)))


AGENTOPS = Convention(
    "agentops",
    {"tool_name": ("tool.name",), "tool_call_id": ("tool.call.id",)},
    more=(_OPS_KIND, _OPS_NAME, "tool.call.type", _OPS + "session.end_state", *_OPS_TOOL[0][1], *_OPS_TOOL[1][1]),
    marks=frozenset({_OPS_KIND}),
    scopes=("agentops",),
    context={"tags": (_OPS + "tags",)},
    roots=frozenset({"agentops"}),
    steps=tuple((f"{_OPS}{kind}.input", f"{_OPS}{kind}.output") for kind in _OPS_STEPS),
    value_of=_called_with,
    derive=_derive_agentops,
    messages=_messages_agentops,
)
"""AgentOps: `agentops.*` of functions that are decorated; of models the numbered attributes of OpenLLMetry.

Tokens: inside, as OpenLLMetry has them.
"""


_FOO = "promptfoo."
_FOO_ASKED, _FOO_ANSWERED = _FOO + "request.body", _FOO + "response.body"


def _messages_promptfoo(span: OtelSpan, into: AgentSpan) -> None:
    """The prompt, a text or messages, and the output of the provider."""
    asked, answered = span.attributes.get(_FOO_ASKED), span.attributes.get(_FOO_ANSWERED)
    offer(into, "input_messages", read_request(asked) if asked else None)
    offer(into, "output_messages", read_answer(answered) if answered else None)


PROMPTFOO = Convention(
    "promptfoo",
    {},
    more=(_FOO_ASKED, _FOO_ANSWERED),
    messages=_messages_promptfoo,
)
"""promptfoo: `promptfoo.*` beside GenAI attributes, which have no messages.

Tokens: as the GenAI conventions have them.
"""


_DEEP, _DEEP_TRACE = "confident.span.", "confident.trace."
_DEEP_TYPE, _DEEP_INPUT, _DEEP_OUTPUT = _DEEP + "type", _DEEP + "input", _DEEP + "output"


def _derive_deepeval(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type as an operation."""
    offer(into, "operation_name", OPERATIONS.get(str(span.attributes.get(_DEEP_TYPE)).lower()))
    offer_name(into, to_text(span.attributes.get(_DEEP + "name")) or span.name)


def _messages_deepeval(span: OtelSpan, into: AgentSpan) -> None:
    """What a model was asked and answered."""
    _say(into, span.attributes.get(_DEEP_INPUT), span.attributes.get(_DEEP_OUTPUT))


DEEPEVAL = Convention(
    "deepeval",
    {
        "provider_name": (_DEEP + "provider",),
        "request_model": ("confident.llm.model",),
        "input_tokens": ("confident.llm.input_token_count",),
        "output_tokens": ("confident.llm.output_token_count",),
        "agent_name": ("confident.agent.name",),
        "tool_name": ("confident.tool.name",),
        "tool_description": ("confident.tool.description",),
        "conversation_id": (_DEEP_TRACE + "thread_id",),
    },
    more=(_DEEP_TYPE,),
    context={
        "user": (_DEEP_TRACE + "user_id",),
        "tags": (_DEEP_TRACE + "tags",),
        "metadata": (_DEEP + "metadata", _DEEP_TRACE + "metadata"),
        "display_name": (_DEEP + "name",),
    },
    tool=(_DEEP_INPUT, _DEEP_OUTPUT),
    derive=_derive_deepeval,
    messages=_messages_deepeval,
)
"""DeepEval: `confident.*` of spans that are made by hand, and beside what its instrumentations write.

Tokens: as the program counts them.
"""


_BT = "braintrust."
_BT_TYPE, _BT_METADATA, _BT_METRICS = _BT + "span_attributes", _BT + "metadata", _BT + "metrics"
_BT_INPUTS, _BT_OUTPUTS = (_BT + "input_json", _BT + "input"), (_BT + "output_json", _BT + "output")
_BT_OPERATIONS = {**OPERATIONS, "score": "evaluator"}
_BT_COUNTS: Fields = {
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("completion_tokens",),
    "reasoning_tokens": ("completion_reasoning_tokens",),
    "cache_read_input_tokens": ("prompt_cached_tokens",),
    "cache_creation_input_tokens": ("prompt_cache_creation_tokens",),
}


def _derive_braintrust(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type as an operation; model, settings and tokens out of the objects that hold them."""
    about, metadata = (object_below(span.attributes, name) for name in (_BT_TYPE, _BT_METADATA))
    offer(into, "operation_name", _BT_OPERATIONS.get(str(about.get("type"))))
    offer_name(into, to_text(about.get("name")) or span.name)
    if into.operation_name in MODEL_OPERATIONS:
        offer(into, "request_model", to_text(metadata.get("model")))
        fill_from(PARAMETERS, metadata, into)
        fill_from(_BT_COUNTS, object_below(span.attributes, _BT_METRICS), into)


def _messages_braintrust(span: OtelSpan, into: AgentSpan) -> None:
    """What a model was asked, offered and answered; what a tool was given and gave."""
    given, came = (first_of(span.attributes, names) for names in (_BT_INPUTS, _BT_OUTPUTS))
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_arguments", to_json_text(given))
        offer(into, "tool_call_result", to_json_text(came))
    elif into.operation_name == "chat":
        offer(into, "tool_definitions", to_json_text(object_below(span.attributes, _BT_METADATA).get("tools")))
    _say(into, given, came)


BRAINTRUST = Convention(
    "braintrust",
    {},
    more=(_BT_TYPE, _BT_METADATA, _BT_METRICS, _BT + "context_json", _BT + "parent"),
    prefixes=(_BT,),
    scopes=("braintrust",),
    context={
        "user": (_BT_METADATA + ":user_id", _BT_METADATA + ".user_id"),
        "tags": (_BT + "tags",),
        "metadata": (_BT_METADATA, _BT_METADATA + "."),
        "display_name": (_BT_TYPE + ":name", _BT_TYPE + ".name"),
    },
    details={"expected": (_BT + "expected_json", _BT + "expected"), "scores": (_BT + "scores",)},
    roots=frozenset({"braintrust"}),
    steps=tuple(zip(_BT_INPUTS, _BT_OUTPUTS, strict=True)),
    derive=_derive_braintrust,
    messages=_messages_braintrust,
)
"""Braintrust: `braintrust.*` of spans that are made by hand or by its SDKs, objects as JSON text or as attributes.

Tokens: `metrics` of a request to a model, cached tokens inside; sums of other spans are not read.
"""


_FI_KIND, _FI_SETTINGS = "gen_ai.span.kind", "gen_ai.request.parameters"
_FI_INPUT, _FI_OUTPUT, _FI_TOOLS = (
    f"gen_ai.{name}." for name in ("input.messages", "output.messages", "tool.definitions")
)


def _derive_future_agi(span: OtelSpan, into: AgentSpan) -> None:
    """The kind as an operation, parameters."""
    offer(into, "operation_name", OPERATIONS.get(str(span.attributes.get(_FI_KIND)).lower()))
    fill_from(PARAMETERS, as_object(span.attributes.get(_FI_SETTINGS)), into)


def _messages_future_agi(span: OtelSpan, into: AgentSpan) -> None:
    """Numbered messages and tools."""
    offer(into, "input_messages", read_numbered(span.attributes, _FI_INPUT, "user"))
    offer(into, "output_messages", read_numbered(span.attributes, _FI_OUTPUT, "assistant"))
    offer(into, "tool_definitions", read_numbered_tools(span.attributes, _FI_TOOLS))


FUTURE_AGI = Convention(
    "future_agi",
    {
        "cache_read_input_tokens": ("gen_ai.usage.input_tokens.cache_read", "gen_ai.usage.cache_read_tokens"),
        "cache_creation_input_tokens": ("gen_ai.usage.input_tokens.cache_write", "gen_ai.usage.cache_write_tokens"),
    },
    more=(_FI_KIND, _FI_SETTINGS),
    prefixes=(_FI_INPUT, _FI_OUTPUT, _FI_TOOLS),
    derive=_derive_future_agi,
    messages=_messages_future_agi,
)
"""Future AGI (traceAI): OpenInference with GenAI names, such as `gen_ai.input.messages.0.message.role`.

Tokens: inside, as OpenInference has them.
"""


_HH_KIND, _HH_INPUTS, _HH_OUTPUTS = "honeyhive_event_type", "honeyhive_inputs.", "honeyhive_outputs."

HONEYHIVE = Convention(
    "honeyhive",
    {"conversation_id": ("honeyhive.session_id",)},
    more=(_HH_KIND, "honeyhive.project", "honeyhive.source", "honeyhive_duration_ms"),
    prefixes=(_HH_INPUTS, _HH_OUTPUTS),
    context={"user": ("honeyhive_user_properties.user_id",), "metadata": ("honeyhive_metadata.",)},
    steps=((_HH_INPUTS, _HH_OUTPUTS + "result"), (_HH_INPUTS, _HH_OUTPUTS)),
)
"""HoneyHive: functions that are decorated; models are traced by OpenInference or OpenLLMetry beside it.

Every function is a `tool` unless its decorator names another type, so the type says nothing about what it does.

Tokens: as those libraries count them.
"""


_TRU = "ai.observability."
_TRU_TYPE, _TRU_CALL, _TRU_COST, _TRU_ROOT = _TRU + "span_type", _TRU + "call.", _TRU + "cost.", _TRU + "record_root."
_TRU_GIVEN, _TRU_CAME = _TRU_CALL + "kwargs.", _TRU_CALL + "return"
_TRU_FUNCTION, _TRU_ERROR, _TRU_MODEL = _TRU_CALL + "function", _TRU_CALL + "error", _TRU_COST + "model"
_TRU_OPERATIONS = {
    **OPERATIONS,
    **dict.fromkeys(("record_root", "nested_record_root", "graph_task"), "invoke_workflow"),
    **dict.fromkeys(("graph_node", "workflow_step", "generation"), "agent_step"),
    **dict.fromkeys(("eval_root", "eval"), "evaluator"),
    "retrieval": "retrieval",
    "reranking": "rerank",
    "mcp": "execute_tool",
}
_TRU_FUNCTIONS = ("unknown", "record_root", "nested_record_root", "generation")


def _derive_trulens(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type as an operation; a function that asked models has their sum."""
    kind = str(span.attributes.get(_TRU_TYPE)).lower()
    asked = kind in _TRU_FUNCTIONS and _TRU_MODEL in span.attributes
    offer(into, "operation_name", "chat" if asked else _TRU_OPERATIONS.get(kind))
    offer_name(into, str(span.attributes.get(_TRU_FUNCTION, "")).rpartition(".")[2])


def _messages_trulens(span: OtelSpan, into: AgentSpan) -> None:
    """What the program was asked and answered, and what a function that asks a model was given and gave."""
    if into.operation_name not in ("chat", "invoke_workflow"):
        return
    given = nest_attributes(span.attributes, _TRU_GIVEN)
    # Several arguments are what a prompt is made of, not what a person said.
    alone = next(iter(given.values())) if isinstance(given, dict) and len(given) == 1 else None
    asked = span.attributes.get(_TRU_ROOT + "input", alone)
    answered = span.attributes.get(_TRU_ROOT + "output", span.attributes.get(_TRU_CAME))
    for field, role, said in (("input_messages", "user", asked), ("output_messages", "assistant", answered)):
        offer(into, field, [text_message(role, as_text(said))] if said else None)


TRULENS = Convention(
    "trulens",
    {
        "request_model": (_TRU_MODEL,),
        "input_tokens": (_TRU_COST + "num_prompt_tokens",),
        "output_tokens": (_TRU_COST + "num_completion_tokens",),
        "reasoning_tokens": (_TRU_COST + "num_reasoning_tokens",),
        "conversation_id": (_TRU + "conversation_id",),
    },
    more=(_TRU_TYPE, _TRU_FUNCTION, _TRU_ERROR, _TRU + "record_id"),
    tool=(_TRU_GIVEN, _TRU_CAME),
    steps=((_TRU_ROOT + "input", _TRU_ROOT + "output"),),
    derive=_derive_trulens,
    messages=_messages_trulens,
)
"""TruLens: `ai.observability.*` of functions that are decorated, which say what the models cost that they asked.

Tokens: of all requests of a function, cached tokens inside, which are not told.
"""

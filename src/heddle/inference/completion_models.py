"""Requests and answers of the completions routes, with the names of the interface."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from heddle.http import RequestModel, ResponseModel
from heddle.wire.jsontypes import Json


class CompletionsCreateRequestInputs(BaseModel):
    """A chat completion request; further fields of one are passed on."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str
    messages: list[Any] = Field(default_factory=list)
    timeout: float | str | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[Any] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    modalities: list[Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    logit_bias: Json | None = None
    user: str | None = None
    response_format: Json | None = None
    seed: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | Json | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    extra_headers: Json | None = None
    functions: list[Any] | None = None
    function_call: str | Json | None = None
    api_version: str | None = None
    prompt: str | None = None
    template_vars: Json | None = None
    vertex_credentials: str | None = None


class CompletionsCreateReq(RequestModel):
    """Body of both routes; the call is stored under the caller's own name."""

    project_id: str
    inputs: CompletionsCreateRequestInputs
    wb_user_id: str | None = None
    track_llm_call: bool | None = True
    trace_id: str | None = Field(default=None, min_length=1, max_length=256)
    parent_id: str | None = Field(default=None, min_length=1, max_length=256)
    conversation_id: str | None = Field(default=None, min_length=1, max_length=256)
    conversation_name: str | None = Field(default=None, max_length=1024)
    source: str | None = None
    inference_route: str | None = None


class CompletionsCreateRes(ResponseModel):
    """The answer, or `{"error": text}`; the ids of the call when it was tracked."""

    response: Json
    weave_call_id: str | None = None
    span_id: str | None = None
    trace_id: str | None = None
    conversation_id: str | None = None

"""From a checked request to what the engine runs and how its tokens are read: every refusal happens here."""

import asyncio
import hashlib
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.inference.adapters.registry import Version
from heddle.inference.chat.choice import Choice, Reading
from heddle.inference.chat.compile_process import Reasoning, compile_constraint
from heddle.inference.chat.request import ChatRequest
from heddle.inference.chat.response import Facts, Shape
from heddle.inference.chat.rollout import Rollout
from heddle.inference.chat.sampling import sampling_of, seed_of_choice
from heddle.inference.engine.base import TokenRequest
from heddle.inference.models.served_model import ServedModel
from heddle.inference.prompt.messages import message_text, template_messages
from heddle.inference.prompt.reasoning import ReasoningSplitter
from heddle.inference.prompt.template import SHARED_PROCESSES, Prompt, build_prompt, choose_template
from heddle.inference.structured import ResponseFormat
from heddle.inference.structured.constraint import Constraint
from heddle.inference.tools import ToolPlan, check_parameters, detect_format
from heddle.wire import times

T = TypeVar("T")
_TEXT = ResponseFormat(type="text")

_MANY = 16_384
"""Bytes; a short request takes less time than handing it to a thread."""
_SALT = re.compile(r"[^@/\\\0]{1,128}")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,256}")


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known about a request beside its body: who asks, for which project, and what came in headers."""

    caller: Caller
    project: str | None = None
    request_id: str | None = None
    """Goes before the field of the body, and so does the priority."""
    priority: int | None = None
    size: int = 0
    """Bytes of the body; 0 where nobody counted."""
    traced: bool = False
    """True when the one who asks shows the completion in a trace already."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one completion that is settled before the engine sees it."""

    shape: Shape
    facts: Facts
    requests: tuple[TokenRequest, ...]
    choices: tuple[Choice, ...]
    max_tokens: int
    """Of one choice."""
    wants_stream: bool
    ignored: tuple[str, ...]
    """What of the request had no effect on this model, for the response header."""


async def plan(
    request: ChatRequest, arrival: Arrival, model: ServedModel, shown_name: str, version: Version | None
) -> Plan:
    """Check the request against the model and lay out its choices; raises InvalidRequest naming the field."""
    rollout = Rollout.of(request, model.tokenizer) if version is not None and version.is_trainable else None
    request = request if rollout is None else rollout.request
    _check_engine_fields(request, model)
    priority = _priority(request, arrival, model)
    # Rendering and tokenizing a long one may take so long that the event loop should serve others meanwhile.
    run = _at_once if 0 < arrival.size <= _MANY else _aside
    tools = await run(_tools, request, model)
    await check_parameters(request.tools or ())
    # A template of the request is rendered by a process; this waits until one is free.
    has_template = request.chat_template is not None or "chat_template" in (request.chat_template_kwargs or ())
    render = SHARED_PROCESSES.run if has_template else run
    prompt = await render(_prompt, request, model, tools)
    token_ids = _truncated(request, prompt.token_ids, model.info.max_model_len)
    sampling = await run(sampling_of, request, len(token_ids), model.defaults, model.tokenizer, model.info)
    if rollout is not None:
        sampling = rollout.sampling(sampling, model.info)
    constraint = await _constraint(request, model, tools, prompt) if _may_constrain(request) else None
    name = _request_id(request, arrival)
    shape = _shape(request, model, name, shown_name, version)
    if rollout is not None:
        shape = rollout.shape(shape, sampling)
    salt = _cache_salt(request, arrival.caller.reach)
    requests = tuple(
        TokenRequest(
            id=f"{name}-{uuid.uuid4().hex[:8]}-{index}",
            prompt=token_ids,
            sampling=replace(sampling, seed=seed_of_choice(sampling.seed, index)),
            adapter=version.ref if version is not None else None,
            constraint=constraint,
            priority=priority,
            cache_salt=salt,
            kv_transfer_params=request.kv_transfer_params,
            xargs=request.xargs,
        )
        for index in range(request.choices)
    )
    return Plan(
        shape=shape,
        facts=Facts(token_ids),
        requests=requests,
        choices=tuple(
            _choice(index, request, model, tools, prompt, rollout is not None) for index in range(request.choices)
        ),
        max_tokens=sampling.max_tokens,
        wants_stream=bool(request.stream),
        ignored=prompt.ignored,
    )


async def _at_once(work: Callable[..., T], *arguments: Any) -> T:
    return work(*arguments)


async def _aside(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(work, *arguments)


def _may_constrain(request: ChatRequest) -> bool:
    return bool(request.tools or request.structured_outputs or request.response_format)


def _check_engine_fields(request: ChatRequest, model: ServedModel) -> None:
    if request.cache_salt is not None and not _SALT.fullmatch(request.cache_salt):
        raise InvalidRequest(
            "cache_salt must have 1 to 128 characters without '@', '/', '\\' and NUL.", param="cache_salt"
        )
    if request.kv_transfer_params and not model.info.takes_kv_transfer:
        raise InvalidRequest(
            f"kv_transfer_params: the engine {model.info.name} keeps keys and values to itself",
            param="kv_transfer_params",
        )
    unknown = sorted(set(request.xargs or ()) - model.info.xargs)
    if unknown:
        field = "engine_xargs" if request.engine_xargs else "vllm_xargs"
        raise InvalidRequest(
            f"{field}: the engine {model.info.name} has no extra argument named {', '.join(unknown[:10])}", param=field
        )


def _cache_salt(request: ChatRequest, reach: str) -> str | None:
    """What keeps the prefix cache apart: callers whose keys are bound to something else find nothing of this one's.

    A bound caller's is longer than any that a client may send.
    """
    given = request.cache_salt
    return hashlib.sha512(f"{reach}@{given or ''}".encode()).hexdigest() + "." if reach else given


def _priority(request: ChatRequest, arrival: Arrival, model: ServedModel) -> int:
    priority = arrival.priority if arrival.priority is not None else request.priority or 0
    if priority and model.info.scheduling != "priority":
        raise InvalidRequest(
            f"priority is {priority}, and this server answers first come, first served; "
            "start it with --scheduling priority",
            param="priority",
        )
    if not -(2**31) <= priority < 2**31:
        raise InvalidRequest("priority must fit in 32 bits", param="priority")
    return priority


def _tools(request: ChatRequest, model: ServedModel) -> ToolPlan | None:
    style = None
    if request.tools:
        chosen = choose_template(model.tokenizer, request.chat_template, request.chat_template_kwargs, with_tools=True)
        style = detect_format(model.tokenizer, chosen.source)
    return ToolPlan.of(request.tools, request.tool_choice, request.parallel_tool_calls is not False, style)


def _prompt(request: ChatRequest, model: ServedModel, tools: ToolPlan | None) -> Prompt:
    return build_prompt(
        model.tokenizer,
        template_messages(request.messages),
        tools=tools.shown if tools is not None else None,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
        chat_template=request.chat_template,
        template_kwargs=request.chat_template_kwargs,
        reasoning_effort=request.reasoning_effort,
        find_reasoning=_may_constrain(request) and request.wants_reasoning,
        max_tokens=model.info.max_model_len,
        keeps_end=request.truncate_prompt_tokens is not None,
    )


def _truncated(request: ChatRequest, token_ids: tuple[int, ...], limit: int) -> tuple[int, ...]:
    count = request.truncate_prompt_tokens
    if count is not None and count > limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens={count} cannot be greater than max_model_len={limit}.",
            param="truncate_prompt_tokens",
        )
    if count is not None:
        token_ids = token_ids[-count:] if count > 0 else token_ids[-(limit - 1) :] if count == -1 else ()
    if not token_ids:
        raise InvalidRequest(
            "The prompt cannot be empty.", param="truncate_prompt_tokens" if count == 0 else "messages"
        )
    return token_ids


async def _constraint(
    request: ChatRequest, model: ServedModel, tools: ToolPlan | None, prompt: Prompt
) -> Constraint | None:
    """What the text must look like: forced calls, or the format that the request names."""
    wants_format = request.structured_outputs is not None or (request.response_format or _TEXT).type != "text"
    if not wants_format and (tools is None or not tools.constrains):
        return None
    # A model that thinks ends its thoughts first; what is wanted comes after them.
    waits = model.reasoning is not None and prompt.opens_reasoning and model.info.takes_after
    reasoning: Reasoning | None = None
    if model.reasoning is not None and not waits and (prompt.opens_reasoning or prompt.may_reason):
        reasoning = "open" if prompt.opens_reasoning else "optional"
    outputs, wanted = request.structured_outputs, request.response_format
    found = await compile_constraint(model, tools, outputs, wanted, reasoning)
    if found is None or model.reasoning is None or not waits:
        return found
    return replace(found, after=model.reasoning.end_token_ids)


def _request_id(request: ChatRequest, arrival: Arrival) -> str:
    given = arrival.request_id if arrival.request_id is not None else request.request_id
    if given is None:
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(given):
        raise InvalidRequest("request_id must have 1 to 256 visible ASCII characters", param="request_id")
    return given


def _shape(request: ChatRequest, model: ServedModel, name: str, shown: str, version: Version | None) -> Shape:
    last = request.messages[-1]
    role = last.role if request.add_generation_prompt is False else "assistant"
    usage: dict[str, Any] = {}
    if request.stream_options is not None and request.stream_options.include_usage:
        usage = {"include_usage": True, "usage_in_every_chunk": bool(request.stream_options.continuous_usage_stats)}
    return Shape(
        id=f"chatcmpl-{name}",
        created=times.now() // 1_000_000,
        model=shown,
        fingerprint=model.fingerprint(version),
        role=role,
        echo=message_text(template_messages([last])[0]) if request.echo and last.role == role else "",
        tokenizer=model.tokenizer,
        logprobs=bool(request.logprobs),
        names_as_ids=bool(request.return_tokens_as_token_ids),
        token_ids=bool(request.return_token_ids),
        prompt_ids=bool(request.return_token_ids),
        reasons=model.reasoning is not None,
        **usage,
    )


def _choice(
    index: int, request: ChatRequest, model: ServedModel, tools: ToolPlan | None, prompt: Prompt, is_rollout: bool
) -> Choice:
    reading = Reading(
        stops=tuple(request.stops),
        include_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        ending=frozenset(model.info.eos_token_ids).union(request.stop_token_ids or ()),
        shows_reasoning=request.wants_reasoning,
        shows_tokens=request.wants_reasoning or is_rollout,
    )
    marks = model.reasoning.token_ids if model.reasoning is not None else frozenset()
    detokenizer = model.tokenizer.detokenizer(
        request.skip_special_tokens is not False,
        request.spaces_between_special_tokens is not False,
        before=prompt.token_ids[-8:],
        keep=marks | (tools.style.token_ids(model.tokenizer) if tools is not None else frozenset()),
    )
    splitter = ReasoningSplitter(model.reasoning, prompt.opens_reasoning) if model.reasoning is not None else None
    return Choice(index, reading, detokenizer, splitter, tools, early=bool(request.stream))

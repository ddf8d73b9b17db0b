"""From a checked request to what the engine runs and how its tokens are read: every refusal happens here."""

import hashlib
import re
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.routing import OFF_LOOP_BYTES, off_loop
from heddle.inference.adapters import Version
from heddle.inference.chat.compile_process import CompileJob, Reasoning, compile_constraint
from heddle.inference.chat.generation import Choice, Facts, Reading
from heddle.inference.chat.request import (
    ChatRequest,
    is_greedy,
    known_ids,
    read_sampling,
    seed_of_choice,
    temperature_of,
)
from heddle.inference.chat.wire import Answer, ParsedRequest, Shape, Wire
from heddle.inference.engine.base import EngineInfo, Sampling, TokenRequest
from heddle.inference.prompt.messages import message_text, template_messages
from heddle.inference.prompt.reasoning import ReasoningSplitter
from heddle.inference.prompt.template import SHARED_PROCESSES, Prompt, build_prompt, choose_template, context_exceeded
from heddle.inference.served_model import ServedModel
from heddle.inference.structured.guidance import Constraint
from heddle.inference.tokenizer import Tokenizer
from heddle.inference.tools.channels import mark_ids
from heddle.inference.tools.formats import detect_format
from heddle.inference.tools.harmony import HarmonyParser
from heddle.inference.tools.plan import ToolPlan, check_parameters
from heddle.wire import times
from heddle.wire.inference import Completion

_ASKED = {"logprobs": True, "return_token_ids": True}
_CLOCK = "strftime_now"
"""What templates call to write the date."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A request to a trainable model, with log-probabilities and token ids switched on."""

    request: ChatRequest
    wants_prompt_ids: bool
    """The request itself asked for token ids."""
    needs_prompt_ids: bool
    """Rendering messages and tools again would not give the prompt."""

    @classmethod
    def of(cls, request: ChatRequest, tokenizer: Tokenizer) -> "Rollout":
        """The same request; a form of the tokens that it names (`return_tokens_as_token_ids`) is kept."""
        named = {} if request.return_tokens_as_token_ids is not None else {"return_tokens_as_token_ids": True}
        has_clock = any(_CLOCK in template for template in tokenizer.chat_templates.values())
        return cls(
            request=request.model_copy(update=_ASKED | named),
            wants_prompt_ids=bool(request.return_token_ids),
            needs_prompt_ids=has_clock
            or bool(
                request.chat_template is not None
                or request.chat_template_kwargs
                or request.documents
                or request.reasoning_effort is not None
                or request.add_generation_prompt is False
                or request.continue_final_message
                or request.add_special_tokens
                or request.truncate_prompt_tokens is not None
                or (request.tools and request.tool_choice == "none")
            ),
        )

    def sampling(self, sampling: Sampling, info: EngineInfo) -> Sampling:
        """Log-probabilities of the distribution that was drawn from: after the temperature, where it is not 1.

        Greedy answers keep the raw ones, as all others would be 0; so do those of an engine that has no others.
        """
        if is_greedy(sampling.temperature) or not info.scales_logprobs:
            return sampling
        return replace(sampling, logprobs_temperature=temperature_of(sampling.temperature))

    def shape(self, shape: Shape, sampling: Sampling) -> Shape:
        """What the answer carries."""
        temperature = sampling.logprobs_temperature
        return replace(
            shape,
            prompt_ids=self.wants_prompt_ids,
            prompt_ids_in_choices=self.wants_prompt_ids or self.needs_prompt_ids,
            logprobs_temperature=temperature if temperature != 1.0 else None,
        )


_SALT = re.compile(r"[^@/\\\0]{1,128}")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,256}")


class NamedModel(NamedTuple):
    """What a request named: the model, the name to show, and the adapter; None for the base model."""

    model: ServedModel
    shown: str
    version: Version | None

    @property
    def policy(self) -> str:
        """The name of the weights for the header `x-heddle-policy`."""
        return self.model.source.name if self.version is None else self.version.policy


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known about a request beside its body: who asks, for which project, and what came in headers."""

    caller: Caller
    project: str | None = None
    session: str | None = None
    """The agent's session; the thread of what names no other one."""
    request_id: str | None = None
    """Goes before the field of the body, and so does the priority."""
    priority: int | None = None
    size: int = OFF_LOOP_BYTES + 1
    """Bytes of the body; as many as a thread works on where nobody counted."""
    traced: bool = False
    """True when the one who asks shows the completion in a trace already."""
    strict_fields: bool | None = None
    """Whether a field without effect is refused; None leaves it to the settings."""

    def record(self, named: NamedModel, body: Any, **more: Any) -> Completion:
        """The record of a request that begins now."""
        name = named.model.source.name
        return Completion(
            caller=self.caller,
            project=self.project,
            model=named.shown,
            served=name if named.version is None else named.version.name,
            policy=named.policy,
            base=name,
            started_at=datetime.now(UTC),
            request=body,
            traced=self.traced,
            **more,
        )

    def choose_priority(self, asked: int | None, info: EngineInfo) -> int:
        """The priority of the header, else the one that the body asks for; raises InvalidRequest."""
        priority = self.priority if self.priority is not None else asked or 0
        if priority and info.scheduling != "priority":
            raise InvalidRequest(
                f"priority {priority} is not supported: this server schedules first come, first served; start "
                "it with --scheduling priority",
                param="priority",
            )
        if not -(2**31) <= priority < 2**31:
            raise InvalidRequest("priority must fit in 32 bits", param="priority")
        return priority

    def choose_id(self, asked: str | None) -> str:
        """The id of the header, else that of the body, else a random one; raises InvalidRequest."""
        given = self.request_id if self.request_id is not None else asked
        if given is None:
            return uuid.uuid4().hex
        if not _REQUEST_ID.fullmatch(given):
            raise InvalidRequest("request_id must have 1 to 256 visible ASCII characters", param="request_id")
        return given

    def salt_cache(self, asked: str | None) -> str | None:
        """The salt of cached prompts: keys that are bound to different projects share none. Raises InvalidRequest."""
        if asked is not None and not _SALT.fullmatch(asked):
            raise InvalidRequest(
                "cache_salt must have 1 to 128 characters without '@', '/', '\\' and NUL.", param="cache_salt"
            )
        reach = self.caller.reach
        return hashlib.sha512(f"{reach}@{asked or ''}".encode()).hexdigest() + "." if reach else asked


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one completion that is settled before the engine sees it."""

    answer: Answer
    facts: tuple[Facts, ...]
    """One for each prompt."""
    requests: tuple[TokenRequest, ...]
    choices: tuple[Choice, ...]
    max_tokens: int
    """Of all choices together."""
    wants_stream: bool
    ignored: tuple[str, ...]
    """What of the request had no effect, for the response header."""


async def plan_completion(parsed: ParsedRequest, wire: Wire, arrival: Arrival, named: NamedModel) -> Plan:
    """Check the request against the model and lay out its choices; raises InvalidRequest naming the field."""
    request, (model, _, version) = parsed.chat, named
    is_rollout = wire.carries_rollouts and version is not None and version.is_trainable
    rollout = Rollout.of(request, model.tokenizer) if is_rollout else None
    request = request if rollout is None else rollout.request
    if parsed.clamps_max_tokens and request.max_tokens is not None:
        request = request.model_copy(update={"max_tokens": min(request.max_tokens, model.info.max_model_len)})
    _check_engine_fields(request, model)
    priority, salt = arrival.choose_priority(request.priority, model.info), arrival.salt_cache(request.cache_salt)
    # Rendering and tokenizing take longer than parsing: the event loop should serve others meanwhile.
    run = partial(off_loop, 2 * arrival.size)
    tools = await run(lambda: plan_tools(request, model))
    await check_parameters(request.tools or ())

    def render() -> list[Prompt]:
        if parsed.prompts:
            return [_plain_prompt(prompt, request, model) for prompt in parsed.prompts]
        return [render_messages(request, model, tools, model.info.max_model_len)]

    # A template of the request is rendered by a process; this waits until one is free.
    has_template = request.chat_template is not None or "chat_template" in (request.chat_template_kwargs or ())
    prompts = await (SHARED_PROCESSES.run(render) if has_template else run(render))
    facts = tuple(Facts(_truncate(request, prompt.token_ids, model.info.max_model_len)) for prompt in prompts)
    samplings = await run(
        lambda: [
            read_sampling(request, len(fact.prompt_token_ids), model.defaults, model.tokenizer, model.info)
            for fact in facts
        ]
    )
    if rollout is not None:
        samplings = [rollout.sampling(sampling, model.info) for sampling in samplings]
    if parsed.prompt_choices is not None:
        choices_ = parsed.prompt_choices
        samplings = [replace(s, prompt_choices=choices_, prompt_logprobs=s.prompt_logprobs or 0) for s in samplings]
    constraint = await _constraint(request, model, tools, prompts[0]) if _may_constrain(request) else None
    name = arrival.choose_id(request.request_id)
    shape = _shape(request, named, parsed.answer_id or f"{wire.id_prefix}{name}", samplings[0])
    if rollout is not None:
        shape = rollout.shape(shape, samplings[0])
    requests: list[TokenRequest] = []
    choices: list[Choice] = []
    for prompt, fact, sampling in zip(prompts, facts, samplings, strict=True):
        for number in range(request.choices):
            index = len(choices)
            choices.append(_choice(index, request, model, tools, prompt, rollout is not None))
            requests.append(
                TokenRequest(
                    id=f"{name}-{uuid.uuid4().hex[:8]}-{index}",
                    prompt=fact.prompt_token_ids,
                    sampling=replace(sampling, seed=seed_of_choice(sampling.seed, number)),
                    adapter=version.ref if version is not None else None,
                    constraint=constraint,
                    priority=priority,
                    cache_salt=salt,
                    kv_transfer_params=request.kv_transfer_params,
                    xargs=request.xargs,
                )
            )
    return Plan(
        answer=parsed.make_answer(shape, facts, choices),
        facts=facts,
        requests=tuple(requests),
        choices=tuple(choices),
        max_tokens=sum(token_request.sampling.max_tokens for token_request in requests),
        wants_stream=bool(request.stream),
        ignored=(*parsed.ignored, *wire.name_ignored(prompts[0].ignored, parsed)),
    )


def _may_constrain(request: ChatRequest) -> bool:
    return bool(request.tools or request.structured_outputs or request.response_format)


def _check_engine_fields(request: ChatRequest, model: ServedModel) -> None:
    if request.kv_transfer_params and not model.info.takes_kv_transfer:
        raise InvalidRequest(
            f"kv_transfer_params: the engine {model.info.name} does not support transferring keys and values",
            param="kv_transfer_params",
        )
    unknown = sorted(set(request.xargs or ()) - model.info.xargs)
    if unknown:
        field = "engine_xargs" if request.engine_xargs else "vllm_xargs"
        raise InvalidRequest(
            f"{field}: the engine {model.info.name} has no extra argument named {', '.join(unknown[:10])}", param=field
        )


def plan_tools(request: ChatRequest, model: ServedModel) -> ToolPlan | None:
    """The tools that can be called; raises InvalidRequest for what fits neither them nor the model."""
    style = None
    if request.tools:
        chosen = choose_template(model.tokenizer, request.chat_template, request.chat_template_kwargs, with_tools=True)
        style = detect_format(model.tokenizer, chosen.source)
    return ToolPlan.of(request.tools, request.tool_choice, request.parallel_tool_calls is not False, style)


def _plain_prompt(given: str | tuple[int, ...], request: ChatRequest, model: ServedModel) -> Prompt:
    limit, tokenizer = model.info.max_model_len, model.tokenizer
    keeps_end = request.truncate_prompt_tokens is not None
    if isinstance(given, str):
        text = given[-limit * tokenizer.longest_token :] if keeps_end else given
        if not keeps_end and tokenizer.exceeds(text, limit):
            raise context_exceeded(limit)
        given = tuple(tokenizer.encode(text, bool(request.add_special_tokens)))
    else:
        given = known_ids("prompt", given, model.info.vocab_size)
    return Prompt(token_ids=given, text="", ignored=(), opens_reasoning=False)


def render_messages(request: ChatRequest, model: ServedModel, tools: ToolPlan | None, most: int) -> Prompt:
    """The messages through the template, refused when they have more than `most` tokens."""
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
        max_tokens=most,
        keeps_end=request.truncate_prompt_tokens is not None,
    )


def _truncate(request: ChatRequest, token_ids: tuple[int, ...], limit: int) -> tuple[int, ...]:
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
    response_format = request.response_format
    wants_format = request.structured_outputs is not None or (response_format and response_format.type != "text")
    if not wants_format and (tools is None or not tools.constrains):
        return None
    # A model that thinks ends its thoughts first; what is wanted comes after them.
    waits = model.reasoning is not None and prompt.opens_reasoning and model.info.takes_after
    reasoning: Reasoning | None = None
    if model.reasoning is not None and not waits and (prompt.opens_reasoning or prompt.may_reason):
        reasoning = "open" if prompt.opens_reasoning else "optional"
    found = await compile_constraint(
        CompileJob(
            name=model.source.name,
            folder=model.source.folder,
            vocab_size=model.info.vocab_size,
            eos=model.info.eos_token_ids,
            tools=tools,
            structured_outputs=request.structured_outputs,
            response_format=request.response_format,
            reasoning=reasoning,
            marks=model.reasoning,
            in_channels=model.harmony and not request.continue_final_message,
        )
    )
    if found is None or model.reasoning is None or not waits:
        return found
    return replace(found, after=model.reasoning.end_token_ids)


def _shape(request: ChatRequest, named: NamedModel, answer_id: str, sampling: Sampling) -> Shape:
    model = named.model
    role, echo = "assistant", ""
    if request.messages:
        last = request.messages[-1]
        role = last.role if request.add_generation_prompt is False else role
        echo = message_text(template_messages([last])[0]) if request.echo and last.role == role else ""
    usage: dict[str, Any] = {}
    if request.stream_options is not None and request.stream_options.include_usage:
        usage = {"include_usage": True, "usage_in_every_chunk": bool(request.stream_options.continuous_usage_stats)}
    return Shape(
        id=answer_id,
        created=times.now() // 1_000_000,
        model=named.shown,
        fingerprint=model.fingerprint(named.version),
        role=role,
        echo=echo,
        tokenizer=model.tokenizer,
        sampling=sampling,
        logprobs=bool(request.logprobs),
        names_as_ids=bool(request.return_tokens_as_token_ids),
        token_ids=bool(request.return_token_ids),
        prompt_ids=bool(request.return_token_ids),
        function_call=request.answers_with_function,
        reasons=model.can_reason,
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
    marks: frozenset[int] = frozenset()
    if request.messages:
        marks |= model.reasoning.token_ids if model.reasoning is not None else frozenset()
        marks |= tools.style.token_ids(model.tokenizer) if tools is not None else frozenset()
        marks |= mark_ids(model.tokenizer) if model.harmony else frozenset()
    detokenizer = model.tokenizer.detokenizer(
        request.skip_special_tokens is not False,
        request.spaces_between_special_tokens is not False,
        before=prompt.token_ids[-8:],
        keep=marks,
    )
    if not request.messages:  # what follows a prompt without messages is text, whatever marks are in it
        return Choice(index, reading, detokenizer, None, None)
    splitter = ReasoningSplitter(model.reasoning, prompt.opens_reasoning) if model.reasoning is not None else None
    parser = tools.parser(early=bool(request.stream)) if tools is not None else None
    if model.harmony and parser is None:
        parser = HarmonyParser((), early=False)
    if isinstance(parser, HarmonyParser):
        parser.begin_after(prompt.text)
    return Choice(index, reading, detokenizer, splitter, parser, tools is not None and tools.is_named)

"""From messages to the prompt: the chat template of the model or of the request, and the tokens of what it writes."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heddle.errors import InvalidRequest
from heddle.inference.prompt.messages import TemplateMessage, content_texts
from heddle.inference.prompt.reasoning import ReasoningMarks, detect_marks
from heddle.inference.prompt.render_process import Rendered, RenderJob, RenderProcesses, TemplateFailed, too_long
from heddle.inference.tokenizer import DEFAULT_TEMPLATE, Tokenizer

STANDARD_ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
FIELDS_OF_THE_REQUEST = frozenset({"messages", "tools", "documents"})
TOOL_TEMPLATE = "tool_use"
_MAX_CHARS = 1 << 24
_MARK_CHARS = 100
"""Room for the mark of a message that is continued."""


@dataclass(frozen=True, slots=True)
class ChosenTemplate:
    """The template of one request and where it is from."""

    source: str
    from_request: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads."""

    token_ids: tuple[int, ...]
    text: str
    ignored: tuple[str, ...]
    """Fields of the request that this template has no use for."""
    opens_reasoning: bool
    """The prompt ends inside a reasoning block."""
    may_reason: bool = False
    """The output may begin with a reasoning block: one that the template does not open, and that is not switched off.

    Only found out with `find_reasoning`."""


def choose_template(
    tokenizer: Tokenizer,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    with_tools: bool = False,
) -> ChosenTemplate:
    """The request's own template (the field wins over `chat_template_kwargs`), else the model's.

    A request may also name one of the model's templates. InvalidRequest when there is none.
    """
    asked = chat_template
    if asked is None and template_kwargs and template_kwargs.get("chat_template") is not None:
        asked = template_kwargs["chat_template"]
        if not isinstance(asked, str):
            raise InvalidRequest(
                "chat_template_kwargs.chat_template must be a string", param="chat_template_kwargs.chat_template"
            )
    stored = tokenizer.chat_templates
    if asked is not None:
        return ChosenTemplate(stored[asked], False) if asked in stored else ChosenTemplate(asked, True)
    if with_tools and TOOL_TEMPLATE in stored:
        return ChosenTemplate(stored[TOOL_TEMPLATE], False)
    if DEFAULT_TEMPLATE in stored:
        return ChosenTemplate(stored[DEFAULT_TEMPLATE], False)
    raise InvalidRequest("this model has no chat template; send one as chat_template", param="chat_template")


def build_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[TemplateMessage],
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    documents: Sequence[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    find_reasoning: bool = False,
    max_tokens: int = 1 << 24,
    keeps_end: bool = False,
) -> Prompt:
    """Render and tokenize; blocks for as long as that takes, so call it in a thread.

    `messages` come from `template_messages`; `tools` only those that the model shall see. A template of the request is
    rendered by a process. With `find_reasoning` the result says whether a reasoning block may come: needed where the
    output is constrained, for the price of a second rendering. What has more than `max_tokens` is refused before all of
    it is tokenized; with `keeps_end` only its end is. InvalidRequest, with `param`, for everything that cannot be
    rendered.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt cannot both be true; to continue the final "
            "message, set add_generation_prompt to false",
            param="continue_final_message",
        )
    fields = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
    for name, value in (template_kwargs or {}).items():
        if name in FIELDS_OF_THE_REQUEST or (name in fields and value != fields[name]):
            raise InvalidRequest(
                f"chat_template_kwargs.{name}: send {name} as a field of the request", param="chat_template_kwargs"
            )
    if not messages:
        raise InvalidRequest("messages must not be empty: send at least one message", param="messages")
    chosen = choose_template(tokenizer, chat_template, template_kwargs, with_tools=bool(tools))
    variables = {
        **tokenizer.special_tokens,
        **_settings(template_kwargs or {}, reasoning_effort),
        "tools": list(tools) if tools else None,
        "documents": list(documents) if documents else None,
        "add_generation_prompt": add_generation_prompt,
    }
    final = _FinalMessage(messages) if continue_final_message else None
    if not chosen.from_request and not keeps_end and len(messages) > max_tokens:
        raise context_exceeded(max_tokens)
    most = max_tokens * tokenizer.longest_token
    max_chars = _MAX_CHARS if keeps_end else min(_MAX_CHARS, most + _MARK_CHARS)
    job = RenderJob(chosen.source, final.add_mark() if final else list(messages), variables, max_chars)
    rendered = _render(job, chosen, max_tokens)
    text = final.cut(rendered.text) if final else rendered.text
    _check_use(rendered, text, messages, tools, chosen)
    read = text.encode("utf-8", "replace").decode()
    if not keeps_end and tokenizer.exceeds(read, max_tokens):
        raise context_exceeded(max_tokens)
    token_ids = tuple(tokenizer.encode(read[-most:], add_special_tokens))
    if not token_ids:
        raise InvalidRequest("the prompt is empty", param="chat_template" if chosen.from_request else "messages")
    marks, opens, may_reason = detect_marks(tokenizer), False, False
    if marks is not None:
        # A template opens a block with the last thing it writes; a continued message may lie inside one.
        opens = text.rstrip().endswith(marks.start) or (final is not None and final.inside_reasoning(marks))
    if find_reasoning and not opens and final is None and marks is not None:
        silent = job.variables | {"enable_thinking": False, "reasoning_effort": "none"}
        may_reason = _render(replace(job, variables=silent), chosen, max_tokens).text != text
    known = rendered.names | {"chat_template", "add_generation_prompt", "continue_final_message"}
    ignored = [f"chat_template_kwargs.{name}" for name in (template_kwargs or {}) if name not in known]
    if reasoning_effort is not None and not known & {"reasoning_effort", "enable_thinking"}:
        ignored.append("reasoning_effort")
    if documents and "documents" not in known:
        ignored.append("documents")
    return Prompt(token_ids, text, tuple(ignored), opens, may_reason)


class _FinalMessage:
    """A last message that the model continues: rendered with a mark at its end, the prompt is what stands before it."""

    def __init__(self, messages: Sequence[TemplateMessage]) -> None:
        self._messages = messages
        self._mark = f"ENDOFPROMPT{secrets.token_hex(8)}"
        texts = content_texts(messages[-1])
        reasoning: str = messages[-1].get("reasoning") or ""
        self.of_reasoning = bool(reasoning) and not any(texts)
        self._written = reasoning if self.of_reasoning else "\n".join(texts)

    def add_mark(self) -> list[TemplateMessage]:
        """The messages with the mark after the last content (or after the last reasoning where there is no content)."""
        last = dict(self._messages[-1])
        if last.get("tool_calls"):
            raise InvalidRequest(
                "continue_final_message: the last message ends with tool calls and cannot be continued",
                param="continue_final_message",
            )
        if self.of_reasoning:
            last["reasoning"] = last["reasoning_content"] = self._written + self._mark
        else:
            texts = content_texts(last) or [""]
            last["content"] = [*texts[:-1], texts[-1] + self._mark]
        return [*self._messages[:-1], last]

    def cut(self, text: str) -> str:
        """The prompt; InvalidRequest when the template did not write the last message."""
        before, mark, _ = text.rpartition(self._mark)
        if not mark:
            raise InvalidRequest(
                "continue_final_message: the chat template changes the last message, so it cannot be continued",
                param="continue_final_message",
            )
        return before

    def inside_reasoning(self, marks: ReasoningMarks) -> bool:
        """Whether what is continued is reasoning."""
        return self.of_reasoning or self._written.rfind(marks.start) > self._written.rfind(marks.end)


def _settings(template_kwargs: Mapping[str, Any], reasoning_effort: str | None) -> dict[str, Any]:
    """Variables that the request sets; those in chat_template_kwargs win."""
    settings = {name: value for name, value in template_kwargs.items() if name != "chat_template"}
    if reasoning_effort is None:
        return settings
    return {"reasoning_effort": reasoning_effort, "enable_thinking": reasoning_effort != "none"} | settings


class ContextExceeded(InvalidRequest):
    """The prompt leaves no room for output."""

    limit: int
    """Tokens that the context holds."""
    count: str
    """Tokens of the prompt, in words where nobody counted them all."""


def context_exceeded(max_tokens: int, prompt_tokens: int | None = None) -> ContextExceeded:
    """The refusal of a prompt that leaves no room for output; None where nobody counted how long it is."""
    count = f"at least {max_tokens + 1}" if prompt_tokens is None else str(prompt_tokens)
    error = ContextExceeded(
        f"This model's maximum context length is {max_tokens} tokens. However, your prompt contains {count} "
        "input tokens, which leaves no room for output. Please reduce the length of the input prompt.",
        param="input_tokens",
        code="context_length_exceeded",
    )
    error.limit, error.count = max_tokens, count
    return error


def _render(job: RenderJob, chosen: ChosenTemplate, max_tokens: int) -> Rendered:
    try:
        if not chosen.from_request:
            from heddle.inference.prompt.render import render

            return render(job)
        return SHARED_PROCESSES.render(job)
    except TemplateFailed as error:
        if job.max_chars < _MAX_CHARS and str(error) == too_long(job.max_chars):
            raise context_exceeded(max_tokens) from error
        raise InvalidRequest(str(error), param="chat_template" if chosen.from_request else "messages") from error


def _check_use(
    rendered: Rendered,
    text: str,
    messages: Sequence[TemplateMessage],
    tools: Sequence[dict[str, Any]] | None,
    chosen: ChosenTemplate,
) -> None:
    """Refuse tools that the template has no place for, and roles that the model's own template skips."""
    if tools and "tools" not in rendered.names:
        whose = "sent" if chosen.from_request else "of this model"
        raise InvalidRequest(f"tools: the chat template {whose} does not support tools", param="tools")
    if chosen.from_request:
        return
    for index, message in enumerate(messages):
        if message["role"] in STANDARD_ROLES:
            continue
        for content in filter(None, map(str.strip, content_texts(message))):
            if content not in text and json.dumps(content, ensure_ascii=False)[1:-1] not in text:
                raise InvalidRequest(
                    f"messages.{index}: the chat template of this model does not support the role '{message['role']}'",
                    param=f"messages.{index}.role",
                )


SHARED_PROCESSES = RenderProcesses()

"""Chat templates: Jinja in a sandbox, with what Hugging Face models expect to find there."""

import contextlib
import datetime
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from heddle.inference.prompt.messages import TemplateMessage, content_texts, message_text
from heddle.inference.prompt.render_process import Rendered, RenderJob, TemplateFailed, too_long
from heddle.ipc.bounded import answer_jobs
from heddle.wire.jsontypes import Json

MAX_SOURCE = 1 << 20
"""Characters of a template."""
_NINE = re.compile(r"length\s*[!=]=\s*9\b")
_FIRST_CALL = re.compile(r"tool_calls\s*\[\s*0\s*\]")
_EACH_CALL = re.compile(r"in\s+[\w.\[\]'\"]*tool_calls")
_CALL_ID = re.compile(r"call(?:\.id\b|\[['\"]id['\"]\])")
_THINKING = re.compile(r"message(?:\.|\[['\"])thinking\b")
"""How templates take the first call of a message, walk over all, write ids, and read thoughts."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: jinja2.Template
    names: frozenset[str]
    compared: frozenset[str]
    """Texts that the template compares something with, such as names of roles."""
    wants_parts: bool
    """It walks over the parts of a content and has no branch for plain text."""
    wants_short_ids: bool
    """It refuses ids of tool calls that are not nine letters and digits."""
    wants_named_ids: bool
    """It writes the id of a call in the place of its name."""
    wants_single_calls: bool
    """It writes one tool call of each message."""
    wants_thinking: bool
    """It reads thoughts as `thinking`, and before a call either thoughts or a text."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's part for training; here its body simply stands."""

    tags = {"generation"}  # noqa: RUF012 (declared like this by the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def render(job: RenderJob) -> Rendered:
    """Fill a template; TemplateFailed with the reason for whatever goes wrong in it."""
    try:
        compiled = _compile(job.source)
        given = _separate_calls(job.messages) if compiled.wants_single_calls else job.messages
        given = _name_ids(given) if compiled.wants_named_ids else given
        messages = [_for_template(message, compiled) for message in given]
        try:
            text = _fill(compiled, job, messages)
        except TypeError:
            # some templates glue the arguments of tool calls to text instead of writing them as JSON
            text = _fill(compiled, job, [_with_text_arguments(message) for message in messages])
    except jinja2.TemplateSyntaxError as error:
        raise TemplateFailed(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
    except (TemplateFailed, _Raised) as error:
        raise TemplateFailed(str(error)) from error
    except MemoryError as error:
        raise TemplateFailed("the chat template needs too much memory") from error
    except RecursionError as error:
        raise TemplateFailed("the chat template is nested too deeply") from error
    except Exception as error:  # a template can raise anything
        raise TemplateFailed(f"the chat template failed: {type(error).__name__}: {error}") from error
    return Rendered(text, compiled.names)


class _Raised(jinja2.TemplateError):
    """What `raise_exception` in a template raises."""


def prepare(source: str) -> None:
    """Read a template before the first request needs it; one that cannot be read fails then."""
    with contextlib.suppress(Exception):
        _compile(source)


def _raise_exception(message: object) -> None:
    raise _Raised(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models read it: unlike Jinja's own filter, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=16)
def _compile(source: str) -> _Compiled:
    if len(source) > MAX_SOURCE:
        raise TemplateFailed(f"the chat template is longer than {MAX_SOURCE} characters")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.datetime.now().strftime(layout)
    tree = environment.parse(source)
    return _Compiled(
        template=environment.from_string(source),
        names=frozenset(meta.find_undeclared_variables(tree)),
        compared=frozenset(
            constant.value
            for comparison in tree.find_all(nodes.Compare)
            for constant in comparison.find_all(nodes.Const)
            if isinstance(constant.value, str)
        ),
        wants_short_ids=_NINE.search(source) is not None,
        wants_thinking=_THINKING.search(source) is not None,
        wants_named_ids="<|tool_call_begin|>" in source and _CALL_ID.search(source) is not None,
        wants_single_calls=_FIRST_CALL.search(source) is not None and _EACH_CALL.search(source) is None,
        wants_parts=_walks_content(tree) and not any(test.name == "string" for test in tree.find_all(nodes.Test)),
    )


def _walks_content(tree: nodes.Template) -> bool:
    """Whether a loop runs over `message.content`, directly or through a name that was set to it."""

    def is_content(node: nodes.Node) -> bool:
        match node:
            case nodes.Getattr(attr="content"):
                return True
            case nodes.Getitem(arg=nodes.Const(value="content")):
                return True
            case nodes.Name(name=name):
                return name in aliases
        return False

    aliases: set[str] = set()
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and is_content(assignment.node):
            aliases.add(assignment.target.name)
    return any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _fill(compiled: _Compiled, job: RenderJob, messages: list[TemplateMessage]) -> str:
    chunks: list[str] = []
    left = job.max_chars
    for chunk in compiled.template.generate({**job.variables, "messages": messages}):
        left -= len(chunk)
        if left < 0:
            raise TemplateFailed(too_long(job.max_chars))
        chunks.append(chunk)
    return "".join(chunks)


def _for_template(message: TemplateMessage, compiled: _Compiled) -> TemplateMessage:
    """The message with its content in the form, and its role under the name, that this template has a branch for."""
    content: Any = message_text(message)
    if compiled.wants_parts:
        content = [{"type": "text", "text": text} for text in content_texts(message)]
    if compiled.wants_short_ids:
        message = _with_short_ids(message)
    if compiled.wants_thinking and message.get("reasoning"):
        message = {**message, "thinking": message["reasoning"]}
        if message.get("tool_calls") and content:
            said = f"{message['reasoning']}\n\n{message_text(message)}"
            message, content = {**message, "thinking": said}, [] if compiled.wants_parts else ""
    role = message["role"]
    usual = {"developer": "system", "function": "tool"}.get(role)
    return {
        **message,
        "role": (usual if usual in compiled.compared and role not in compiled.compared else role),
        "content": content,
    }


def _separate_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Each call of a message as a message of its own, followed by its result; what the message says goes first."""
    found: list[TemplateMessage] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or []
        if not calls:
            found.append(message)
            continue
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        silent = {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}
        for number, call in enumerate(calls):
            found.append({**(silent | {"content": []} if number else message), "tool_calls": [call]})
            matching = [result for result in results if call.get("id") and result.get("tool_call_id") == call["id"]]
            mine = matching[:1] or results[: 1 if number < len(calls) - 1 else None]
            found += mine
            results = [result for result in results if not any(result is taken for taken in mine)]
        found += results
    return found


def _name_ids(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Calls and results with ids in the form `functions.NAME:NUMBER`, numbered through the conversation."""
    names: dict[str, str] = {}
    found: list[TemplateMessage] = []
    number = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            named = f"functions.{call['function']['name']}:{number}"
            names[call.get("id") or ""] = named
            calls.append({**call, "id": named})
            number += 1
        changed = {**message, "tool_calls": calls} if calls else dict(message)
        if message.get("tool_call_id") in names:
            changed["tool_call_id"] = names[message["tool_call_id"]]
        found.append(changed)
    return found


def _with_short_ids(message: TemplateMessage) -> TemplateMessage:
    changed = dict(message)
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _shorten_id(message["tool_call_id"])
    if message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _shorten_id(call.get("id") or "")} for call in message["tool_calls"]]
    return changed


def _shorten_id(call_id: str) -> str:
    """Nine letters and digits that stand for an id; one of that form stays as it is."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _with_text_arguments(message: TemplateMessage) -> TemplateMessage:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _tojson(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _answer(job: Json) -> Json:
    try:
        rendered = render(RenderJob(**job))
    except TemplateFailed as error:
        return {"error": str(error)}
    return {"text": rendered.text, "names": sorted(rendered.names)}


if __name__ == "__main__":
    answer_jobs(_answer)

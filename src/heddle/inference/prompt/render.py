"""Chat templates: Jinja in a sandbox, with what Hugging Face models expect to find there."""

import contextlib
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from heddle.inference.prompt.messages import content_texts, message_text
from heddle.inference.prompt.render_job import Rendered, RenderJob, TemplateFailed, too_long

MAX_SOURCE = 1 << 20
"""Characters of a template."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: jinja2.Template
    names: frozenset[str]
    compared: frozenset[str]
    """Texts that the template compares something with, such as names of roles."""
    wants_parts: bool
    """It walks over the parts of a content and has no branch for plain text."""


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
        messages = [_for_template(message, compiled) for message in job.messages]
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


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models read it: unlike Jinja's own filter, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=16)
def _compile(source: str) -> _Compiled:
    if len(source) > MAX_SOURCE:
        raise TemplateFailed(f"the chat template is longer than {MAX_SOURCE} characters")
    environment = _environment()
    tree = environment.parse(source)
    return _Compiled(
        template=environment.from_string(source),
        names=frozenset(meta.find_undeclared_variables(tree)),
        compared=frozenset(_compared(tree)),
        wants_parts=_walks_content(tree) and not any(test.name == "string" for test in tree.find_all(nodes.Test)),
    )


def _compared(tree: nodes.Template) -> Iterator[str]:
    for comparison in tree.find_all(nodes.Compare):
        for constant in comparison.find_all(nodes.Const):
            if isinstance(constant.value, str):
                yield constant.value


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


def _fill(compiled: _Compiled, job: RenderJob, messages: list[dict[str, Any]]) -> str:
    chunks: list[str] = []
    room = job.max_chars
    for chunk in compiled.template.generate({**job.variables, "messages": messages}):
        room -= len(chunk)
        if room < 0:
            raise TemplateFailed(too_long(job.max_chars))
        chunks.append(chunk)
    return "".join(chunks)


def _for_template(message: dict[str, Any], compiled: _Compiled) -> dict[str, Any]:
    """The message with its content in the form, and its role under the name, that this template has a branch for."""
    content: Any = message_text(message)
    if compiled.wants_parts:
        content = [{"type": "text", "text": text} for text in content_texts(message)]
    return {**message, "role": _role(message["role"], compiled.compared), "content": content}


def _role(role: str, compared: frozenset[str]) -> str:
    """Newer and older names of a role, where a template knows only the usual one and would drop the message."""
    usual = {"developer": "system", "function": "tool"}.get(role)
    return usual if usual in compared and role not in compared else role


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _tojson(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}

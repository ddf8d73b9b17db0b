"""A synthetic conversation, and its text by the model's own chat template."""

import datetime
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"
Message = dict[str, Any]


@dataclass(slots=True)
class Chat:
    """Messages that end with the assistant's answer, and what else the template is given."""

    task: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    documents: list[dict[str, str]] = field(default_factory=list)
    effort: str | None = None

    def text(self) -> str:
        """The whole conversation as the model reads it."""
        return render(self.messages, self.tools, self.documents, self.effort)

    def prompt(self) -> str:
        """The conversation up to the point where the last answer starts."""
        return render(self.messages[:-1], self.tools, self.documents, self.effort, add_generation_prompt=True)


def render(
    messages: list[Message],
    tools: list[dict[str, Any]] | None = None,
    documents: list[dict[str, str]] | None = None,
    effort: str | None = None,
    **variables: Any,
) -> str:
    """Fill the template the way servers and transformers do."""
    return template().render(messages=messages, tools=tools, documents=documents, reasoning_effort=effort, **variables)


@cache
def template() -> Template:
    """The chat template in a sandbox with the usual helpers."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json_text
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda layout: datetime.datetime.now().strftime(layout)
    return environment.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON without escapes for HTML or for other alphabets."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def refuse(message: str) -> None:
    """What a template calls when it cannot render; ValueError with its message."""
    raise ValueError(message)

"""Rendering in a child process, so that no template of a request can hold up or fill up the server."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from heddle.inference.prompt.messages import TemplateMessage
from heddle.ipc.bounded import CPU_SECONDS, BoundedProcesses, TooMuchWork


class TemplateFailed(Exception):
    """A template that cannot be read or cannot render these messages; the text is for the client's user."""


def too_long(max_chars: int) -> str:
    """What is said of a text that is longer than may come out."""
    return f"the chat template writes more than {max_chars} characters"


@dataclass(frozen=True, slots=True)
class RenderJob:
    """One rendering; everything in it can be written as JSON."""

    source: str
    messages: list[TemplateMessage]
    """From `template_messages`."""
    variables: dict[str, Any] = field(default_factory=dict)
    max_chars: int = 1 << 24
    """Longest text that may come out."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text, and the names that the template takes from outside."""

    text: str
    names: frozenset[str]


T = TypeVar("T")


class RenderProcesses:
    """Renders in child processes."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._processes = BoundedProcesses("heddle.inference.prompt.render", cpu_seconds)

    def render(self, job: RenderJob) -> Rendered:
        """As `render.render`; blocks. TemplateFailed also for too much time or memory."""
        try:
            answer = self._processes.ask(asdict(job), job.source)
        except TooMuchWork as error:
            raise TemplateFailed(f"the chat template {error}") from None
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return Rendered(answer["text"], frozenset(answer["names"]))

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function that renders, when it is the turn of who asks; its process ends when that is cancelled."""
        return await self._processes.run(work, *arguments)

    def close(self) -> None:
        """End the process that waits for the next job."""
        self._processes.close()

"""A process that renders the templates of requests, so that none can hold up or fill up the server."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from heddle.inference.prompt.render_job import Rendered, RenderJob, TemplateFailed
from heddle.ipc.bounded import CPU_SECONDS, BoundedProcesses, TooMuchWork, answer_jobs
from heddle.wire.jsontypes import Json

T = TypeVar("T")


class RenderProcesses:
    """Renders in child processes."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._processes = BoundedProcesses(__name__, cpu_seconds)

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


def main() -> None:
    """Answer jobs until the input ends."""
    from heddle.inference.prompt.render import render

    def answer(job: Json) -> Json:
        try:
            rendered = render(RenderJob(**job))
        except TemplateFailed as error:
            return {"error": str(error)}
        return {"text": rendered.text, "names": sorted(rendered.names)}

    answer_jobs(answer)


if __name__ == "__main__":
    main()

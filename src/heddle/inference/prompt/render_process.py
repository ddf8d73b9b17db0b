"""A process that renders the templates of requests, so that none can hold up or fill up the server."""

from dataclasses import asdict

from heddle.bounded import CPU_SECONDS, BoundedProcesses, Json, answer_jobs
from heddle.inference.prompt.render_job import Rendered, RenderJob, TemplateFailed


class RenderProcesses:
    """Renders in child processes."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._processes = BoundedProcesses(__name__, cpu_seconds)

    def render(self, job: RenderJob) -> Rendered:
        """As `render.render`; blocks. TemplateFailed also for too much time or memory."""
        answer = self._processes.ask(asdict(job))
        if answer is None:
            seconds = self._processes.cpu_seconds
            raise TemplateFailed(f"the chat template needs more than {seconds:g} s or too much memory")
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return Rendered(answer["text"], frozenset(answer["names"]))

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

"""`python -m heddle.worker SOCKET` for the server; `torchrun ... -m heddle.worker --job FOLDER` for people."""

import sys
from collections.abc import Callable
from pathlib import Path

from heddle.training.base import Message, Renderer, Task
from heddle.worker.serve import Ranks, RunTask, serve


def start() -> tuple[RunTask, Ranks]:
    """Import the trainer, and join the other ranks."""
    from heddle.inference.prompt.trajectory_renderer import TrajectoryRenderer
    from heddle.training.trainer.ranks import join
    from heddle.training.trainer.run import PolicyCache, run_task

    ranks = join()
    cache = PolicyCache()
    renderers: dict[str, Renderer] = {}

    def run(task: Task, report: Callable[[Message], None], cancelled: Callable[[], bool]) -> None:
        if task.base_folder not in renderers:
            renderers.clear()
            renderers[task.base_folder] = TrajectoryRenderer.load(Path(task.base_folder))
        run_task(task, renderers[task.base_folder], report, cancelled, cache, ranks)

    return run, ranks


if __name__ == "__main__":
    serve(sys.argv[1:], start)

"""`python -m heddle.trainer_process SOCKET` for the server; with `--job|--watch FOLDER`, under torchrun, for people."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from heddle import paths
from heddle.trainer_process.serve import serve
from heddle.training.messages import Behind, Failed, Message, Operation, Performed, Request, Task, Warm
from heddle.training.sequences import Renderer

if TYPE_CHECKING:
    from heddle.training.trainer.operations import Runs


class TorchTrainer:
    """The trainer with the chat template that inference uses; keeps the last base model and its tokenizer."""

    def __init__(self) -> None:
        """Imports the trainer, and joins the other ranks."""
        from heddle.training.trainer.ranks import join_ranks
        from heddle.training.trainer.run import PolicyCache

        self._ranks = join_ranks()
        self._cache = PolicyCache()
        self._runs: Runs | None = None
        self._renderers: dict[str, Renderer] = {}
        self.rank = self._ranks.rank

    def share(self, request: Request | None) -> Request:
        """Rank 0's request, on all ranks."""
        return cast(Request, self._ranks.share(request))

    def leave(self) -> None:
        """Part from the other ranks."""
        self._ranks.leave()

    def warm(self, warm: Warm) -> None:
        """Read a base model."""
        self._renderer(warm.base_folder)
        self._cache.load(warm.base_folder, warm.device, warm.dtype)

    def perform(self, operation: Operation) -> Performed | Behind | Failed:
        """Do one request of a run of Tinker's protocol."""
        if self._runs is None:
            from heddle.training.trainer.operations import Runs

            self._runs = Runs(self._cache)
        return self._runs.perform(operation)

    def run(self, task: Task, report: Callable[[Message], None], cancelled: Callable[[], bool]) -> None:
        """Do a task."""
        from heddle.training.trainer.run import run_task

        run_task(task, self._renderer(task.base_folder), report, cancelled, self._cache, self._ranks)

    def _renderer(self, base_folder: str) -> Renderer:
        from heddle.inference.trajectory_renderer import TrajectoryRenderer

        if base_folder not in self._renderers:
            self._renderers = {base_folder: TrajectoryRenderer.load(Path(base_folder))}
        return self._renderers[base_folder]


def main(arguments: list[str]) -> None:
    """Run with command-line arguments; for starters that call a function, such as Ray Train."""
    paths.keep_private()
    serve(arguments, TorchTrainer)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Driver of heddle: whole jobs on the code path of its worker process, each from the same checkpoint and body."""

import shutil
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "inference"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver
import steps

MOST_LENGTH = 32_768


class Trainer:
    """One worker's cache and renderer in this process."""

    def load(self, folder: str, adapter: str, threads: int, learning_rate: float, **_: Any) -> dict[str, Any]:
        """Import what the worker imports; the model is loaded by the first job."""
        from heddle.inference.trajectory_renderer import TrajectoryRenderer
        from heddle.training.config import RlConfig
        from heddle.training.messages import Task
        from heddle.training.trainer.run import PolicyCache

        self.renderer = TrajectoryRenderer.load(Path(folder))
        self.cache = PolicyCache()
        self.rate = learning_rate
        self.place = Path(tempfile.mkdtemp(dir=Path(adapter).parent))
        self.task = Task(
            job_id=str(uuid.UUID(int=1)),
            kind="rl",
            base_folder=folder,
            payload="",
            config=RlConfig(learning_rate=learning_rate).as_json(),
            parent=adapter,
            target="",
            work="",
            step=1,
            lora={},
            dtype="float32",
            threads=threads,
            max_length=MOST_LENGTH,
        )
        return {"dtype": "float32"}

    def batch(self, path: str) -> dict[str, Any]:
        """The body that the next jobs train on."""
        self.task.payload = path
        return {}

    def loss(self, settings: dict[str, Any]) -> dict[str, float]:
        """Loss and norm of the first gradient under other settings."""
        from heddle.training.schemas.requests import ExperimentalConfig, resolve_config

        given = ExperimentalConfig.model_validate(settings | {"learning_rate": self.rate})
        _, told = self._job(config=resolve_config(given).as_json())
        return {"loss": told["loss/train"], "grad_norm": told["loss/grad_norm"]}

    def run(self, count: int) -> dict[str, Any]:
        """Whole jobs; of each the seconds of its gradient steps, and `job`, the CPU seconds of all of it."""
        steps.forget_peak()
        return {"steps": [self._job()[0] for _ in range(count)], **steps.memory()}

    def _job(self, **changes: Any) -> tuple[dict[str, float], dict[str, float]]:
        """One job; its seconds, and the data of its first gradient step."""
        from heddle.training.messages import Message, Started, Stepped
        from heddle.training.trainer.run import run_task

        marks: list[tuple[float, float]] = []
        told: dict[str, float] = {}

        def report(message: Message) -> None:
            if isinstance(message, Started | Stepped):
                marks.append((time.perf_counter(), time.process_time()))
            if isinstance(message, Stepped) and message.index == 0:
                told.update(message.data)

        folder = Path(tempfile.mkdtemp(dir=self.place))
        task = replace(self.task, target=str(folder / "0001"), work=str(folder / "work"), **changes)
        Path(task.work).mkdir()
        began = time.process_time()
        run_task(task, self.renderer, report, lambda: False, self.cache)
        job = time.process_time() - began
        shutil.rmtree(folder)
        (wall, cpu), (last_wall, last_cpu) = marks[0], marks[-1]
        return {"wall": last_wall - wall, "cpu": last_cpu - cpu, "job": job}, told


if __name__ == "__main__":
    trainer = Trainer()
    driver.serve({"load": trainer.load, "batch": trainer.batch, "loss": trainer.loss, "run": trainer.run})

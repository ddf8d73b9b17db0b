"""The server's side of a worker on another machine: jobs are handed over as folders on shared storage."""

import asyncio
from collections import deque
from pathlib import Path

from heddle.training import handover
from heddle.training.base import Failed, Finished, Task
from heddle.training.queue.messages import Answer, Beat, Crashed, Stopped, Warm, decode
from heddle.training.queue.process import BEATS_PER_LEASE, ProcessEnded, ProcessOptions

LOOK_SECONDS = 0.2


class HandedOver:
    """Whatever worker takes the next job; as a process it is the same to its slot as one of this machine."""

    has_ended = False
    pid = None

    def __init__(self, root: Path, silence: float) -> None:
        self._root = root
        self._silence = silence
        self._task: Task | None = None
        self._folder: Path | None = None
        self._lines: deque[bytes] = deque()
        self._read = 0
        self._rest = b""
        self._is_given_up = self._is_killed = False

    @classmethod
    async def start(cls, options: ProcessOptions) -> "HandedOver":
        """Nothing is started: workers watch the folder by themselves."""
        assert options.handover is not None
        return cls(options.handover, options.silence)

    def send(self, task: Task) -> None:
        """Give out a task; it is offered, and its messages come, through `receive`."""
        self._task = task

    def warm(self, warm: Warm) -> None:
        """Workers read a base model with their first job."""

    def give_up(self, job_id: str) -> None:
        """Ask for the end of the task between two gradient steps."""
        self._is_given_up = self._task is not None and self._task.job_id == job_id

    def kill(self) -> None:
        """Take the task away: the worker stops as soon as it notices."""
        self._is_killed = True

    async def receive(self) -> Answer:
        """The next message that is no heartbeat; raises ProcessEnded when the worker crashed or fell silent."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            while self._lines:
                heard = clock()
                answer = decode(self._lines.popleft())
                if isinstance(answer, Crashed):
                    await self.close()
                    raise ProcessEnded(f"the worker failed: {answer.reason}")
                if isinstance(answer, Finished | Failed | Stopped):
                    await self.close()
                if not isinstance(answer, Beat):
                    return answer
            is_taken = await asyncio.to_thread(self._look)
            if self._is_killed or (is_taken and not self._lines and clock() - heard > self._silence):
                await self.close()
                raise ProcessEnded(f"the worker was silent for {self._silence:g} s")
            if not self._lines:
                heard = heard if is_taken else clock()
                await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Withdraw what is not done."""
        folder, self._folder, self._task = self._folder, None, None
        self._is_given_up = self._is_killed = False
        if folder is not None:
            await asyncio.to_thread(handover.withdraw, folder)

    def _look(self) -> bool:
        """Read what is new; True once a worker has taken the task."""
        if self._folder is None:
            assert self._task is not None
            self._folder = handover.offer(self._root, self._task, self._silence / BEATS_PER_LEASE)
            self._lines.clear()
            self._read, self._rest = 0, b""
        if self._is_given_up:
            (self._folder / handover.CANCEL).touch()
        if not (self._folder / handover.TAKEN).exists():
            return False
        try:
            with (self._folder / handover.MESSAGES).open("rb") as file:
                file.seek(self._read)
                news = file.read()
        except FileNotFoundError:
            return True
        self._read += len(news)
        *lines, self._rest = (self._rest + news).split(b"\n")
        self._lines.extend(lines)
        return True

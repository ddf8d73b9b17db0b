"""Shared by the scenarios of agents: the task, and what became of it."""

import os
import pathlib
from typing import Any

FOLDER = pathlib.Path(os.environ["SCENARIO_FOLDER"]) / "work"
FOLDER.mkdir(exist_ok=True)
TASK = f"Work in {FOLDER}. Take the nine steps."


def result(answer: str, session: str) -> dict[str, Any]:
    """What the agent answered and left in its folder, and what it calls its conversation."""
    files = {str(path.relative_to(FOLDER)): path.read_text() for path in sorted(FOLDER.rglob("*.txt"))}
    return {"answer": answer, "files": files, "session": session}

"""`heddle demo` where neither an SDK nor the packages of a model are installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.bare import PACKAGES, without


def test_the_demo_shows_the_example_and_says_what_more_needs(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": without(tmp_path, (*PACKAGES, "weave", "openai")),
        "COLUMNS": "120",
    }
    command = [sys.executable, "-m", "heddle", "demo", "--end"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert re.search(r"^\d+ calls in 31 traces$", done.stdout, re.MULTILINE)
    assert "dataset example-questions, version 0" in done.stdout and "wandb.note.1" in done.stdout
    assert re.search(r"gpt-4o-mini +\d+ +\d+ +\d+ +\$0\.\d+ +default table", done.stdout)
    assert "the evaluation:" in done.stdout and "try the model" not in done.stdout
    assert "[demo,inference,training]'" in done.stdout

"""How many files of `src/heddle` a request enters does not grow."""

import re
import subprocess
import sys
from pathlib import Path

MOST = {"/otel/v1/traces": 38, "/call/start": 20, "/calls/stream_query": 20, "/evaluations/evaluate_model": 32}


def test_requests_enter_no_more_files() -> None:
    # A process of its own: it watches all threads of the server, from the first.
    command = [sys.executable, "-m", "tools.count_trips"]
    output = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    counts = {path: int(count) for count, path in re.findall(r"^ *(\d+)  (.+)$", output, re.MULTILINE)}
    assert counts.keys() == MOST.keys()
    assert {path: count for path, count in counts.items() if count > MOST[path]} == {}

"""`heddle demo` as a user runs it: real SDKs, a real server, what was stored, and a model that learns."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(
        importlib.util.find_spec("weave") is None, reason="the weave SDK is not installed beside heddle"
    ),
    pytest.mark.skipif(shutil.which("curl") is None, reason="what the demo prints for curl is tried with curl"),
]
LONGEST = 400.0
"""Seconds; a demo that hangs is killed."""


def check_traces(text: str) -> None:
    """What the traced program did, and what it cost."""
    assert "21 calls in 8 traces of thread demo-visitor" in text
    assert len(re.findall(r"✓ search ", text)) == 3
    assert len(re.findall(r"✗ .*order 1007 is not known", text)) == 2
    assert re.search(r"gpt-4o-mini +3 +174 +24 +\$0\.000040 +default table", text)
    assert re.search(r"shop-writer-1 +3 +150 +24 +\$0\.000049 +this project", text)
    assert "dataset shop-questions, version 0" in text
    for kind in ("wandb.reaction.1", "wandb.note.1", "rating"):
        assert kind in text


def check_chats(text: str) -> None:
    """What the small model answered."""
    assert re.search(r"streamed in \d+ pieces", text)
    assert re.search(r"structured .* Order\(item='\w+',", text)
    assert re.search(r"with a tool .* find_order\(\{\"number\":", text)
    assert len(re.findall("✓ heddle.chat.completions ", text)) == 4
    assert re.search(r"heddle-tiny +4 +\d+ +\d+ +\$0\.000000 +unpriced", text)


def check_learning(text: str) -> None:
    """The reward rises, in the evaluation and in the rollouts."""
    for what in ("evaluation, 16 questions that training never saw", "rollouts, first and last of 25 steps"):
        found = re.search(rf"{what} +(\d\.\d\d) +(\d\.\d\d)", text)
        assert found is not None and float(found[2]) >= float(found[1]) + 0.2, text[-3000:]


def check_links(lines: list[str]) -> None:
    """The commands that are printed show what they say."""
    commands = [line.partition(":")[2].strip() for line in lines if " curl " in line]
    checkpoints, jobs, before, after = (answer_of(command) for command in commands)
    assert [item["step"] for item in checkpoints["data"]] and {job["state"] for job in jobs["data"]} == {"succeeded"}
    rewards = [call["call"]["output"]["preference"]["reward"]["mean"] for call in (before, after)]
    assert rewards[1] >= rewards[0] + 0.2


def answer_of(command: str) -> Any:
    """What a printed command answers."""
    return json.loads(subprocess.check_output([*shlex.split(command), "-s"], timeout=30))


def interruptible() -> None:
    """Ctrl-C works in the demo, also where the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_demo_shows_everything_and_serves_until_told_to_stop(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "heddle", "demo", "--keep"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "bufsize": 1}
    with subprocess.Popen(command, env=environment, preexec_fn=interruptible, **pipes) as process:
        assert process.stdout is not None
        guard = threading.Timer(LONGEST, process.terminate)
        guard.daemon = True
        guard.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("The server stays: "):
                break
        text = "".join(lines)
        assert "Traceback" not in text and lines[-1].startswith("The server stays: "), text
        check_traces(text)
        check_chats(text)
        check_learning(text)
        check_links(lines)
        address = lines[-1].split()[3].removesuffix("/docs")
        counted = httpx.post(address + "/calls/query_stats", json={"project_id": "demo/shop-assistant"})
        assert counted.json()["count"] == 21
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        guard.cancel()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/health")
    assert list(tmp_path.iterdir()) == []

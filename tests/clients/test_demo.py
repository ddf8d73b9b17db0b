"""`heddle demo` as a user runs it: real SDKs, a real server, what was stored, and a model that learns."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.client,
    pytest.mark.skipif(
        importlib.util.find_spec("weave") is None, reason="the weave SDK is not installed beside heddle"
    ),
]
PROJECT = "demo/shop-assistant"
LONGEST = 400.0
"""Seconds; a demo that hangs is killed."""


def check_traces(text: str) -> None:
    """What the traced program did, and what it cost."""
    assert "25 calls in 8 traces of thread demo-visitor" in text
    assert len(re.findall(r"✓ search ", text)) == 3
    assert len(re.findall(r"✗ find_order +\d+ ms +order 1007 is not known", text)) == 1
    assert len(re.findall(r"✗ assistant +Where is order 1007\?", text)) == 1
    assert re.search(r"gpt-4o-mini +7 +431 +72 +\$0\.000108 +default table", text)
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


def check_agents(text: str) -> None:
    """The spans of the OpenTelemetry program, as calls with costs; cached tokens cost half."""
    assert "4 calls in 1 traces of thread demo-visit" in text
    assert re.search(r"chat_gpt-4o-mini +\d+ ms +200 tokens +\$0\.000029", text)


def check_gate(text: str) -> None:
    """The server's own evaluation finds the new policy better, in every row."""
    found = re.search(r"exact +(\d\S*) +(\d\S*) ", text)
    assert found is not None and float(found[2]) >= float(found[1]) + 0.2, text[-3000:]
    assert "16 rows in both" in text and "passed  score < 0" in text


def check_links(lines: list[str]) -> None:
    """Every address that is printed opens a page; the two evaluations and the failed step are what they say."""
    links = dict(line.strip().split(": ", 1) for line in lines if re.match(r" [a-z ]+: +http", line))
    links = {what: where.strip() for what, where in links.items()}
    assert len(links) == 9, links
    for where in links.values():
        answer = httpx.get(where)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html"), where
    address = links["every route"].removesuffix("/docs")
    ids = links["the evaluations side by side"].rpartition("=")[2].split(",")
    before, after, step = (
        httpx.post(address + "/call/read", json={"project_id": PROJECT, "id": name}).json()["call"]
        for name in (*ids, links["the step that failed"].rpartition("/")[2])
    )
    rewards = [call["output"]["preference"]["reward"]["mean"] for call in (before, after)]
    assert rewards[1] >= rewards[0] + 0.2 and "order 1007 is not known" in step["exception"]


def interruptible() -> None:
    """Ctrl-C works in the demo, also where the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_demo_shows_everything_and_serves_until_told_to_stop(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "heddle", "demo", "--keep"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "bufsize": 1}
    with (
        subprocess.Popen(command, env=environment, preexec_fn=interruptible, **pipes) as process,
        contextlib.ExitStack() as ends,
    ):
        assert process.stdout is not None
        guard = threading.Timer(LONGEST, process.terminate)
        guard.daemon = True
        guard.start()
        ends.callback(process.kill)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("The server keeps running: "):
                break
        text = "".join(lines)
        assert "Traceback" not in text and lines[-1].startswith("The server keeps running: "), text
        check_traces(text)
        check_chats(text)
        check_learning(text)
        check_agents(text)
        check_gate(text)
        check_links(lines)
        address = lines[-1].split()[4].rstrip("/")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        guard.cancel()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/health")
    assert list(tmp_path.iterdir()) == []

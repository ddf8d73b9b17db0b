"""`heddle demo` as a user runs it: the real SDK, a real server, and the figures of what was stored."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.cli import heddle

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(
        importlib.util.find_spec("weave") is None, reason="the weave SDK is not installed beside heddle"
    ),
]


def test_the_demo_shows_what_its_program_did() -> None:
    done = heddle("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    text = done.stdout
    assert "21 calls in 8 traces of thread demo-visitor" in text
    assert re.search(r"streamed in \d+ pieces", text)
    assert re.search(r"structured .* Order\(item='\w+',", text)
    assert re.search(r"with a tool .* find_order\(\{\"number\":", text)
    assert len(re.findall("✓ heddle.chat.completions ", text)) == 4
    assert re.search(r"heddle-tiny +4 +\d+ +\d+ +\$0\.000000 +unpriced", text)
    assert len(re.findall(r"✓ search ", text)) == 3
    assert len(re.findall(r"✗ .*order 1007 is not known", text)) == 2
    assert re.search(r"gpt-4o-mini +3 +174 +24 +\$0\.000040 +default table", text)
    assert re.search(r"shop-writer-1 +3 +150 +24 +\$0\.000049 +this project", text)
    assert "dataset shop-questions, version 0" in text
    for kind in ("wandb.reaction.1", "wandb.note.1", "rating"):
        assert kind in text


def test_keep_leaves_it_serving_until_told_to_stop(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "heddle", "demo", "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1) as process:
        assert process.stdout is not None
        kept = next(line for line in process.stdout if line.startswith("The server stays: "))
        address = kept.split()[3].removesuffix("/docs")
        answer = httpx.post(address + "/calls/query_stats", json={"project_id": "demo/shop-assistant"})
        assert answer.json()["count"] == 21
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/health")
    assert list(tmp_path.iterdir()) == []

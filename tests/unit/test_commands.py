"""What ends a command: one line on stderr, whatever its arguments are and whatever becomes of its output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BAD = os.fsdecode(b"\xff\xfe")
LONG = "a" * 70


def run(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """`heddle` as a shell starts it."""
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "heddle", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "revoke", BAD], "cannot be written as utf-8"),
        (["keys", "list", "--control", f"postgresql://u@{LONG}/x"], "a server name is not valid"),
        (["limits", "list", "--server", f"http://{LONG}.de"], "no answer from"),
        (["limits", "list", "--key", "schlüssel"], "are not allowed"),
        (["limits", "list", "--key", BAD], "are not allowed"),
    ],
)
def test_arguments_that_nothing_can_take_are_told_in_a_line(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "data").mkdir()
    if words[0] == "keys":
        words = [*words, "--data", str(tmp_path / "data")]
        run('"$@"', "keys", "create", "--user", "x", "--data", str(tmp_path / "data"))
    done = run('"$@"', *words)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (1, 1, ""), done.stderr
    assert said in done.stderr and "schl" not in done.stderr


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["settings"], ["keys", "create", "--user", "x"]])
def test_output_that_cannot_be_written_is_told_in_a_line(tmp_path: Path, words: list[str]) -> None:
    words += ["--data", str(tmp_path)] if words[0] == "keys" else []
    done = run('exec "$@" >/dev/full', *words)
    assert (done.returncode, done.stderr) == (1, "heddle: reading or writing failed: No space left on device\n")


def test_what_was_closed_at_the_start_is_there() -> None:
    assert run('exec "$@" >&-', "top", "--once", "--server", "http://127.0.0.1:9").returncode == 1
    assert run('exec "$@" <&-', "purge", "project", "--project", "a/b").stderr.endswith("Aborted.\n")


@pytest.mark.parametrize("words", [["top", "--interval", "inf"], ["mcp", "--http", "65536"]])
def test_numbers_beyond_what_they_are_for_are_refused(words: list[str]) -> None:
    done = run('"$@"', *words)
    assert done.returncode == 2 and "Invalid value" in done.stderr


def test_json_that_is_nested_without_end_is_told_in_a_line(tmp_path: Path) -> None:
    deep = "[" * 100_000
    done = run('"$@"', "improve", "start", "m", "--scorer", "s", "--project", "a/b", "--query", deep)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "--query is not valid JSON" in done.stderr
    (tmp_path / "cases.json").write_text(deep)
    done = run('"$@"', "check", "vectors", str(tmp_path / "cases.json"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr

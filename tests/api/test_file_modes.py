"""What is stored is its user's alone, whatever the umask was."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx

from tests.support.cli import heddle
from tests.support.server import HeddleProcess, free_port


def modes(root: Path) -> dict[str, str]:
    """What group and others may do with a place, of everything in it."""
    found = {}
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077:
            found[str(path)] = f"{mode:04o}"
    return found


def test_everything_that_is_written_is_its_users_alone(tmp_path: Path) -> None:
    data, port = tmp_path / "made" / "data", free_port()
    command = [sys.executable, "-m", "heddle", "serve", "--port", str(port), "--data", str(data), "--model", "none"]
    server = HeddleProcess(data, port)
    previous = os.umask(0o022)
    try:
        with (tmp_path / "log").open("wb") as log:
            server.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not server.is_ready():
                assert server.process.poll() is None, (tmp_path / "log").read_text()
            content = {"file": ("a", b"secret")}
            answer = httpx.post(f"{server.url}/file/create", data={"project_id": "a/b"}, files=content)
            assert answer.status_code == 200
            assert (data / "heddle.db-wal").exists() and not modes(tmp_path / "made")
        finally:
            server.terminate()
        assert "other users" not in (tmp_path / "log").read_text()
        assert heddle("keys", "create", "--user", "a", "--data", data).returncode == 0
        (data / "heddle.db").chmod(0o644)
        for words in (("backup", "b.tgz"), ("export", "x.heddle", "--json")):
            done = heddle(words[0], tmp_path / words[1], *words[2:], "--data", data)
            assert done.returncode == 0, done.stderr
            assert not modes(tmp_path / words[1])
        restored = heddle("restore", tmp_path / "b.tgz", "--data", tmp_path / "restored")
        assert restored.returncode == 0 and not modes(tmp_path / "restored")
        imported = heddle("import", "archive", tmp_path / "x.heddle", "--data", tmp_path / "imported")
        assert imported.returncode == 0 and not modes(tmp_path / "imported")
    finally:
        os.umask(previous)


def test_a_folder_that_others_can_read_is_named_with_the_remedy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(0o755)
    data.chmod(0o755)
    with HeddleProcess(data, model="none") as server:
        told = server.log()
    for text in (told, heddle("check", "--data", data, "--model", "none").stdout):
        assert f"{data} has the mode 0755" in text and f"chmod -R go-rwx {data}" in text

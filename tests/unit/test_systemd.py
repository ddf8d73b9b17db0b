"""The units of deploy/systemd: what systemd says of them, and that their server starts and says so."""

import configparser
import json
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from heddle import settings
from tests.support.cli import heddle
from tests.support.server import HeddleProcess

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
PROGRAM = "/opt/heddle/bin/heddle"
WORST = 2.0
"""Of ten: `systemd-analyze security` calls more than 2 no longer fine."""


class _Repeated(dict[str, str]):
    """Keys of a unit may be repeated: their values are one list."""

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, [*self[key], *value] if isinstance(value, list) and key in self else value)


def unit(name: str) -> configparser.ConfigParser:
    """The sections of a unit."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, dict_type=_Repeated)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name, encoding="utf-8")
    return parser


def variables(name: str) -> dict[str, str]:
    """The environment of a unit's process."""
    words = shlex.split(unit(name)["Service"]["Environment"].replace("\n", " "))
    return dict(word.split("=", 1) for word in words)


def run_analyze(*arguments: str) -> str:
    """What systemd-analyze prints; it must be content."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for path in UNITS.iterdir():
        text = path.read_text(encoding="utf-8").replace(PROGRAM, sys.executable)
        # Users of this machine; systemd warns of unknown ones.
        text = text.replace("User=heddle", "User=root").replace("Group=heddle", "Group=root")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    assert run_analyze("verify", *(str(path) for path in sorted(tmp_path.iterdir()))) == ""


@pytest.mark.parametrize("name", ["heddle.service", "heddle-backup.service"])
def test_the_service_may_do_little(name: str) -> None:
    threshold = str(round(WORST * 10))
    told = run_analyze("security", "--offline=true", f"--threshold={threshold}", "--json=short", str(UNITS / name))
    checks = {check["json_field"]: check["set"] for check in json.loads(told)}
    needed = ("ProtectSystem", "NoNewPrivileges", "PrivateTmp", "ProtectHome", "UserOrDynamicUser", "PrivateDevices")
    assert all(checks[field] for field in needed)


@pytest.mark.parametrize("name", ["heddle.service", "heddle-backup.service"])
def test_units_name_settings_that_exist(name: str) -> None:
    found = variables(name)
    assert settings.unknown_variables(found) == []
    assert found["HEDDLE_DATA"] == "/var/lib/" + unit("heddle.service")["Service"]["StateDirectory"]
    given = {key: value for key, value in found.items() if key != settings.CONFIG_VARIABLE}
    assert settings.load({}, given).data == found["HEDDLE_DATA"]


def test_systemd_waits_longer_than_the_server_takes_to_stop() -> None:
    stop = int(unit("heddle.service")["Service"]["TimeoutStopSec"])
    assert stop > settings.Settings().shutdown_grace + settings.Settings().shutdown_drain


def test_the_server_tells_systemd_that_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = unit("heddle.service")["Service"]
    assert (service["Type"], service["ExecStart"]) == ("notify", f"{PROGRAM} serve")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with HeddleProcess(tmp_path / "data", model="none"):
            assert manager.recv(1000) == b"READY=1"
            check_backup(tmp_path)


def check_backup(folder: Path) -> None:
    """The command of the timer makes backups beside the running server, and keeps as many as it says."""
    program, *words = shlex.split(unit("heddle-backup.service")["Service"]["ExecStart"])
    place = str(folder / "backups") + "/"
    words = [word.replace("/var/backups/heddle/", place) for word in words]
    done = heddle(*words, data=folder / "data")
    assert (program, done.returncode) == (PROGRAM, 0), done.stderr
    assert len([path for path in Path(place).iterdir() if not path.name.startswith(".")]) == 1

"""What an older heddle stored opens here, on every kind of store, and is answered as it was answered there."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import old_data, scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess
from tests.support.tenants import Tenant

RECORDINGS = sorted(old_data.FOLDER.glob("*.tar.gz"))
CHANGED = {
    "POST /_ui/api/calls/facets": "ops that were called equally often come in any order",
    "GET /_ui/api/inference": "about the engine as it runs",
    "GET /v1/engine": "about the engine as it runs",
    "GET /v1/models": "says when the file of the model that comes along was installed",
    "POST /v1/models": "says when the file of the model that comes along was installed",
    "GET /_ui/api/settings": "about the server as it was started",
    "GET /v2/{entity}/{project}/runtimes": "values of headers are masked since 18063b9",
    "POST /_ui/api/calls": "the kind of a call no longer follows from what it used",
    "GET /_ui/api/ops": "the same",
    "GET /_ui/api/trace/{entity}/{project}/{trace_id}": "the same",
    "GET /_ui/api/evaluation_values/{entity}/{project}": "figures say what they are made of",
}
"""Routes that answer otherwise on purpose, and why."""


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_it_opens_and_answers_as_before(recording: Path, tmp_path: Path) -> None:
    kind = recording.name.removesuffix(".tar.gz").rpartition("-")[2]
    missing = scale.missing() if kind == "clickhouse" else None
    if missing:
        pytest.skip(missing)
    databases = scale.settings_of(kind, tmp_path / "data")
    told = old_data.unpack(recording, tmp_path, databases)
    tenant = Tenant(old_data.PROJECT, "canary", told["ids"])
    settings = {"store": "", "control": "", **databases, **old_data.SETTINGS, "adapter_roots": tmp_path}
    with HeddleProcess(tmp_path / "data", **{name: value for name, value in settings.items() if value != ""}) as server:
        headers = {"authorization": f"Bearer {told['key']}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            answers = old_data.ask_everything(client, tenant, told["answers"])
    if kind == "sqlite":
        checked = heddle("check", "--full", "--port", 0, "--data", tmp_path / "data")
        assert re.search(r"(\d+) of \1 rules checked", checked.stdout) and "wrong" not in checked.stdout
    compared = {name: (status, _read(text)) for name, (status, text) in told["answers"].items() if name not in CHANGED}
    assert len(compared) >= 90
    changed = {
        name: (before, after)
        for name, before in compared.items()
        if (after := (answers[name][0], _without_new_keys(before[1], _read(answers[name][1])))) != before
    }
    assert changed == {}


def _without_new_keys(before: Any, after: Any) -> Any:
    """An answer without the keys that objects have got since."""
    if isinstance(before, dict) and isinstance(after, dict):
        return {key: _without_new_keys(before[key], value) for key, value in after.items() if key in before}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [_without_new_keys(*pair) for pair in zip(before, after, strict=True)]
    return after


def _read(text: str) -> Any:
    """JSON or lines of it as values, since the order of keys says nothing; anything else as it is."""
    try:
        return json.loads(text)
    except ValueError:
        lines = text.splitlines()
        return [json.loads(line) for line in lines] if lines and all(line[:1] == "{" for line in lines) else text

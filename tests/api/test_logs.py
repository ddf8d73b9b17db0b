"""The server's log as a program reads it."""

import json
from pathlib import Path

import httpx
import pytest

from tests.support.server import HeddleProcess


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_refusal_is_an_object_with_its_reason_and_its_request(tmp_path: Path, workers: int) -> None:
    with HeddleProcess(tmp_path / "data", log_format="json", workers=workers) as server:
        headers = {"x-request-id": "asked-1"}
        answer = httpx.post(server.url + "/call/end", json={"end": {"project_id": "a/b", "id": 3}}, headers=headers)
        assert answer.status_code == 422
    objects = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    plain = [line for line in server.log().splitlines() if not line.startswith(("{", "heddle: "))]
    (told,) = [found for found in objects if found.get("request_id") == "asked-1"]
    assert (told["method"], told["path"], told["status"], told["logger"]) == ("POST", "/call/end", 422, "heddle.access")
    assert told["reason"] and told["time"].endswith("Z") and told["level"] == "info"
    assert not plain

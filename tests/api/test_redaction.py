"""What is redacted reaches no file, whichever way it comes in; other projects keep all they are sent."""

import base64
from pathlib import Path
from typing import Any

import httpx

from heddle.store.sqlite.store import DATABASE
from tests.support import planted, scale
from tests.support.server import HeddleProcess

OWN, OTHER = "team/own", "team/other"
SECRET = "zebra.secret77@example.com"
PRIVATE = "lives at Quokka Lane"


def spans(project: str, secret: str) -> dict[str, Any]:
    """An export of one span of a model."""
    said = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "user.id": secret,
        "gen_ai.conversation.name": f"about {secret}",
        "gen_ai.input.messages": f'[{{"role":"user","parts":[{{"type":"text","content":"I am {secret}"}}]}}]',
    }  # fmt: skip
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in said.items()]
    span = {
        "traceId": "1" * 32, "spanId": "2" * 16, "name": "chat m", "kind": 3, "attributes": attributes,
        "startTimeUnixNano": "1790000000000000000", "endTimeUnixNano": "1790000001000000000",
        "status": {"code": 2, "message": f"refused {secret}"},
    }  # fmt: skip
    resource = {"attributes": [{"key": "owner", "value": {"stringValue": secret}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


def send_everything(client: httpx.Client, project: str, secret: str) -> None:
    """The secret by every way in."""
    entity, name = project.split("/")
    text = f"write to {secret} now"
    start = {
        "project_id": project,
        "id": f"{name}1",
        "trace_id": f"{name}t",
        "op_name": "o",
        "started_at": planted.START,
    }
    start |= {"attributes": {"note": text}, "inputs": {"text": text, "address": PRIVATE}, "display_name": text}
    end = {
        "project_id": project,
        "id": f"{name}1",
        "ended_at": planted.START,
        "summary": {"note": text},
        "output": [text],
    }
    planted.send(client, "/call/start", {"start": start})
    planted.send(client, "/call/end", {"end": {**end, "exception": text}})
    image = base64.b64encode(f"{text} ".encode() * 600).decode()
    media = {"image": f"data:text/plain;base64,{image}", "long": f"{text} " * 60_000}
    batch = [{"mode": "start", "req": {"start": {**start, "id": f"{name}2", "inputs": media}}}]
    planted.send(client, "/call/upsert_batch", {"batch": batch})
    whole = planted.call(project, f"{name}3", f"{name}t3", inputs={"text": text}, output=text, exception=text)
    planted.send(client, f"/v2/{entity}/{name}/calls/complete", {"batch": [whole]})
    note = {"feedback_type": "wandb.note.1", "payload": {"note": text}}
    planted.send(client, "/feedback/create", {"project_id": project, "weave_ref": f"weave:///{project}/call/x", **note})
    planted.publish(client, project, text, "words")
    sent = client.post("/file/create", data={"project_id": project}, files={"file": ("a.txt", f"{text}\n".encode())})
    assert sent.status_code == 200, sent.text
    exported = client.post("/otel/v1/traces", json=spans(project, secret), headers={"project_id": project})
    assert exported.status_code == 200, exported.text


@scale.on_sqlite
def test_nothing_redacted_reaches_a_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        HeddleProcess(data, large_field_bytes=100_000) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        rules = {"project_id": OWN, "kinds": ["email"], "paths": ["inputs.address"]}
        told = planted.send(client, "/project/redaction/update", rules)
        assert (told["kinds"], told["paths"], told["is_own"]) == (["email"], ["inputs.address"], True)
        send_everything(client, OWN, SECRET)
        assert planted.files_with(data, SECRET) == [] and planted.rows_with(data / DATABASE, SECRET) == []
        assert planted.files_with(data, PRIVATE) == []
        counts = planted.send(client, "/project/redaction/read", {"project_id": OWN})["redacted"]
        assert counts["path"] == 1 and counts["email"] > 10
        lines = client.get("/metrics").text.splitlines()
        assert f'heddle_redacted_values_total{{kind="email"}} {float(counts["email"])}' in lines
        calls = client.post("/calls/stream_query", json={"project_id": OWN}).text
        assert calls.count("[redacted email]") > 5
        settings = client.get("/project/sensitive_data_settings", params={"project_id": OWN}).json()
        assert settings == {"policy": "pii-v1"}
        send_everything(client, OTHER, "okapi.kept88@example.com")
        assert planted.rows_with(data / DATABASE, "okapi.kept88@example.com")
        kept = client.post("/calls/stream_query", json={"project_id": OTHER}).text
        assert "[redacted" not in kept and PRIVATE in kept


@scale.on_sqlite
def test_the_setting_holds_where_a_project_has_no_rules(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with HeddleProcess(data, redaction="email,key") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        send_everything(client, OWN, SECRET)
        assert planted.rows_with(data / DATABASE, SECRET) == [] and planted.files_with(data, PRIVATE)
        planted.send(client, "/project/redaction/update", {"project_id": OTHER, "kinds": []})
        send_everything(client, OTHER, SECRET)
        assert planted.rows_with(data / DATABASE, SECRET)

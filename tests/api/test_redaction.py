"""What is redacted reaches no file, whichever way it comes in; other projects keep all they are sent."""

import base64
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from heddle.inference.served_model import TINY
from heddle.store.sqlite.database import DATABASE
from heddle.training.files import read_payload
from tests.support import planted, scale
from tests.support.cli import heddle
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
        "op_name": f"ask {secret}",
        "started_at": planted.START,
    }
    start |= {"attributes": {"note": text}, "inputs": {"text": text, "address": PRIVATE}, "display_name": text}
    end = {
        "project_id": project,
        "id": f"{name}1",
        "ended_at": planted.START,
        "summary": {"note": text, "usage": {f"model of {secret}": {"prompt_tokens": 1}}},
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
    note |= {"feedback_type": f"by {secret}", "creator": secret}
    planted.send(client, "/feedback/create", {"project_id": project, "weave_ref": f"weave:///{project}/call/x", **note})
    planted.send(client, "/call/update", {"project_id": project, "call_id": f"{name}1", "display_name": f"Of {secret}"})
    queue = {"project_id": project, "name": secret, "description": text, "scorer_refs": []}
    queue_id = planted.send(client, "/annotation_queues", queue)["id"]
    changed = client.put(f"/annotation_queues/{queue_id}", json={**queue, "description": f"{text}, later"})
    assert changed.status_code == 200, changed.text
    say = 'mutation { upsertModel(input: {entityName: "%s", name: "%s", description: "%s"}) { inserted } }'
    planted.send(client, "/graphql", {"query": say % (entity, name, text), "variables": {}})
    planted.publish(client, project, text, "words")
    sent = client.post(
        "/file/create", data={"project_id": project}, files={"file": (f"{secret}.txt", f"{text}\n".encode())}
    )
    assert sent.status_code == 200, sent.text
    points = {"dataPoints": [{"timeUnixNano": "1790000000000000000", "asInt": "3"}], "aggregationTemporality": 2}
    metric = {"name": f"of {secret}", "description": text, "unit": secret, "sum": points}
    counted = client.post(
        "/otel/v1/metrics",
        json={"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]},
        headers={"project_id": project},
    )
    assert counted.status_code == 200, counted.text
    exported = client.post("/otel/v1/traces", json=spans(project, secret), headers={"project_id": project})
    assert exported.status_code == 200, exported.text


def wait_for_rules(client: httpx.Client) -> None:
    """Until rules hold in the process that answers this client: the others read them within a second."""
    planted.send(client, "/project/redaction/update", {"project_id": "team/probe", "kinds": ["email"], "paths": []})
    deadline, said = time.monotonic() + 60, ""
    while "[redacted email]" not in said:
        assert time.monotonic() < deadline
        one = planted.call("team/probe", str(uuid.uuid4()), "t", inputs={"who": "probe@example.com"})
        planted.send(client, "/v2/team/probe/calls/complete", {"batch": [one]})
        said = client.post("/call/read", json={"project_id": "team/probe", "id": one["id"]}).text


@scale.on_sqlite
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_redacted_reaches_a_file(tmp_path: Path, workers: int) -> None:
    data = tmp_path / "data"
    with (
        HeddleProcess(data, large_field_bytes=100_000, workers=workers) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        rules = {"project_id": OWN, "kinds": ["email"], "paths": ["inputs.address"]}
        told = planted.send(client, "/project/redaction/update", rules)
        assert (told["kinds"], told["paths"], told["is_own"]) == (["email"], ["inputs.address"], True)
        wait_for_rules(client)
        send_everything(client, OWN, SECRET)
        assert planted.files_with(data, SECRET) == [] and planted.rows_with(data / DATABASE, SECRET) == []
        assert planted.files_with(data, PRIVATE) == []
        counts = planted.send(client, "/project/redaction/read", {"project_id": OWN})["redacted"]
        assert counts["path"] == 1 and counts["email"] > 10
        lines = client.get("/metrics").text.splitlines()
        probed = planted.send(client, "/project/redaction/read", {"project_id": "team/probe"})["redacted"]["email"]
        assert f'heddle_redacted_values_total{{kind="email"}} {float(counts["email"] + probed)}' in lines
        calls = client.post("/calls/stream_query", json={"project_id": OWN}).text
        assert calls.count("[redacted email]") > 5
        settings = client.get("/project/sensitive_data_settings", params={"project_id": OWN}).json()
        assert settings == {"policy": "pii-v1"}
        send_everything(client, OTHER, "okapi.kept88@example.com")
        assert planted.rows_with(data / DATABASE, "okapi.kept88@example.com")
        kept = client.post("/calls/stream_query", json={"project_id": OTHER}).text
        assert "[redacted" not in kept and PRIVATE in kept


def train(client: httpx.Client, project: str, secret: str) -> None:
    """Trajectories and a log for a model of the project, with the secret in messages, metadata and logs."""
    entity, name = project.split("/")
    made = {"entity": entity, "project": name, "name": f"{name}-learner", "base_model": TINY}
    headers = {"authorization": "Bearer any"}
    model = client.post("/v1/preview/models", json=made, headers=headers).json()["id"]
    tokens = ["hello ", *(secret[at : at + 3] for at in range(0, len(secret), 3))]
    sampled = [
        {"token": f"token_id:{9 + at}", "logprob": -1, "bytes": list(text.encode())} for at, text in enumerate(tokens)
    ]
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": f"hello {secret}"}}
    choice |= {"logprobs": {"content": sampled}, "token_ids": [*range(9, 9 + len(tokens))]}
    said = [{"role": "user", "content": f"I am {secret}"}, choice]
    one = {"messages_and_choices": said, "metadata": {"who": secret}, "logs": [secret], "reward": 1.0}
    groups = [{"trajectories": [one, {**one, "reward": 0.0}]}]
    for path, body in (
        (f"models/{model}/log", {"split": "val", "trajectory_groups": groups}),
        ("training-jobs", {"model_id": model, "trajectory_groups": groups}),
    ):
        sent = client.post(f"/v1/preview/{path}", json=body, headers=headers)
        assert sent.status_code == 200, sent.text


def respond(client: httpx.Client, project: str, secret: str) -> None:
    """A stored response, a stored conversation, and a chat that the server traces."""
    headers = {"authorization": "Bearer any", "openai-project": project}
    body = {"model": TINY, "input": f"mail {secret}", "instructions": secret, "max_output_tokens": 4, "user": secret}
    items = [{"role": "user", "content": f"I am {secret}"}]
    chat = {"model": TINY, "messages": items, "max_tokens": 2, "user": secret}
    asked = [("responses", body), ("conversations", {"items": items, "metadata": {"k": secret}})]
    for path, sent in (*asked, ("chat/completions", chat)):
        answer = client.post(f"/v1/{path}", json=sent, headers=headers)
        assert answer.status_code == 200, answer.text


def payloads(data: Path) -> str:
    """What training was given, as text."""
    database = sqlite3.connect(data / DATABASE)
    keys = [
        row[0] for table in ("train_jobs", "train_logs") for row in database.execute(f"SELECT payload FROM {table}")
    ]
    database.close()
    return "".join(orjson.dumps(read_payload(data / "files" / key[:2] / key[2:])).decode() for key in keys if key)


@scale.on_sqlite
def test_what_is_trained_on_and_stored_responses_are_redacted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        HeddleProcess(data, model=TINY, training="on") as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        planted.send(client, "/project/redaction/update", {"project_id": OWN, "kinds": ["email"]})
        train(client, OWN, SECRET)
        respond(client, OWN, SECRET)
        counts = planted.send(client, "/project/redaction/read", {"project_id": OWN})["redacted"]
        assert payloads(data).count("[redacted email]") == 16 and SECRET not in payloads(data)
        assert payloads(data).count('"logprobs":{"content":null},"token_ids":null') == 4, "tokens of the answers"
        assert planted.rows_with(data / DATABASE, SECRET) == [] and planted.files_with(data, SECRET) == []
        assert counts["email"] >= 16 + 4
        train(client, OTHER, SECRET)
        respond(client, OTHER, SECRET)
        assert payloads(data).count(SECRET) == 16 and payloads(data).count("token_id:9") == 4
        assert {"responses", "conversations", "conversation_items"} <= {*planted.rows_with(data / DATABASE, SECRET)}


@scale.on_sqlite
def test_files_and_records_of_an_archive_are_redacted(tmp_path: Path) -> None:
    source, data, archive = tmp_path / "source", tmp_path / "data", tmp_path / "one.tar"
    with HeddleProcess(source) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        send_everything(client, OWN, SECRET)
        image = b"\x89PNG\r\n\x1a\n\0\xff" + SECRET.encode()
        client.post("/file/create", data={"project_id": OWN}, files={"file": ("a.png", image)})
    made = heddle("export", archive, "--data", source)
    assert made.returncode == 0, made.stderr
    with HeddleProcess(data) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        planted.send(client, "/project/redaction/update", {"project_id": OWN, "kinds": ["email"]})
    done = heddle("import", "archive", archive, "--data", data)
    assert done.returncode == 0, done.stderr
    assert planted.rows_with(data / DATABASE, SECRET) == []
    [kept] = planted.files_with(data / "files", SECRET)
    assert (data / "files" / kept).read_bytes() == image, "binary files stay as they are"
    again = heddle("import", "archive", archive, "--data", data)
    assert again.returncode == 0, again.stderr
    assert planted.files_with(data, SECRET) == [f"files/{kept}"]


@scale.on_sqlite
def test_what_is_cut_off_of_a_large_text_holds_no_half_of_a_secret(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with HeddleProcess(data, large_field_bytes=10_000) as server, httpx.Client(base_url=server.url) as client:
        planted.send(client, "/project/redaction/update", {"project_id": OWN, "kinds": ["email"]})
        for number in range(30):
            text = f"{'x' * (4096 - number)} {SECRET} {'y' * 20_000}"
            sent = planted.call(OWN, f"c{number}", "t", inputs={"text": text})
            planted.send(client, "/v2/team/own/calls/complete", {"batch": [sent]})
        found = client.post("/calls/stream_query", json={"project_id": OWN}).text
        assert found.count("[redacted email]") == 30
        assert planted.rows_with(data / DATABASE, "zebra") == [] and planted.files_with(data, "zebra") == []


@scale.on_sqlite
def test_the_setting_holds_where_a_project_has_no_rules(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with HeddleProcess(data, redaction="email,key") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        send_everything(client, OWN, SECRET)
        assert planted.rows_with(data / DATABASE, SECRET) == [] and planted.files_with(data, PRIVATE)
        planted.send(client, "/project/redaction/update", {"project_id": OTHER, "kinds": []})
        send_everything(client, OTHER, SECRET)
        assert planted.rows_with(data / DATABASE, SECRET)


@scale.on_sqlite
def test_what_cannot_be_redacted_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Tinker's protocol sends nothing but tokens; an archive would lie in the folder until its import."""
    source, data, archive = tmp_path / "source", tmp_path / "data", tmp_path / "one.tar"
    with HeddleProcess(source) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        send_everything(client, OWN, SECRET)
    made = heddle("export", archive, "--data", source)
    assert made.returncode == 0, made.stderr
    with (
        HeddleProcess(data, model=TINY, training="on") as server,
        httpx.Client(base_url=server.url, timeout=120, headers={"x-api-key": "tml-any"}) as client,
    ):

        def begin(project: str) -> httpx.Response:
            told = {"tags": [SECRET], "sdk_version": "1", "project_id": project}
            return client.post("/api/v1/create_session", json=told)

        early = begin(OWN).json()["session_id"]
        planted.send(client, "/project/redaction/update", {"project_id": OWN, "kinds": ["key"]})
        sampler = {"session_id": early, "sampling_session_seq_id": 0, "base_model": TINY}
        moved = client.put(f"/api/v1/sessions/{begin(OTHER).json()['session_id']}/project", json={"project_id": OWN})
        answers = [begin(OWN), client.post("/api/v1/create_sampling_session", json=sampler), moved]
        with archive.open("rb") as file:
            answers.append(client.post("/archives/import", files={"file": file}))
        for answer in answers:
            assert answer.status_code == 409 and f"{OWN} has redaction rules" in answer.text, answer.text
        assert client.post("/archives/import", files={"file": b"hello"}).status_code == 400
        assert list((data / "imports").iterdir()) == []
        finished = {"reason": {"kind": "sk-0123456789abcdefghij"}, "detail": "sk-0123456789abcdefghij"}
        assert client.post(f"/api/v1/sessions/{early}/finish", json=finished).status_code == 200
        assert planted.files_with(data, "sk-0123456789abcdefghij") == []
        with archive.open("rb") as file:
            renamed = {"project": f"{OWN}={OTHER}"}
            assert client.post("/archives/import", files={"file": file}, params=renamed).status_code == 200

"""The server about itself: what SDKs ask at start, health, figures, the description, and the shape of failures."""

import re

import httpx
import pytest

from heddle.settings import Settings
from tests.support.description import make_openapi
from tests.support.server import HeddleProcess


def test_server_info_has_what_sdks_ask_and_the_limits(server: HeddleProcess) -> None:
    info = httpx.get(server.url + "/server_info").json()
    assert info["min_required_weave_python_version"] == "0.0.1"
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["trace_server_version"])
    defaults = Settings()
    for name in ("max_trace_body", "max_table_body", "max_chat_body", "max_training_body", "max_file", "max_page_rows"):
        assert info["limits"][name] == getattr(defaults, name)
    assert info["settings"]["durability"] == "full"
    assert str(server.data) not in str(info)


def test_alive_ready_version_and_geolocate(server: HeddleProcess) -> None:
    assert httpx.get(server.url + "/health").json() == {"status": "ok"}
    assert httpx.get(server.url + "/ready").json() == {"status": "ok"}
    assert httpx.get(server.url + "/version").json() == {"version": "0.1.0"}
    own = httpx.get(server.url + "/geolocate").json()
    assert own == {"ip": "127.0.0.1", "location": None, "allowed": True}
    assert httpx.get(server.url + "/geolocate", params={"ip": "10.1.2.3"}).json()["ip"] == "10.1.2.3"


@pytest.mark.parametrize(
    "path", ["/", "/health", "/traces/server_info", "/metrics", "/v1/models", "/nothing", "/call/start"]
)
def test_head_is_get_without_the_body(server: HeddleProcess, path: str) -> None:
    """Monitors and load balancers ask like this; all routes answered 405."""
    own = ("date", "x-request-id", "content-length")
    with httpx.Client(base_url=server.url) as client:
        whole, head, after = client.get(path), client.head(path), client.get("/health")
    assert (head.status_code, head.content, after.status_code) == (whole.status_code, b"", 200)
    assert {name: value for name, value in head.headers.items() if name not in own} == {
        name: value for name, value in whole.headers.items() if name not in own
    }
    assert "content-length" in head.headers


def test_everything_answers_under_traces_too(server: HeddleProcess, project: str) -> None:
    for prefix in ("", "/traces"):
        assert httpx.get(f"{server.url}{prefix}/server_info").status_code == 200
        answer = httpx.post(f"{server.url}{prefix}/calls/query_stats", json={"project_id": project})
        assert answer.json()["count"] == 0
    described = httpx.get(server.url + "/openapi.json", timeout=60).json()
    assert described == make_openapi()
    assert not [path for path in described["paths"] if path.startswith("/traces")]


def test_projects_info_gives_internal_ids_without_slash(server: HeddleProcess, project: str) -> None:
    answer = httpx.post(server.url + "/service/projects_info", json={"project_ids": [project, "no-slash"]})
    assert answer.headers["content-type"] == "application/json"
    (found,) = answer.json()
    assert found["external_project_id"] == project
    assert found["internal_project_id"] and "/" not in found["internal_project_id"]


def test_the_figures_count_requests_and_commits(server: HeddleProcess, project: str) -> None:
    def figure(name: str) -> float:
        text = httpx.get(server.url + "/metrics").text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    counted = 'heddle_http_requests_total{group="calls",method="POST",route="/call/start",status="200"}'
    before, commits, received = (
        figure(counted),
        figure("heddle_store_commits_total"),
        figure('heddle_http_received_bytes_total{group="calls"}'),
    )
    start = {
        "project_id": project,
        "op_name": "o",
        "started_at": "2026-01-01T00:00:00Z",
        "attributes": {},
        "inputs": {},
    }
    for prefix in ("", "/traces"):
        assert httpx.post(f"{server.url}{prefix}/call/start", json={"start": start}).status_code == 200
    assert figure(counted) == before + 2
    assert figure("heddle_store_commits_total") >= commits + 2
    assert figure('heddle_http_received_bytes_total{group="calls"}') > received + 200
    text = httpx.get(server.url + "/metrics").text
    assert "process_resident_memory_bytes" in text
    assert project not in text


def test_the_description_needs_nothing_from_elsewhere(server: HeddleProcess) -> None:
    page = httpx.get(server.url + "/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"https?://|//cdn", page.text)


def test_failures_have_one_shape(server: HeddleProcess, project: str) -> None:
    client = httpx.Client(base_url=server.url)
    assert client.get("/nothing/here").json() == {"reason": "Not Found: GET /nothing/here"}
    wrong_method = client.get("/call/start")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert wrong_method.json() == {"reason": "Method Not Allowed: GET /call/start"}
    missing = client.post("/calls/query_stats", json={"limit": "many"})
    assert missing.status_code == 422
    assert {(tuple(item["loc"]), item["type"]) for item in missing.json()["detail"]} == {
        (("body", "project_id"), "missing"),
        (("body", "limit"), "int_parsing"),
    }
    assert all(set(item) == {"loc", "msg", "type"} for item in missing.json()["detail"])
    for path in ("/calls/query_stats", "/call/start"):
        broken = client.post(path, content=b'{"project_id": ', headers={"content-type": "application/json"})
        assert broken.status_code == 422
        assert broken.json()["detail"][0]["type"] == "json_invalid"
    bad_form = client.post("/calls/query_stats", json={"project_id": "no-slash"})
    assert (bad_form.status_code, list(bad_form.json())) == (400, ["reason"])


def test_json_needs_no_content_type(server: HeddleProcess, project: str) -> None:
    body = f'{{"project_id": "{project}"}}'.encode()
    request = httpx.Request("POST", server.url + "/calls/query_stats", content=body)
    assert "content-type" not in request.headers
    with httpx.Client() as client:
        assert client.send(request).json()["count"] == 0


def test_requests_carry_an_id(server: HeddleProcess) -> None:
    given = httpx.get(server.url + "/health", headers={"x-request-id": "my-own-1"})
    assert given.headers["x-request-id"] == "my-own-1"
    made = [httpx.get(server.url + "/health").headers["x-request-id"] for _ in range(2)]
    assert len(set(made)) == 2
    odd = httpx.get(server.url + "/health", headers={"x-request-id": "a" * 500})
    assert len(odd.headers["x-request-id"]) == 36


def test_encodings_that_are_not_known_or_broken_are_refused(server: HeddleProcess) -> None:
    for encoding, status, why in (("br", 415, "is not supported here"), ("gzip", 400, "is not valid gzip")):
        headers = {"content-encoding": encoding, "content-type": "application/json"}
        answer = httpx.post(server.url + "/calls/query_stats", content=b"{}xxxxxxxxxxxxxxxx", headers=headers)
        assert answer.status_code == status
        assert why in answer.json()["reason"]
    stacked = [("content-encoding", "gzip"), ("content-encoding", "zstd")]
    answer = httpx.post(server.url + "/calls/query_stats", content=b"{}", headers=stacked)
    assert answer.status_code == 415 and "'gzip, zstd' is not supported here" in answer.json()["reason"]


def test_retention_is_read_and_set(server: HeddleProcess, project: str) -> None:
    client = httpx.Client(base_url=server.url)
    ask = {"project_id": project}
    assert client.post("/project/ttl_settings/read", json=ask).json() == {"retention_days": None}
    for days in (30, 7, None):
        assert client.post("/project/ttl_settings/update", json={**ask, "retention_days": days}).json() == {
            "retention_days": days
        }
        assert client.post("/project/ttl_settings/read", json=ask).json() == {"retention_days": days}
    for days in (0, -1, "soon", 1.5):
        assert client.post("/project/ttl_settings/update", json={**ask, "retention_days": days}).status_code == 422


def test_other_settings_that_sdks_read(server: HeddleProcess, project: str) -> None:
    client = httpx.Client(base_url=server.url)
    sampling = client.post("/project/ingest_sampling_settings/read", json={"project_id": project})
    assert sampling.json() == {"dry_run": False, "sample_rate": 1.0}
    sensitive = client.get("/project/sensitive_data_settings", params={"project_id": project})
    assert sensitive.json() == {"policy": "off"}


def test_project_stats_grow_with_what_is_stored(server: HeddleProcess, project: str) -> None:
    client = httpx.Client(base_url=server.url, timeout=30)

    def sizes() -> dict[str, int]:
        return dict(client.post("/project/stats", json={"project_id": project}).json())

    assert set(sizes().values()) == {0}
    start = {"project_id": project, "op_name": "o", "started_at": "2026-01-01T00:00:00Z", "attributes": {}}
    assert client.post("/call/start", json={"start": {**start, "inputs": {"text": "x" * 5000}}}).status_code == 200
    assert (
        client.post(
            "/obj/create", json={"obj": {"project_id": project, "object_id": "o", "val": "y" * 300}}
        ).status_code
        == 200
    )
    assert (
        client.post("/table/create", json={"table": {"project_id": project, "rows": [{"z": "z" * 700}]}}).status_code
        == 200
    )
    assert (
        client.post("/file/create", data={"project_id": project}, files={"file": ("f", b"w" * 900)}).status_code == 200
    )
    grown = sizes()
    assert 5000 <= grown["trace_storage_size_bytes"] < 6000
    assert 300 <= grown["objects_storage_size_bytes"] < 400
    assert 700 <= grown["tables_storage_size_bytes"] < 800
    assert grown["files_storage_size_bytes"] == 900
    only = {"project_id": project, "include_trace_storage_size": False, "include_file_storage_size": False}
    left = client.post("/project/stats", json=only).json()
    assert (left["trace_storage_size_bytes"], left["files_storage_size_bytes"]) == (0, 0)

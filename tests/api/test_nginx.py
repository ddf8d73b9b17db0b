"""Clients through a real nginx with the files of deploy/nginx: TLS, a path, streams, uploads, gRPC; and a balancer."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.conftest import ROOT, SCENARIOS, SDK_VERSIONS, Client
from tests.support.nginx import PATH, Nginx, Site, missing, serve_site
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
GATE_SECONDS = 60.0


class _Gated(BaseHTTPRequestHandler):
    """A provider of models whose second chunk waits until the client has seen the first."""

    protocol_version = "HTTP/1.1"
    opened: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        """Stream two chunks."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._send("first")
        assert self.opened.wait(GATE_SECONDS), "the client has not seen the first chunk"
        self._send("second")
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, text: str) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        self._write(b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
                                            "choices": [choice]}).encode() + b"\n\n")  # fmt: skip

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server of deploy/nginx/site.conf, with a gated provider."""
    provider = ThreadingHTTPServer(("127.0.0.1", 0), _Gated)
    threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    gated = f"gated=http://127.0.0.1:{provider.server_port}/v1"
    with serve_site(tmp_path_factory.mktemp("nginx") / "data", providers=gated, max_file="2GiB") as site:
        yield site
    provider.shutdown()
    provider.server_close()


@pytest.fixture
def http(site: Site) -> Iterator[httpx.Client]:
    """Plain HTTP through nginx."""
    with httpx.Client(base_url=site.url, verify=site.trust, headers=site.bearer) as client:
        yield client


@pytest.mark.thorough
@pytest.mark.client
def test_the_weave_sdk(site: Site, http: httpx.Client, project: str, tmp_path: Path) -> None:
    python = ROOT / ".clients" / f"weave-{SDK_VERSIONS[0]}" / "bin" / "python"
    if not python.exists():
        pytest.skip("weave is not installed: run `make clients`")
    client = Client([str(python)], SCENARIOS, site.url, project, tmp_path)
    seen = client.run("printed_links.py", base_only=True, **site.variables, WEAVE_PRINT_CALL_LINK="true")
    assert all(address.startswith(f"{site.url}/{project}") for address in [*seen["printed"], seen["call"]])
    lines = http.post("/calls/stream_query", json={"project_id": project}).text.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [seen["call_id"]]
    assert http.get(seen["call"]).status_code == 200
    for page in ("op", "dataset", "prompt", "board", "conversation", "view"):
        assert http.get(seen[page]).status_code == 200, seen[page]


@pytest.mark.client
@pytest.mark.thorough
def test_the_openai_sdk(site: Site, project: str, tmp_path: Path) -> None:
    python = ROOT / ".clients" / "openai-3.57.0" / "bin" / "python"
    if not python.exists():
        pytest.skip("openai is not installed: run `make clients`")
    client = Client([str(python)], SCENARIOS, site.url, project, tmp_path)
    variables = {"OPENAI_BASE_URL": f"{site.url}/v1", "OPENAI_API_KEY": site.key}
    seen = client.run("openai_chat.py", **site.variables, **variables)
    assert seen["streamed"]["text"] == seen["plain"]["text"] and seen["plain"]["text"]


@pytest.mark.client
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_exporters_of_opentelemetry(
    site: Site, http: httpx.Client, project: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporters = pytest.importorskip(f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter")
    place = site.url if protocol == "http" else f"https://127.0.0.1:{site.nginx.port}"
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        # The exporter's library prefers those of this machine to the exporter's own.
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(site.nginx.certificate))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{site.key},project_id={project}")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporters.OTLPSpanExporter()))
    with provider.get_tracer("t").start_as_current_span("through nginx"):
        pass
    provider.shutdown()
    (line,) = http.post("/calls/stream_query", json={"project_id": project}).text.splitlines()
    assert "/op/through_nginx:" in json.loads(line)["op_name"]


def test_chunks_of_a_stream_arrive_one_by_one(site: Site, http: httpx.Client, project: str) -> None:
    _Gated.opened.clear()
    body = {"project_id": project, "inputs": {"model": "gated/m", "messages": [{"role": "user", "content": "go"}]}}
    seen = []
    with http.stream("POST", "/completions/create_stream", json=body, timeout=GATE_SECONDS) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            seen += [word for word in ("first", "second") if word in line and word not in seen]
            if seen == ["first"]:
                # Only now may the provider send more: what came did not wait for it.
                _Gated.opened.set()
    assert seen == ["first", "second"]


@pytest.mark.parametrize("size", [20 << 20, pytest.param(1 << 30, marks=pytest.mark.thorough)])
def test_large_files_pass_both_ways(http: httpx.Client, project: str, size: int, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", os.urandom(1 << 20)
    with whole.open("wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(4, "big") + part[4:])
    with whole.open("rb") as file:
        wanted = hashlib.file_digest(file, "sha256").hexdigest()
    with whole.open("rb") as file:
        answer = http.post("/file/create", data={"project_id": project}, files={"file": ("whole", file)}, timeout=600)
    assert answer.status_code == 200, answer.text
    found = hashlib.sha256()
    asked = {"project_id": project, "digest": answer.json()["digest"]}
    with http.stream("POST", "/file/content", json=asked, timeout=600) as content:
        for piece in content.iter_bytes():
            found.update(piece)
    assert found.hexdigest() == wanted


def test_names_with_slashes_reach_the_server_as_they_were_sent(http: httpx.Client, project: str) -> None:
    name = "a/b c%20ü"
    assert http.get(f"/{project}/weave/threads/{quote(name, safe='')}").status_code == 200
    answer = http.get(f"/v1/models/{quote(name, safe='')}")
    assert answer.status_code == 404 and name in answer.json()["error"]["message"]


def test_a_signed_address_needs_no_key(site: Site, http: httpx.Client, project: str) -> None:
    sent = http.post("/file/create", data={"project_id": project}, files={"file": ("f", b"signed")})
    asked = http.post("/files/resolve_url", json={"project_id": project, "uris": [sent.json()["digest"]]})
    (address,) = asked.json()["download_urls"]
    assert address.startswith(f"{site.url}/files/download?")
    with httpx.Client(verify=site.trust) as stranger:
        assert stranger.get(address).content == b"signed"


def test_redirects_stay_below_the_path(http: httpx.Client) -> None:
    answer = http.get("/health/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"{PATH}/health")


def test_a_team_of_the_name_of_the_path(http: httpx.Client) -> None:
    page = http.get(f"{PATH}/some-project/weave")
    assert page.status_code == 200
    assert http.get("/nobody/knows/this/path").status_code == 404


def test_a_proxy_that_takes_the_path_off_says_so(site: Site) -> None:
    with httpx.Client(base_url=site.server.url, headers=site.bearer) as direct:
        assert direct.get("/health").status_code == direct.get(f"{PATH}/health").status_code == 200
        named = {"x-forwarded-prefix": PATH}
        assert direct.get("/health", headers=named).status_code == 200
        assert direct.get(f"{PATH}/health", headers=named).status_code == 404
        assert direct.get(f"{PATH}/project/weave", headers=named).status_code == 200


@pytest.mark.thorough
def test_workers_take_the_path_off_once(tmp_path: Path) -> None:
    """What a worker passes on to the writing process may begin with the path again."""
    with (
        HeddleProcess(tmp_path / "data", root_path=PATH, workers=2, store="sqlite", control="sqlite") as server,
        httpx.Client(base_url=server.url + PATH) as client,
    ):
        for team in ("team", PATH.strip("/")):
            project = f"{team}/one"
            call = {"project_id": project, "id": team, "op_name": "o", "started_at": "2026-11-23T08:00:00Z"}
            call |= {"trace_id": "t", "attributes": {}, "inputs": {}, "ended_at": "2026-11-23T08:00:01Z", "summary": {}}
            assert client.post(f"/v2/{project}/calls/complete", json={"batch": [call]}).status_code == 200
            (line,) = client.post("/traces/calls/stream_query", json={"project_id": project}).text.splitlines()
            assert json.loads(line)["id"] == team
            assert client.get(f"/{project}/weave").status_code == 200
            assert client.get(f"/{project}/nowhere").status_code == 404


def test_the_cookie_of_a_browser_is_for_this_path_and_for_tls_only(site: Site) -> None:
    told = {"x-heddle-ui": "1", "origin": f"https://127.0.0.1:{site.nginx.port}"}
    with httpx.Client(verify=site.trust, base_url=site.url) as client:
        answer = client.post("/_ui/session", json={"key": site.key}, headers=told)
    cookie = answer.headers["set-cookie"].split("; ")
    assert answer.status_code == 200 and {f"Path={PATH}", "Secure", "HttpOnly"} <= set(cookie)


def test_a_balancer_in_front_of_two_servers(tmp_path: Path) -> None:
    one, two = (HeddleProcess(tmp_path / name, auth="off", model_name=name) for name in ("one", "two"))

    def answering(client: httpx.Client) -> set[str]:
        return {client.get("/v1/models").json()["data"][0]["id"] for _ in range(8)}

    with one, two, Nginx() as nginx:
        nginx.balance([one.port, two.port])
        with httpx.Client(base_url=f"http://127.0.0.1:{nginx.port}") as client:
            client.headers["authorization"] = "Bearer any"
            assert answering(client) == {"one", "two"}
            assert one.terminate() == 0
            assert answering(client) == {"two"}

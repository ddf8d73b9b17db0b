"""What Logfire's SDK 5.4 asks for when it is given a token and this server's address, and how it sends the token."""

import gzip

import httpx
import pytest

from tests.support.cli import make_key
from tests.support.otlp import PROTOBUF, request, span
from tests.support.server import HeddleProcess


def test_a_token_is_an_api_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It comes without a scheme; its project is that of the spans of no named service."""
    data = tmp_path_factory.mktemp("logfire") / "data"
    key, free = make_key(data, "ann", "--project", "team/one"), make_key(data, "ben")
    with HeddleProcess(data, auth="on") as server, httpx.Client(base_url=server.url) as client:
        info = client.get("/v1/info", headers={"authorization": key})
        assert info.json() == {"project_name": "team/one", "project_url": f"{server.url}/team/one/weave"}
        assert client.get(info.json()["project_url"], headers={"authorization": key}).status_code == 200
        info = client.get("/v1/info", headers={"authorization": free})
        assert info.json() == {"project_name": "ben", "project_url": f"{server.url}/"}
        assert client.get("/v1/info", headers={"authorization": "heddle-unknown"}).status_code == 401
        foreign = client.get("/v1/info", headers={"authorization": key, "project_id": "team/two"})
        assert foreign.status_code == 403
        body = gzip.compress(request(span()).SerializeToString())
        headers = {**PROTOBUF, "content-encoding": "gzip", "authorization": key}
        assert client.post("/v1/traces", content=body, headers=headers).status_code == 200
        counted = client.post("/calls/query_stats", json={"project_id": "team/one"}, auth=("api", key))
        assert counted.json()["count"] == 1

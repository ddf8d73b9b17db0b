"""The /v2 routes of one project for tests: requests that must succeed, and answers of any kind."""

import json
from typing import Any
from urllib.parse import quote

import httpx

from tests.conftest import Wire

Json = dict[str, Any]


class V2Api:
    """The routes under /v2/{entity}/{project}."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        entity, project = wire.project.split("/")
        self.base = f"/v2/{quote(entity)}/{quote(project)}"

    def ask(self, method: str, path: str, **sent: Any) -> httpx.Response:
        """The answer to any request."""
        return self.wire.client.request(method, f"{self.base}/{path}", **sent)

    def post(self, path: str, **body: Any) -> Json:
        """The answer to a POST that must succeed."""
        return self._good(self.ask("POST", path, json=body))

    def get(self, path: str, **query: Any) -> Json:
        """The answer to a GET that must succeed."""
        return self._good(self.ask("GET", path, params=query))

    def delete(self, path: str, **query: Any) -> int:
        """How many were deleted."""
        return int(self._good(self.ask("DELETE", path, params=query))["num_deleted"])

    def list(self, path: str, media_type: str, **query: Any) -> list[Json]:
        """The lines of a list."""
        answer = self.ask("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].partition(";")[0] == media_type
        return [json.loads(line) for line in answer.text.splitlines()]

    def ref(self, kind: str, name: str, digest: str) -> str:
        """An external ref into the project."""
        return f"weave:///{self.wire.project}/{kind}/{name}:{digest}"

    def stored(self, name: str) -> Any:
        """The latest value of an object."""
        return self.wire.post("/obj/read", object_id=name, digest="latest")["obj"]["val"]

    @staticmethod
    def _good(answer: httpx.Response) -> Json:
        assert answer.status_code == 200, f"{answer.request.url}: {answer.status_code} {answer.text[:1000]}"
        return dict(answer.json())

"""A small session that uses every route of `trace-core.json` once with something to answer.

`schema_session_evals` has those that only `trace-evals.json` knows.
"""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

OPTIONS = {"params", "headers", "data", "files"}
NAMES = re.compile(r"\{(\w+)\}")


@dataclass
class Answer:
    """What one route answered; `values` holds the body, or the lines of a stream, or nothing if binary."""

    key: str
    response: httpx.Response
    values: list[Any]


class Session:
    """Drives one project; every method makes requests and yields their answers."""

    def __init__(self, client: httpx.Client, project: str) -> None:
        self.client = client
        self.project = project
        self.entity, self.name = project.split("/")
        self.call = str(uuid.uuid4())
        self.trace = str(uuid.uuid4())
        self.target = f"weave:///{project}/call/{self.call}"

    def run(self) -> Iterator[Answer]:
        """The whole session in an order in which each route finds something."""
        yield from self.service()
        yield from self.objects()
        yield from self.files()
        yield from self.tables()
        yield from self.calls()
        yield from self.feedback()
        yield from self.costs()
        yield from self.statistics()
        yield from self.removals()

    def send(self, key: str, body: Any = None, **request: Any) -> Answer:
        """One request; `key` is the contract's name of the route, path parameters come from `request`."""
        method, template = key.split(" ")
        known = {"entity": self.entity, "project": self.name}
        path = template.format(**{name: known.get(name) or request.pop(name) for name in NAMES.findall(template)})
        request = {name: value for name, value in request.items() if name in OPTIONS}
        if body is not None:
            request["json"] = body
        response = self.client.request(method, path, **request)
        kind = response.headers.get("content-type", "").partition(";")[0]
        if kind in ("application/jsonl", "application/x-ndjson"):
            return Answer(key, response, [json.loads(line) for line in response.text.splitlines()])
        return Answer(key, response, [response.json()] if kind == "application/json" else [])

    def post(self, path: str, **body: Any) -> Answer:
        """POST with this session's project id in the body."""
        return self.send(f"POST {path}", {"project_id": self.project, **body})

    def service(self) -> Iterator[Answer]:
        """The routes about the server itself."""
        yield from (self.send(f"GET /{name}") for name in ("health", "version", "server_info", "geolocate"))
        yield self.send("POST /service/projects_info", {"project_ids": [self.project]})

    def objects(self) -> Iterator[Answer]:
        """Versions, tags, aliases and refs."""
        value = {"_type": "Thing", "_class_name": "Thing", "_bases": ["Object", "BaseModel"], "n": 1}
        created = self.send("POST /obj/create", {"obj": {"project_id": self.project, "object_id": "o", "val": value}})
        yield created
        digest = created.values[0]["digest"]
        where = {"object_id": "o", "digest": digest}
        body = {"project_id": self.project}
        yield self.send("PUT /objs/{object_id}/versions/{digest}/tags", {**body, "tags": ["t"]}, **where)
        yield self.send("PUT /objs/{object_id}/aliases", {**body, "digest": digest, "aliases": ["prod"]}, **where)
        yield self.post("/obj/read", object_id="o", digest="prod", include_tags_and_aliases=True)
        yield self.post("/objs/query", include_tags_and_aliases=True, include_storage_size=True)
        yield self.send("GET /tags", params=body)
        yield self.send("GET /aliases", params=body)
        yield self.send("POST /refs/read_batch", {"refs": [f"weave:///{self.project}/object/o:{digest}/attr/n"]})
        yield self.send("POST /objs/{object_id}/versions/{digest}/tags/remove", {**body, "tags": ["t"]}, **where)
        yield self.send("POST /objs/{object_id}/aliases/remove", {**body, "aliases": ["prod"]}, **where)

    def files(self) -> Iterator[Answer]:
        """Under the spellings of both SDK versions."""
        for create, content, stats in (
            ("/file/create", "/file/content", "/files/query_stats"),
            ("/files/create", "/files/content", "/files/stats"),
        ):
            form = {"project_id": self.project}
            created = self.send(f"POST {create}", data=form, files={"file": ("name.txt", b"content")})
            yield created
            yield self.post(content, digest=created.values[0]["digest"])
            yield self.post(stats)

    def tables(self) -> Iterator[Answer]:
        """Create, change, read."""
        table = {"project_id": self.project, "rows": [{"a": 1}, {"a": 2, "b": {"c": "x"}}]}
        created = self.send("POST /table/create", {"table": table})
        yield created
        rows = created.values[0]["row_digests"]
        yield self.post("/table/create_from_digests", row_digests=rows)
        updates = [{"append": {"row": {"a": 3}}}, {"pop": {"index": 0}}, {"insert": {"index": 0, "row": {"a": 0}}}]
        updated = self.post("/table/update", base_digest=created.values[0]["digest"], updates=updates)
        yield updated
        digest = updated.values[0]["digest"]
        yield self.post("/table/query", digest=digest, limit=2, sort_by=[{"field": "a", "direction": "desc"}])
        yield self.post("/table/query_stats", digest=digest)
        yield self.post("/table/query_stats_batch", digests=[digest], include_storage_size=True)

    def calls(self) -> Iterator[Answer]:
        """Every way to write calls, then every way to read them."""
        started, ended = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01.5Z"
        head = {"project_id": self.project, "op_name": "op", "started_at": started, "attributes": {"k": 1}}
        summary = {"usage": {"gpt-4o": {"prompt_tokens": 10, "completion_tokens": 5, "requests": 1}}}
        root = {**head, "id": self.call, "trace_id": self.trace, "inputs": {"x": 1}}
        turn = {"thread_id": "thread", "turn_id": self.call}
        yield self.send("POST /call/start", {"start": {**root, **turn}})
        end = {"project_id": self.project, "id": self.call, "ended_at": ended, "summary": summary, "output": {"y": [1]}}
        yield self.send("POST /call/end", {"end": end})
        child = {**head, "inputs": {}, "trace_id": self.trace, "parent_id": self.call}
        first, second, third = (str(uuid.uuid4()) for _ in range(3))
        batch = [
            {"mode": "start", "req": {"start": {**child, "id": first}}},
            {"mode": "end", "req": {"end": {**end, "id": first, "exception": "ValueError: no"}}},
        ]
        yield self.send("POST /call/upsert_batch", {"batch": batch})
        yield self.send("POST /v2/{entity}/{project}/call/start", {"start": {**child, "id": second}})
        v2_end = {**end, "id": second, "started_at": started, "trace_id": self.trace}
        yield self.send("POST /v2/{entity}/{project}/call/end", {"end": v2_end})
        complete = {**child, "id": third, "ended_at": ended, "summary": summary, "output": None}
        yield self.send("POST /v2/{entity}/{project}/calls/complete", {"batch": [complete]})
        yield self.post("/call/update", call_id=self.call, display_name="shown")
        yield self.post("/call/read", id=self.call, include_costs=True, include_total_storage_size=True)
        wanted = {"include_costs": True, "include_feedback": True, "include_storage_size": True, "latest_only": False}
        yield self.post("/calls/stream_query", **wanted, sort_by=[{"field": "inputs.x", "direction": "asc"}])
        yield self.post("/calls/query_stats", include_total_storage_size=True)
        yield self.post("/threads/stream_query")

    def feedback(self) -> Iterator[Answer]:
        """Create, replace, read."""
        item = {"weave_ref": self.target, "feedback_type": "wandb.reaction.1", "payload": {"emoji": "👍"}}
        created = self.post("/feedback/create", **item)
        yield created
        note = {
            "project_id": self.project,
            "weave_ref": self.target,
            "feedback_type": "custom",
            "payload": {"score": 1},
        }
        yield self.send("POST /feedback/batch/create", {"batch": [note]})
        yield self.post("/feedback/replace", **item, feedback_id=created.values[0]["id"])
        yield self.post("/feedback/query", sort_by=[{"field": "created_at", "direction": "asc"}])
        yield self.post(
            "/feedback/stats",
            start="2026-01-01T00:00:00Z",
            end="2026-01-02T00:00:00Z",
            metrics=[{"json_path": "score"}],
        )
        yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        yield self.post("/feedback/payload_schema", start=yesterday)
        yield self.post("/feedback/aggregate", after_ms=0, before_ms=4_000_000_000_000)

    def costs(self) -> Iterator[Answer]:
        """Create, read, purge."""
        price = {"prompt_token_cost": 0.1, "completion_token_cost": 0.2}
        created = self.post("/cost/create", costs={"gpt-4o": price})
        yield created
        yield self.post("/cost/query")
        query = {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": created.values[0]["ids"][0][0]}]}}
        yield self.post("/cost/purge", query=query)

    def statistics(self) -> Iterator[Answer]:
        """Time buckets, usage, sizes, retention."""
        day = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
        usage = [
            {"metric": "input_tokens", "aggregations": ["sum", "max"], "percentiles": [50]},
            {"metric": "total_cost"},
        ]
        yield self.post("/calls/stats", **day, usage_metrics=usage, call_metrics=[{"metric": "latency_ms"}])
        yield self.post("/calls/usage", call_ids=[self.call], include_costs=True)
        yield self.post("/trace/usage", filter={"trace_ids": [self.trace]}, include_costs=True)
        yield self.post("/project/stats")
        yield self.post("/project/ttl_settings/read")
        yield self.post("/project/ttl_settings/update", retention_days=None)

    def removals(self) -> Iterator[Answer]:
        """What takes things away comes last."""
        query = {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": "nobody"}]}}
        yield self.post("/feedback/purge", query=query)
        yield self.post("/obj/delete", object_id="o", digests=["latest"])
        yield self.post("/calls/delete", call_ids=[self.call])

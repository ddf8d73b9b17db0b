"""Tenants that keep a secret in everything that a project can hold, and the routes as the routers describe them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi.openapi.utils import get_openapi

from heddle.app import served_routes
from heddle.inference.served_model import TINY, TINY_FOLDER
from tests.support.description import openapi
from tests.support.models import make_adapter
from tools import manual

Json = dict[str, Any]
START = "2026-01-01T00:00:00Z"
TRACE, SPAN = "0" * 28 + "cafe", "0" * 12 + "beef"


@dataclass
class Tenant:
    """A project, the secret in all that it holds, and the names by which what it holds is found."""

    project_id: str
    secret: str
    ids: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> str:
        try:
            return self.ids[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def entity(self) -> str:
        """Before the slash."""
        return self.project_id.split("/")[0]

    @property
    def project(self) -> str:
        """Behind the slash."""
        return self.project_id.split("/")[1]

    def ref(self, kind: str, name: str) -> str:
        """A ref into the project."""
        return f"weave:///{self.project_id}/{kind}/{name}"

    def object(self, kind: str) -> str:
        """The ref of one of the objects."""
        return self.ref("object", f"{kind}:{self.ids[kind]}")

    def nowhere(self) -> "Tenant":
        """Names of the same form that nothing has."""
        moved = str.maketrans("0123456789", "3456789012")
        ids = {name: value.translate(moved) for name, value in self.ids.items()}
        ids = {name: value if value != self.ids[name] else f"{value}-none" for name, value in ids.items()}
        ids |= {name: value for name, value in self.ids.items() if name == "checkpoint"}  # a folder of the operator's
        return Tenant(self.project_id, self.secret, ids)

    def within(self, project_id: str) -> "Tenant":
        """The same names in another project."""
        return Tenant(project_id, self.secret, self.ids)


class Seeding:
    """Fills a project as an operator's key may."""

    def __init__(self, client: httpx.Client, tenant: Tenant) -> None:
        self._client = client
        self._tenant = tenant

    def post(self, path: str, body: Json | None = None, method: str = "POST", **more: Any) -> Any:
        """The answer to a request that must be done."""
        answer = self._client.request(method, path, **({"json": body} if body is not None else {}), **more)
        assert answer.status_code < 300, f"{path}: {answer.status_code} {answer.text[:600]}"
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json and answer.content else answer.text

    def object(self, name: str, value: Json) -> None:
        """A version of an object."""
        obj = {"project_id": self._tenant.project_id, "object_id": name, "val": value}
        self._tenant.ids[name] = self.post("/obj/create", {"obj": obj})["digest"]

    def fill(self, folder: Path) -> None:
        """Everything that a project can hold."""
        self._calls()
        self._objects()
        self._rows()
        self._evaluations()
        self._responses()
        self._training(folder)
        self._tinker()

    def fill_again(self) -> None:
        """What requests that delete may have taken: new calls, feedback, and a prediction with its score."""
        number = int(self._tenant.call.rpartition("-")[2]) + 2
        self._calls((number, number + 1))
        self._feedback()
        self._predictions({})

    def _calls(self, numbers: Sequence[int] = (0, 1)) -> None:
        t, secret = self._tenant, self._tenant.secret
        for number in numbers:
            call = f"{t.entity}-call-{number}"
            start = {"project_id": t.project_id, "id": call, "trace_id": f"{t.entity}-trace", "op_name": "ask"}
            chat = {"model": TINY, "messages": [{"role": "user", "content": secret}]}
            start |= {
                "started_at": START,
                "attributes": {"k": secret},
                "inputs": chat,
                "thread_id": f"{t.entity}-thread",
            }
            start |= {"turn_id": call, "display_name": secret}
            self.post("/call/start", {"start": start})
            end = {"project_id": t.project_id, "id": call, "ended_at": START, "output": {"said": secret}}
            usage = {"usage": {"some-model": {"prompt_tokens": 3, "completion_tokens": 2, "requests": 1}}}
            self.post("/call/end", {"end": {**end, "summary": usage, "exception": secret}})
        t.ids |= {"call": f"{t.entity}-call-{numbers[0]}", "trace": f"{t.entity}-trace"}
        t.ids["thread"] = f"{t.entity}-thread"
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": f"{t.entity}-agent"}
        attributes |= {"gen_ai.conversation.id": f"{t.entity}-talk", "gen_ai.prompt": secret}
        spans = spans_of(attributes)
        for path in ("/otel/v1/traces", "/agents/otel/v1/traces"):
            self.post(path, spans, headers={"project_id": t.project_id})
        self.post("/v1/logs", log_of("s", t.secret), headers={"project_id": t.project_id})
        self.post("/v1/metrics", points_of("tokens", 5, {"who": t.secret}), headers={"project_id": t.project_id})

    def _objects(self) -> None:
        t, secret = self._tenant, self._tenant.secret
        said = [{"role": "user", "content": secret}, {"role": "assistant", "content": secret}]
        pair = {"messages": said, "chosen": said, "rejected": said}
        rows = [{"question": secret, "answer": f"{secret} {number}", **pair} for number in range(2)]
        made = self.post("/table/create", {"table": {"project_id": t.project_id, "rows": rows}})
        t.ids |= {"table": made["digest"], "row": made["row_digests"][0]}
        named = {"project_id": t.project_id}
        content = {"file": ("secret.txt", secret.encode() * 3, "text/plain")}
        t.ids["file"] = self.post("/file/create", data=named, files=content)["digest"]
        dataset = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "name": "words"}
        self.object("words", {**dataset, "description": secret, "rows": t.ref("table", t.table)})
        prompt = {
            "_type": "MessagesPrompt",
            "_class_name": "MessagesPrompt",
            "_bases": ["Prompt", "Object", "BaseModel"],
        }
        self.object("prompt", {**prompt, "messages": [{"role": "user", "content": secret}]})
        spec = {"_type": "AnnotationSpec", "_class_name": "AnnotationSpec", "_bases": ["BaseObject", "BaseModel"]}
        spec |= {"name": "spec", "description": secret, "field_schema": {"type": "string"}}
        self.object("spec", spec)
        scorer = {"_type": "RegexMatchScorer", "_class_name": "RegexMatchScorer", "_bases": ["Scorer", "Object"]}
        self.object("matches", {**scorer, "name": "matches", "pattern": "a", "description": secret})
        self.post(f"/objs/words/versions/{t.words}/tags", {**named, "tags": [f"tag-{secret}"]}, "PUT")
        self.post("/objs/words/aliases", {**named, "digest": t.words, "aliases": [f"alias-{secret}"]}, "PUT")
        self.post("/objs/prompt/aliases", {**named, "digest": t.ids["prompt"], "aliases": ["production"]}, "PUT")
        target = {"portfolio_name": "shelf", "entity_name": t.entity, "project_name": t.project}
        self.post("/link_to_registry", {"ref": t.object("words"), "target": target})

    def _rows(self) -> None:
        t, secret, named = self._tenant, self._tenant.secret, {"project_id": self._tenant.project_id}
        self._feedback()
        score = {"name": "liked", "value": 1, "traceId": t.trace, "observationId": t.call, "comment": secret}
        t.ids["langfuse"] = self.post("/api/public/scores", score, headers={"project_id": t.project_id})["id"]
        item = {"runName": "run", "datasetItemId": t.row, "traceId": t.trace}
        self.post("/api/public/dataset-run-items", item, headers={"project_id": t.project_id})
        price = {"prompt_token_cost": 0.1, "completion_token_cost": 0.2, "provider_id": secret}
        t.ids["cost"] = self.post("/cost/create", {**named, "costs": {"some-model": price}})["ids"][0][0]
        queue = {**named, "name": secret, "description": secret, "scorer_refs": [t.object("spec")]}
        t.ids["queue"] = self.post("/annotation_queues", queue)["id"]
        items = {**named, "call_ids": [t.call], "display_fields": [f"inputs.{secret}"]}
        self.post(f"/annotation_queues/{t.queue}/items", items)
        t.ids["item"] = self.post(f"/annotation_queues/{t.queue}/items/query", named)["items"][0]["id"]
        rule = {**named, "metric": "count", "operator": ">", "threshold": 1e9, "name": secret, "enabled": False}
        rule |= {"webhook_url": "http://127.0.0.1:9/hook"}
        t.ids["alert"] = self.post("/alerts/create", rule)["alert"]["id"]
        runtime = {"base_url": "http://127.0.0.1:9", "headers": {"x-secret": secret}, "runtime_ids": [{"id": "m"}]}
        self.post(f"/v2/{t.project_id}/runtimes/box", runtime, "PUT")
        source = {"source_kind": "call", "source_id": t.call, "source_trace_id": t.trace}
        link = {"row_digest": t.row, "sources": [source], "link_metadata": {"why": secret}}
        body = {**named, "dataset_object_id": "words", "dataset_digest": t.words, "links": [link]}
        t.ids["link"] = self.post("/dataset_sources/link", body)["entries"][0]["link_id"]

        key = {"user": secret, "scopes": ["read"], "project": t.project_id}
        t.ids["key"] = self.post("/_ui/api/keys", key)["id"]

    def _feedback(self) -> None:
        t = self._tenant
        note = {"project_id": t.project_id, "weave_ref": t.ref("call", t.call), "feedback_type": "custom"}
        t.ids["feedback"] = self.post("/feedback/create", {**note, "payload": {"note": t.secret}})["id"]

    def _predictions(self, of_run: Json) -> None:
        t, base = self._tenant, f"/v2/{self._tenant.project_id}"
        said = {"model": t.object("answerer"), "inputs": {"question": t.secret}, "output": t.secret, **of_run}
        t.ids["prediction"] = self.post(f"{base}/predictions", said)["prediction_id"]
        score = {"prediction_id": t.prediction, "scorer": t.object("judge"), "value": 1.0, **of_run}
        t.ids["score"] = self.post(f"{base}/scores", score)["score_id"]

    def _evaluations(self) -> None:
        t, secret, base = self._tenant, self._tenant.secret, f"/v2/{self._tenant.project_id}"
        made = self.post(f"{base}/ops", {"name": "shout", "source_code": f"# {secret}"})
        t.ids |= {"shout": made["digest"]}
        made = self.post(f"{base}/models", {"name": "answerer", "source_code": f"# {secret}", "description": secret})
        t.ids |= {"answerer": made["digest"]}
        made = self.post(f"{base}/scorers", {"name": "judge", "op_source_code": f"# {secret}", "description": secret})
        t.ids |= {"judge": made["digest"]}
        exam = {"name": "exam", "dataset": t.object("words"), "scorers": [t.object("matches")], "description": secret}
        t.ids |= {"exam": self.post(f"{base}/evaluations", exam)["digest"]}
        run = {"evaluation": t.object("exam"), "model": t.object("answerer")}
        t.ids["run"] = self.post(f"{base}/evaluation_runs", run)["evaluation_run_id"]
        self._predictions({"evaluation_run_id": t.run})
        replay = {"project_id": t.project_id, "name": secret, "filter": {"call_ids": [t.call]}}
        t.ids["replay"] = self.post("/replays/create", {**replay, "model": TINY})["id"]
        named = {"project_id": t.project_id, "id": t.replay}
        deadline = time.monotonic() + 60
        while self.post("/replays/read", named)["replay"]["ended_at"] is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _responses(self) -> None:
        t, said = self._tenant, {"role": "user", "content": self._tenant.secret}
        named = {"headers": {"openai-project": t.project_id}}
        asked = {"model": TINY, "input": [said], "metadata": {"k": t.secret}, "max_output_tokens": 1}
        t.ids["response"] = self.post("/v1/responses", {**asked, "background": True}, **named)["id"]
        deadline = time.monotonic() + 60
        while self.post(f"/v1/responses/{t.response}", method="GET", **named)["usage"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        items = {"items": [said, said], "metadata": {"k": t.secret}}
        t.ids["conversation"] = self.post("/v1/conversations", items, **named)["id"]
        listed = self.post(f"/v1/conversations/{t.conversation}/items", method="GET", **named)
        t.ids["conversation_item"] = listed["first_id"]

    def _tinker(self) -> None:
        t = self._tenant
        session = {"sdk_version": "0.38.0", "project_id": t.project_id, "display_name": t.secret, "tags": []}
        for name in ("tinker_session", "tinker_ending"):
            t.ids[name] = self.post("/api/v1/create_session", session)["session_id"]
        made = {"session_id": t.tinker_session, "model_seq_id": 0, "base_model": TINY}
        made |= {"user_metadata": {"k": t.secret}}
        t.ids["tinker_run"] = self.post("/api/v1/create_model", made)["model_id"]
        sampler = {"session_id": t.tinker_session, "sampling_session_seq_id": 0, "base_model": TINY}
        t.ids["sampler"] = self.post("/api/v1/create_sampling_session", sampler)["sampling_session_id"]
        saved = {"model_id": t.tinker_run, "seq_id": 1, "path": "kept", "user_metadata": {"k": t.secret}}
        future = self.post("/api/v1/save_weights", saved)["request_id"]
        deadline = time.monotonic() + 120
        while "path" not in (told := self._client.post("/api/v1/retrieve_future", json={"request_id": future}).json()):
            assert time.monotonic() < deadline and told.get("type") == "try_again", told
        t.ids["saved"] = told["path"]

    def _training(self, folder: Path) -> None:
        t, secret = self._tenant, self._tenant.secret
        adapter = make_adapter(folder / t.entity, TINY_FOLDER)
        name = f"wandb-artifact:///{t.project_id}/tuned"
        self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(adapter)})
        model = {"entity": t.entity, "project": t.project, "name": "learner", "base_model": TINY}
        t.ids["model"] = self.post("/v1/preview/models", model)["id"]
        t.ids["checkpoint"] = str(adapter)
        weak = {"filter": {"call_ids": [t.call]}}
        asked = {"project_id": t.project_id, "name": secret, "model": "learner", "weak": weak}
        t.ids["improvement"] = self.post("/improvements/create", {**asked, "scorers": [t.object("matches")]})["id"]
        groups = [{"trajectories": [trajectory(secret), trajectory(secret)]}]
        log = {"split": "val", "trajectory_groups": groups}
        self.post(f"/v1/preview/models/{t.model}/log", log)
        t.ids["log"] = self.post(f"/v1/preview/models/{t.model}/logs", method="GET")["data"][0]["id"]
        body = {"model_id": t.model, "trajectory_groups": groups}
        t.ids["job"] = self.post("/v1/preview/training-jobs", body)["id"]
        self.post(f"/v1/preview/training-jobs/{t.job}/cancel")
        # Its call appears at its end.
        ended = {"project_id": t.project_id, "filter": {"op_names": ["heddle.training_job"]}}
        deadline = time.monotonic() + 60
        while not self.post("/calls/query_stats", ended)["count"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def trajectory(text: str) -> Json:
    """One rollout with a text in it."""
    said = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return {"messages_and_choices": said, "reward": 1.0, "metadata": {"k": text}, "metrics": {}, "tools": None}


def spans_of(attributes: Mapping[str, str]) -> Json:
    """One span in the JSON form of OTLP."""
    span: Json = {"traceId": TRACE, "spanId": SPAN, "name": "chat", "kind": 3}
    span |= {"startTimeUnixNano": "1767225600000000000", "endTimeUnixNano": "1767225601000000000"}
    span["attributes"] = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def log_of(session: str, prompt: str = "hi") -> Json:
    """One event of a coding agent in the JSON form of OTLP."""
    told = {"event.name": "user_prompt", "session.id": session, "prompt.id": "p", "prompt": prompt}
    record: Json = {"timeUnixNano": "1767225600000000000", "body": {"stringValue": "claude_code.user_prompt"}}
    record["attributes"] = [{"key": key, "value": {"stringValue": text}} for key, text in told.items()]
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


def points_of(name: str, value: int, attributes: Mapping[str, str] | None = None) -> Json:
    """One point of a counter in the JSON form of OTLP."""
    point: Json = {"startTimeUnixNano": "1767225600000000000", "timeUnixNano": "1767225601000000000", "asInt": value}
    point["attributes"] = [{"key": key, "value": {"stringValue": text}} for key, text in (attributes or {}).items()]
    counted = {"dataPoints": [point], "aggregationTemporality": 2, "isMonotonic": True}
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": name, "sum": counted}]}]}]}


@dataclass(frozen=True)
class Asking:
    """One request to a route."""

    method: str
    path: str
    params: Json
    headers: dict[str, str]
    body: Any
    files: Any = None


@dataclass(frozen=True)
class Asked:
    """A route, the scope that it needs, and its description."""

    method: str
    template: str
    scope: str
    described: Json
    schemas: Json

    def __str__(self) -> str:
        return f"{self.method} {self.template}"


def asked_routes() -> list[Asked]:
    """Every route that is served, those without a description included."""
    served = served_routes()
    hidden = [route.with_description() for route in served if not route.include_in_schema]
    for route in hidden:
        route.include_in_schema = True
    descriptions = {True: openapi(), False: get_openapi(title="heddle", version="0", routes=hidden)}
    found = []
    for route in served:
        described = descriptions[route.include_in_schema]
        schemas = described.get("components", {}).get("schemas", {})
        for method in sorted(route.methods or ()):
            told = described["paths"][route.path_format][method.lower()]
            found.append(Asked(method, route.path_format, manual.scope_of(route), told, schemas))
    return found

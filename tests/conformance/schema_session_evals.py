"""The second half of the session of `schema_session`: every route that only `trace-evals.json` knows, once."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conformance.schema_session import Answer, Session
from tests.conftest import Wire
from tests.support.agents import Trace
from tests.support.evaluations import Lab

V2 = "/v2/{entity}/{project}"
BEARER = {"authorization": "Bearer key"}
Json = dict[str, Any]


class EvalsSession(Session):
    """Drives one project; every method makes requests and yields their answers."""

    def run(self) -> Iterator[Answer]:
        """The whole session in an order in which each route finds something."""
        yield from itertools.chain(self.spans(), self.conversations(), self.objects_behind(), self.runs())
        yield from itertools.chain(self.in_the_background(), self.queues(), self.links(), self.completions())
        yield from itertools.chain(self.information(), self.settings(), self.deletions())

    def family(self, kind: str, **body: Any) -> Json:
        """The answer to making an object of a family; noted under its route."""
        self.made.append(self.send(f"POST {V2}/{kind}", body))
        return dict(self.made[-1].values[0])

    def spans(self) -> Iterator[Answer]:
        """A turn of an agent: it asks a model and runs a tool."""
        trace = Trace("talk")
        agent = trace.agent("planner", user="Find a train", gen_ai__agent__version="1")
        trace.chat(agent, "Find a train", "One moment", gen_ai__usage__input_tokens=5, team="a")
        trace.tool("timetable", '{"to":"Basel"}', "08:15", agent, retries=2)
        self.agents_trace = trace.trace_id
        scope = {"scope": {"name": "weave.conversation"}, "spans": trace.spans}
        body = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}
        headers = {"project_id": self.project}
        yield self.send("POST /agents/otel/v1/traces", body, headers=headers)
        yield self.send("POST /otel/v1/traces", body, headers=headers)
        measure = {"alias": "tokens", "aggregation": "sum", "value": {"key": "input_tokens"}}
        by_agent = [{"key": "agent_name"}]
        yield self.post("/agents/spans/query", include_details=True, include_costs=True)
        yield self.post("/agents/spans/query", group_by=by_agent, measures=[measure])
        hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        metric = {"alias": "tokens", "value_type": "number", "value": {"key": "input_tokens"}, "aggregations": ["sum"]}
        yield self.post("/agents/spans/stats", start=hour_ago, metrics=[metric], group_by=by_agent)
        yield self.post("/agents/spans/custom-attrs/schema")

    def conversations(self) -> Iterator[Answer]:
        """Agents, and what was said."""
        yield self.post("/agents/query", include_costs=True)
        yield self.post("/agents/agent-versions/query", agent_name="planner")
        yield self.post("/agents/search", query="train")
        yield self.post("/agents/traces/chat", trace_id=self.agents_trace, include_feedback=True)
        yield self.post("/agents/conversations/chat", conversation_id="talk", include_feedback=True)
        yield self.post("/agents/conversations/spans", conversation_ids=["talk"])

    def objects_behind(self) -> Iterator[Answer]:
        """One object of each family."""
        self.made: list[Answer] = []
        source = "def func(x):\n    return x\n"
        versions = {"ops": self.family("ops", name="an op", source_code=source)}
        versions["datasets"] = self.family("datasets", name="rows", description="d", rows=[{"q": "a"}])
        versions["scorers"] = self.family("scorers", name="judge", op_source_code=source)
        data = versions["datasets"]
        dataset = f"weave:///{self.project}/object/{data['object_id']}:{data['digest']}"
        scorers = [versions["scorers"]["scorer"]]
        versions["evaluations"] = self.family("evaluations", name="exam", dataset=dataset, scorers=scorers)
        versions["models"] = self.family("models", name="m", source_code=source, attributes={"t": 0.5})
        yield from self.made
        for name, made in versions.items():
            paged = {"limit": 5, "offset": 0} if name in ("ops", "datasets", "models") else {}
            yield self.send(f"GET {V2}/{name}", params=paged)
            where = {"object_id": made["object_id"], "digest": made["digest"]}
            yield self.send(f"GET {V2}/{name}/{{object_id}}/versions/{{digest}}", **where)
        self.versions = versions

    def runs(self) -> Iterator[Answer]:
        """A run of an evaluation, with a prediction and its score."""
        evaluation, model = self.versions["evaluations"]["evaluation_ref"], self.versions["models"]["model_ref"]
        run = self.send(f"POST {V2}/evaluation_runs", {"evaluation": evaluation, "model": model})
        yield run
        self.eval_run = run.values[0]["evaluation_run_id"]
        inside = {"evaluation_run_id": self.eval_run}
        predicted = self.send(f"POST {V2}/predictions", {"model": model, "inputs": {"q": "a"}, "output": "b", **inside})
        yield predicted
        self.prediction = predicted.values[0]["prediction_id"]
        scorer = self.versions["scorers"]["scorer"]
        scored = self.send(
            f"POST {V2}/scores", {"prediction_id": self.prediction, "scorer": scorer, "value": 0.5, **inside}
        )
        yield scored
        self.score = scored.values[0]["score_id"]
        yield self.send(f"POST {V2}/predictions/{{prediction_id}}/finish", prediction_id=self.prediction)
        yield self.send(f"POST {V2}/evaluation_runs/{{evaluation_run_id}}/finish", {"summary": {"s": 1}}, **inside)
        yield self.send(f"GET {V2}/evaluation_runs/{{evaluation_run_id}}", **inside)
        yield self.send(f"GET {V2}/predictions/{{prediction_id}}", prediction_id=self.prediction)
        yield self.send(f"GET {V2}/scores/{{score_id}}", score_id=self.score)
        yield self.send(f"GET {V2}/evaluation_runs", params={"evaluation_run_ids": [self.eval_run]})
        yield self.send(f"GET {V2}/predictions", params=inside)
        yield self.send(f"GET {V2}/scores", params=inside)
        wanted = {"include_summary": True, "include_raw_data_rows": True, "resolve_row_refs": True}
        body = {"evaluation_call_ids": [self.eval_run], **wanted, "include_costs": True}
        yield self.send(f"POST {V2}/eval_results/query", body)

    def in_the_background(self) -> Iterator[Answer]:
        """What the server runs itself."""
        wire = Wire(str(self.client.base_url), self.project)
        lab = Lab(wire)
        model = lab.model("heddle-tiny", max_tokens=2, messages_template=[{"role": "user", "content": "{q}"}])
        scorer = lab.scorer("ExactMatchScorer", column_map={"target": "q"})
        exam = lab.evaluation(lab.dataset([{"q": "a"}], "small"), [scorer], "small-exam")
        begun = self.post("/evaluations/evaluate_model", evaluation_ref=exam, model_ref=model)
        yield begun
        yield self.post("/evaluations/status", call_id=begun.values[0]["call_id"])
        yield self.post("/evaluations/rescore", source_evaluation_run_id=self.eval_run, scorer_refs=[scorer])
        yield self.post("/calls/score", call_ids=[self.prediction], scorer_refs=[scorer])
        wire.client.close()

    def queues(self) -> Iterator[Answer]:
        """A queue with one call that somebody looks at."""
        made = self.post("/annotation_queues", name="queue", scorer_refs=[])
        yield made
        where, body = {"queue_id": made.values[0]["id"]}, {"project_id": self.project}
        yield self.post("/annotation_queues/query")
        yield self.send("GET /annotation_queues/{queue_id}", params=body, **where)
        yield self.send("PUT /annotation_queues/{queue_id}", {**body, "description": "d"}, **where)
        calls = {"call_ids": [self.prediction], "display_fields": ["inputs.q"]}
        yield self.send("POST /annotation_queues/{queue_id}/items", {**body, **calls}, **where)
        listed = self.send(
            "POST /annotation_queues/{queue_id}/items/query", {**body, "include_position": True}, **where
        )
        yield listed
        item = {**where, "item_id": listed.values[0]["items"][0]["id"]}
        state = {**body, "annotation_state": "completed"}
        yield self.send("POST /annotation_queues/{queue_id}/items/{item_id}/progress", state, **item)
        yield self.post("/annotation_queues/stats", queue_ids=[where["queue_id"]])
        yield self.send("DELETE /annotation_queues/{queue_id}", params=body, **where)

    def links(self) -> Iterator[Answer]:
        """The registry, where rows came from, and addresses of files."""
        target = {"portfolio_name": "p", "entity_name": self.entity, "project_name": "wandb-registry-models"}
        model = self.versions["models"]
        ref = f"weave:///{self.project}/object/{model['object_id']}:{model['digest']}"
        yield self.send("POST /link_to_registry", {"ref": ref, "target": target, "aliases": ["prod"]})
        data = self.versions["datasets"]
        source = {"source_kind": "call", "source_id": self.prediction, "source_trace_id": self.eval_run}
        dataset = {"dataset_object_id": data["object_id"], "dataset_digest": data["digest"]}
        links = [{"row_digest": "r", "sources": [source], "link_metadata": {"a": 1}}]
        linked = self.post("/dataset_sources/link", **dataset, links=links, include_created_status=True)
        yield linked
        yield self.post("/dataset_sources/query", dataset_object_id=data["object_id"])
        yield self.post("/dataset_sources/source_datasets_query", sources=[source])
        yield self.post("/dataset_sources/link_delete", link_ids=[linked.values[0]["entries"][0]["link_id"]])
        form = {"project_id": self.project}
        file = self.client.post("/file/create", data=form, files={"file": ("f", b"content")}).json()
        yield self.post("/files/resolve_url", uris=[file["digest"]])

    def completions(self) -> Iterator[Answer]:
        """Models that answer, and those of others."""
        inputs = {"model": "heddle-tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        yield self.post("/completions/create", inputs=inputs)
        yield self.post("/completions/create_stream", inputs=inputs)
        yield self.post("/image/create", inputs={"model": "nobody", "prompt": "a cat"})
        runtime = {"base_url": "http://127.0.0.1:9/v1", "runtime_ids": [{"id": "m"}], "headers": {"x-a": "b"}}
        yield self.send(f"PUT {V2}/runtimes/{{runtime_name}}", runtime, runtime_name="box")

    def information(self) -> Iterator[Answer]:
        """Lists of models."""
        for path in ("catalog", "analysis/artificialanalysis", "router/openrouter", "modelsdev"):
            yield self.send(f"GET /inference/{path}/models")
        yield self.send("GET /inference/nvidia/v2/hardware", params={"model": "heddle-tiny"}, headers=BEARER)

    def settings(self) -> Iterator[Answer]:
        """What SDKs ask at their start."""
        yield self.post("/project/ingest_sampling_settings/read")
        yield self.send("GET /project/sensitive_data_settings", params={"project_id": self.project})
        yield self.send("POST /graphql", {"query": "query { viewer { username } }", "variables": {}})

    def deletions(self) -> Iterator[Answer]:
        """What takes things away comes last."""
        yield self.send(f"DELETE {V2}/scores", params={"score_ids": [self.score]})
        yield self.send(f"DELETE {V2}/predictions", params={"prediction_ids": [self.prediction]})
        yield self.send(f"DELETE {V2}/evaluation_runs", params={"evaluation_run_ids": [self.eval_run]})
        for name, made in self.versions.items():
            where = {"object_id": made["object_id"], "params": {"digests": [made["digest"]]}}
            yield self.send(f"DELETE {V2}/{name}/{{object_id}}", **where)

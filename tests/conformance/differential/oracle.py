"""The oracle: the in-memory trace server of `weave` 0.53.0 behind its adapter, one JSON request and answer per line.

Run with the interpreter of an environment that holds `weave==0.53.0`; nothing here imports heddle. The first argument
is the file of the package `emoji`, a second one a folder with the packages `clickhouse_connect` and `sqlparse`.
A request is `{"verb", "path", "body"}` and perhaps the `user` who asks;
`{"verb": "PROJECT", "body": {"external", "internal"}}` names a project.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

USER = "local"


# Storage back ends and services that the in-memory server imports but never calls, and the provider map that the wheel
# lacks; `emoji` is real, found where the first argument says.
ABSENT = (
    "azure",
    "boto3",
    "botocore",
    "clickhouse_connect",
    "confluent_kafka",
    "ddtrace",
    "google.auth",
    "google.cloud",
)
ABSENT += ("google.api_core", "google.oauth2", "litellm", "openinference", "redis", "sqlparse")
ABSENT += ("weave.scorers", "weave.trace_server.model_providers")
if len(sys.argv) > 2:
    ABSENT = tuple(name for name in ABSENT if name not in ("clickhouse_connect", "sqlparse"))
    sys.path.append(sys.argv[2])


class StubClass(type):
    """The type of an absent class, which has whatever attribute is asked for, a class again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StubClass(name, (Absent,), {})


class Absent(Exception, metaclass=StubClass):
    """The base of absent classes: takes any arguments, and decorates without effect."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments)

    def __call__(self, function: Any) -> Any:
        return function


class Stub(types.ModuleType):
    """A module in which every public name is an exception class."""

    VERTEX_PROVIDER_NAMES = ()
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, StubClass(name, (Absent,), {}))
        return getattr(self, name)


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for every module of `ABSENT`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def load_package(name: str, file: str) -> None:
    """Import one package from a folder that is not on the path."""
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(Path(file).parent)])
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


sys.meta_path.insert(0, StubFinder())
load_package("emoji", sys.argv[1])
sys.path.insert(0, str(Path(__file__).parent))

import deviations  # type: ignore[import-not-found]  # noqa: E402
from pydantic import BaseModel, ValidationError  # noqa: E402
from weave.trace_server import in_memory_trace_server as memory  # noqa: E402
from weave.trace_server import service_interface  # noqa: E402
from weave.trace_server import trace_server_interface as tsi  # noqa: E402
from weave.trace_server.errors import handle_server_exception  # noqa: E402
from weave.trace_server.external_to_internal_trace_server_adapter import (  # noqa: E402
    ExternalTraceServer,
    IdConverter,
)


class Projects(IdConverter):
    """External to internal ids as heddle chose them, so that digests over refs agree."""

    def __init__(self) -> None:
        self.internal: dict[str, str] = {}
        self.external: dict[str, str] = {}

    def add(self, external: str, internal: str) -> None:
        """Make the project known."""
        self.internal[external] = internal
        self.external[internal] = external

    def ext_to_int_project_id(self, project_id: str) -> str:
        if project_id not in self.internal:
            self.add(project_id, "p" + project_id.encode().hex())
        return self.internal[project_id]

    def int_to_ext_project_id(self, project_id: str) -> str | None:
        return self.external.get(project_id)

    def ext_to_int_run_id(self, run_id: str) -> str:
        project, _, run = run_id.rpartition("/")
        return f"{self.ext_to_int_project_id(project)}:{run}"

    def int_to_ext_run_id(self, run_id: str) -> str:
        project, _, run = run_id.partition(":")
        return f"{self.external[project]}/{run}"

    def ext_to_int_user_id(self, user_id: str) -> str:
        return user_id

    def int_to_ext_user_id(self, user_id: str) -> str:
        return user_id


# path -> (method of the server, request model, answer is a stream of lines)
ROUTES: dict[str, tuple[str, type[BaseModel], bool]] = {
    "/call/start": ("call_start", tsi.CallStartReq, False),
    "/call/end": ("call_end", tsi.CallEndReq, False),
    "/call/upsert_batch": ("call_start_batch", tsi.CallCreateBatchReq, False),
    "/call/read": ("call_read", tsi.CallReadReq, False),
    "/call/update": ("call_update", tsi.CallUpdateReq, False),
    "/calls/delete": ("calls_delete", tsi.CallsDeleteReq, False),
    "/calls/query_stats": ("calls_query_stats", tsi.CallsQueryStatsReq, False),
    "/calls/stats": ("call_stats", tsi.CallStatsReq, False),
    "/calls/stream_query": ("calls_query_stream", tsi.CallsQueryReq, True),
    "/calls/usage": ("calls_usage", tsi.CallsUsageReq, False),
    "/trace/usage": ("trace_usage", tsi.TraceUsageReq, False),
    "/cost/create": ("cost_create", tsi.CostCreateReq, False),
    "/cost/purge": ("cost_purge", tsi.CostPurgeReq, False),
    "/cost/query": ("cost_query", tsi.CostQueryReq, False),
    "/feedback/create": ("feedback_create", tsi.FeedbackCreateReq, False),
    "/feedback/batch/create": ("feedback_create_batch", tsi.FeedbackCreateBatchReq, False),
    "/feedback/query": ("feedback_query", tsi.FeedbackQueryReq, False),
    "/feedback/purge": ("feedback_purge", tsi.FeedbackPurgeReq, False),
    "/feedback/replace": ("feedback_replace", tsi.FeedbackReplaceReq, False),
    "/feedback/stats": ("feedback_stats", tsi.FeedbackStatsReq, False),
    "/feedback/aggregate": ("feedback_aggregate", tsi.FeedbackAggregateReq, False),
    "/feedback/payload_schema": ("feedback_payload_schema", tsi.FeedbackPayloadSchemaReq, False),
    "/obj/create": ("obj_create", tsi.ObjCreateReq, False),
    "/obj/read": ("obj_read", tsi.ObjReadReq, False),
    "/obj/delete": ("obj_delete", tsi.ObjDeleteReq, False),
    "/objs/query": ("objs_query", tsi.ObjQueryReq, False),
    "/aliases": ("aliases_list", tsi.AliasesListReq, False),
    "/tags": ("tags_list", tsi.TagsListReq, False),
    "/refs/read_batch": ("refs_read_batch", tsi.RefsReadBatchReq, False),
    "/table/create": ("table_create", tsi.TableCreateReq, False),
    "/table/create_from_digests": ("table_create_from_digests", tsi.TableCreateFromDigestsReq, False),
    "/table/update": ("table_update", tsi.TableUpdateReq, False),
    "/table/query": ("table_query", tsi.TableQueryReq, False),
    "/table/query_stats": ("table_query_stats", tsi.TableQueryStatsReq, False),
    "/table/query_stats_batch": ("table_query_stats_batch", tsi.TableQueryStatsBatchReq, False),
    "/threads/stream_query": ("threads_query_stream", tsi.ThreadsQueryReq, True),
    "/annotation_queues": ("annotation_queue_create", tsi.AnnotationQueueCreateReq, False),
    "/annotation_queues/query": ("annotation_queues_query_stream", tsi.AnnotationQueuesQueryReq, True),
    "/annotation_queues/stats": ("annotation_queues_stats", tsi.AnnotationQueuesStatsReq, False),
    "/service/projects_info": ("projects_info", service_interface.ProjectsInfoReq, False),
}
# pattern -> (method, request model); named groups become body keys.
PATTERNS: list[tuple[str, str, str, type[BaseModel]]] = [
    ("PUT", r"/objs/(?P<object_id>[^/]+)/aliases", "obj_set_aliases", tsi.ObjSetAliasesReq),
    ("POST", r"/objs/(?P<object_id>[^/]+)/aliases/remove", "obj_remove_aliases", tsi.ObjRemoveAliasesReq),
    ("PUT", r"/objs/(?P<object_id>[^/]+)/versions/(?P<digest>[^/]+)/tags", "obj_add_tags", tsi.ObjAddTagsReq),
    (
        "POST",
        r"/objs/(?P<object_id>[^/]+)/versions/(?P<digest>[^/]+)/tags/remove",
        "obj_remove_tags",
        tsi.ObjRemoveTagsReq,
    ),
    ("POST", r"/v2/[^/]+/[^/]+/calls/complete", "calls_complete", tsi.CallsUpsertCompleteReq),
    ("POST", r"/v2/[^/]+/[^/]+/call/start", "call_start_v2", tsi.CallStartV2Req),
    ("POST", r"/v2/[^/]+/[^/]+/call/end", "call_end_v2", tsi.CallEndV2Req),
    ("POST", r"/v2/[^/]+/[^/]+/eval_results/query", "eval_results_query", tsi.EvalResultsQueryReq),
    ("GET", r"/annotation_queues/(?P<queue_id>[^/]+)", "annotation_queue_read", tsi.AnnotationQueueReadReq),
    ("PUT", r"/annotation_queues/(?P<queue_id>[^/]+)", "annotation_queue_update", tsi.AnnotationQueueUpdateReq),
    ("DELETE", r"/annotation_queues/(?P<queue_id>[^/]+)", "annotation_queue_delete", tsi.AnnotationQueueDeleteReq),
    (
        "POST",
        r"/annotation_queues/(?P<queue_id>[^/]+)/items",
        "annotation_queue_add_calls",
        tsi.AnnotationQueueAddCallsReq,
    ),
    (
        "POST",
        r"/annotation_queues/(?P<queue_id>[^/]+)/items/query",
        "annotation_queue_items_query",
        tsi.AnnotationQueueItemsQueryReq,
    ),
    (
        "POST",
        r"/annotation_queues/(?P<queue_id>[^/]+)/items/(?P<item_id>[^/]+)/progress",
        "annotator_queue_items_progress_update",
        tsi.AnnotatorQueueItemsProgressUpdateReq,
    ),
]

# Family of /v2 -> the word in the names of its methods and request models, the key that names one resource.
FAMILIES = {
    "ops": ("op", "object_id"),
    "datasets": ("dataset", "object_id"),
    "models": ("model", "object_id"),
    "scorers": ("scorer", "object_id"),
    "evaluations": ("evaluation", "object_id"),
    "evaluation_runs": ("evaluation_run", "evaluation_run_id"),
    "predictions": ("prediction", "prediction_id"),
    "scores": ("score", "score_id"),
}
FAMILY = re.compile(
    r"/v2/[^/]+/[^/]+/(?P<family>[a-z_]+)(?:/(?P<id>[^/]+)(?:/versions/(?P<digest>[^/]+)|/(?P<finish>finish))?)?"
)


def find_family(verb: str, path: str, body: dict[str, Any]) -> tuple[str, type[BaseModel], bool, dict[str, Any]] | None:
    """Method, request model, whether it streams and the completed body of a /v2 route; None for other paths."""
    found = FAMILY.fullmatch(path)
    if found is None or found["family"] not in FAMILIES:
        return None
    word, key = FAMILIES[found["family"]]
    reading = "read" if found["id"] else "list"
    act = "finish" if found["finish"] else {"POST": "create", "GET": reading, "DELETE": "delete"}[verb]
    model = getattr(tsi, "".join(part.title() for part in f"{word}_{act}".split("_")) + "Req")
    named = {key: found["id"], "digest": found["digest"]}
    return f"{word}_{act}", model, act == "list", body | {name: value for name, value in named.items() if value}


class Oracle:
    """A server of the reference, answered as its HTTP service would."""

    def __init__(self, server: Any, projects: Projects | None = None) -> None:
        self.projects = projects or Projects()
        self.server = ExternalTraceServer(server, self.projects)

    def answer(self, verb: str, path: str, body: dict[str, Any], user: str = USER) -> tuple[int, Any]:
        """Status and JSON body of one request of a user."""
        if verb == "PROJECT":
            self.projects.add(body["external"], body["internal"])
            return 200, {}
        name, model, stream, body = find_route(verb, path, body)
        try:
            request = model.model_validate_json(json.dumps(with_user(body, model, user)))
        except ValidationError as problem:
            return 422, {"detail": [{"loc": ["body", *item["loc"]]} for item in problem.errors()]}
        try:
            result = self.call(name, request, stream)
        except Exception as problem:
            error = handle_server_exception(problem)
            if error.status_code == 500:
                error.message["debug"] = repr(problem)
            return error.status_code, error.message
        return 200, result

    def call(self, name: str, request: BaseModel, stream: bool) -> Any:
        """The JSON value of a method's answer, a list for streams."""
        if isinstance(request, tsi.CallCreateBatchReq):
            return {"res": [self.upsert(item) for item in request.batch]}
        result = getattr(self.server, name)(request)
        if stream:
            return [row.model_dump(mode="json") for row in result]
        return result.model_dump(mode="json")

    def upsert(self, item: Any) -> Any:
        """One part of a legacy batch; the adapter has no batch method of its own."""
        method = self.server.call_start if item.mode == "start" else self.server.call_end
        return method(item.req).model_dump(mode="json")


def find_route(verb: str, path: str, body: dict[str, Any]) -> tuple[str, type[BaseModel], bool, dict[str, Any]]:
    """Method, request model, whether it streams, and the body completed from the path."""
    if path in ROUTES:
        return *ROUTES[path], body
    if (family := find_family(verb, path, body)) is not None:
        return family
    for pattern_verb, pattern, name, model in PATTERNS:
        found = re.fullmatch(pattern, path)
        if found and verb == pattern_verb:
            return name, model, False, body | found.groupdict()
    raise LookupError(f"no route {verb} {path}")


def with_user(body: Any, model: type[BaseModel] | None = None, user: str = USER) -> Any:
    """The body with the caller's id wherever the service sets one."""
    if model is not None and "wb_user_id" in model.model_fields:
        body = body | {"wb_user_id": user}
    if isinstance(body, dict):
        for key in ("start", "obj"):
            if isinstance(body.get(key), dict):
                body = body | {key: body[key] | {"wb_user_id": USER}}
        if isinstance(body.get("batch"), list):
            body = body | {"batch": [with_user_in_item(item) for item in body["batch"]]}
    return body


def with_user_in_item(item: Any) -> Any:
    """One batch element with the caller's id: a legacy part, a complete call or a feedback row."""
    if not isinstance(item, dict):
        return item
    if "mode" in item:
        return item | {"req": with_user(item.get("req"))}
    return item | {"wb_user_id": USER}


def serve(oracle: Oracle) -> None:
    """Answer standard input until it closes."""
    for line in sys.stdin:
        request = json.loads(line)
        user = request.get("user", USER)
        status, body = oracle.answer(request["verb"], request.get("path", ""), request.get("body", {}), user)
        sys.stdout.write(json.dumps({"status": status, "body": body}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    deviations.correct(memory)
    serve(Oracle(memory.InMemoryTraceServer()))

"""Which recorded requests wait for a later issue, and where heddle's answers differ from the recorded ones."""

import re
from dataclasses import dataclass
from typing import Any

from tests.conformance.replay_recording import Exchange

PENDING: list[tuple[str, str]] = []


def pending(exchange: Exchange) -> str | None:
    """The issue that brings the route of this exchange, or None when it is served already."""
    return next((issue for pattern, issue in PENDING if re.match(pattern, exchange.path)), None)


@dataclass(frozen=True)
class Deviation:
    """One place where an answer may differ from the recorded one.

    `key` is a regular expression on `METHOD path`, `scenario` one on the scenario, `place` one on the path in the
    answer (`objs.0.val`); `kind` is what `replay.differences` calls it.
    """

    key: str
    place: str
    kind: str
    reason: str
    scenario: str = ".*"

    def covers(self, exchange: Exchange, place: str, kind: str) -> bool:
        """True when this entry explains that difference."""
        return (
            self.kind == kind
            and re.fullmatch(self.key, exchange.key) is not None
            and re.fullmatch(self.scenario, exchange.scenario) is not None
            and re.fullmatch(self.place, place) is not None
        )


UNRECORDED = "the corpus is a part of what was recorded (contract/README.md 15); what else the account held shows here"
NEWER = "0.54.0 field that the recording's 0.53.0 reference lacks (trace-core.md 14)"
STAND_IN = "answered by the recorder, not by the service: it gave keys that the GraphQL query does not ask for"
ANOTHER_MODEL = "the recorder answered with a fixed text; heddle's model says its own, in its own number of tokens"
VLLM_KEYS = "keys of the interface (2.2) that the recorder's short answer left out"
SERVED_HERE = "the reference knew no model of that name; heddle serves one and answers with its completion"
QUEUE_PROJECT = "entity/project, as everywhere; the reference forgets to convert its internal id (trace-evals.md 1)"
UNROUTED = "the recorder had no such route (404, or 500 from a stub); heddle answers"
PLAYGROUND = (
    "the recording's one span is a completion of the playground, which heddle keeps as a call; heddle's spans are "
    "those that were exported, and a number that a span does not say is null"
)
RUNS_HERE = "the in-memory reference never ran the job, so it knows no call (trace-evals.md 6)"
NEW_FEEDBACK = r"result\.\d+\.(span_trace_id|scorer_trace_id|span_conversation_id)"
BY_NAME = "a page is by name, the newest first (trace-evals.md 2.1 [S]); the in-memory reference has it by creation"
WHOLE_REF = "the whole ref of the op, where the reference keeps its digest alone (trace-evals.md 2.3 [D])"
NAMELESS = "an object of an SDK without a name or source fails no list (trace-evals.md 2.3 and 2.5, BUG)"
OWN_TIMES = "runs are timed by the server that they are made on"

DEVIATIONS = [
    Deviation(r"POST /v2/\*/eval_results/query", r".*\.(total_cost|predict_total_cost)", "extra", NEWER),
    Deviation(r"POST /v2/\*/eval_results/query", r".*\.(model_latency_seconds|started_at)", "value", OWN_TIMES),
    Deviation("POST /evaluations/status", r"status\.code", "value", RUNS_HERE, scenario="llm-judge"),
    Deviation("POST /evaluations/status", r"status\.(error|completed_rows|total_rows)", "extra", RUNS_HERE,
              scenario="llm-judge"),
    Deviation("POST /calls/score", "", "status", "the in-memory reference has no queue; heddle has one",
              scenario="llm-judge"),
    Deviation("POST /calls/query_stats", "count", "value", UNRECORDED,
              scenario=r"ev\.get_eval_calls|annotation-spec|annotation-queues"),
    Deviation("POST /obj/read", r"obj\.version_index", "value", UNRECORDED, scenario="client-digests"),
    Deviation("POST /graphql", r"data\.project", "type", UNRECORDED, scenario="client-digests"),
    Deviation("POST /graphql", r"data\.viewer\.defaultEntity\.name", "value", UNRECORDED),
    Deviation("POST /graphql", r"data\.viewer\.(admin|apiKeys|id)", "lacks", STAND_IN),
    Deviation("POST /calls/query_stats", "total_storage_size_bytes", "type",
              "null unless it is asked for (trace-core.md 7); the in-memory reference says 0"),
    Deviation("POST /feedback/query", "total_count", "extra", NEWER),
    Deviation("POST /feedback/query", NEW_FEEDBACK, "extra", NEWER),
    Deviation("GET /server_info", "trace_server_version", "value", "every server names its own version"),
    Deviation("GET /server_info", "limits|settings|heddle_version", "extra", "heddle shows how it is set"),
    Deviation("POST /service/projects_info", r"0\.internal_project_id", "value",
              "every server chooses its own, as long as it holds no slash (trace-core.md 2.2)"),
    Deviation("POST /v1/chat/completions",
              r"|id|created|choices\.0\.(message\.content|finish_reason)|usage\.\w+", "value", ANOTHER_MODEL),
    Deviation("POST /v1/chat/completions",
              r"(choices\.0\.|choices\.0\.message\.|usage\.)?(annotations|audio|completion_tokens_details|function_call|"
              r"kv_transfer_params|logprobs|prompt_logprobs|prompt_token_ids|prompt_tokens_details|reasoning|refusal|"
              r"service_tier|stop_reason|system_fingerprint|token_ids|tool_calls)", "extra", VLLM_KEYS),
    Deviation(r"\w+ /annotation_queues.*", r"(queue|item|items\.\d+|\d+)\.project_id", "value", QUEUE_PROJECT),
    Deviation(r"POST /annotation_queues/.*/progress", r"item\.annotator_user_id", "value",
              "the name of the user; the reference shows its internal id (trace-evals.md 1)"),
    Deviation(r"POST /annotation_queues/.*/items/query", r"items\.[12]\.call_\w+", "value",
              "items of one request stay in its order; the reference has them by the random part of their ids"),
    Deviation("GET /v1/models", r"data\.0\.(created|owned_by)", "value", "every server names its own"),
    Deviation("GET /v1/models", r"data\.0\.(parent|max_model_len)", "extra", VLLM_KEYS),
    Deviation(r"GET /v2/\*/ops/Op/versions/\*", "code", "value", "every server has its own words in the placeholder"),
    Deviation(r"GET /v2/\*/ops", r"\d\.(object_id|digest|code)", "value", BY_NAME),
    Deviation(r"GET /v2/\*/datasets", r"0\.(object_id|digest|version_index|name|rows)", "value", BY_NAME),
    Deviation(r"POST /v2/\*/ops", "version_index", "value",
              "a deleted version that comes back keeps its number (trace-core.md 11); the in-memory one counts anew"),
    Deviation(r"GET /v2/\*/(scorers|evaluations)/.*", r"(score|evaluate|predict_and_score|summarize)_op", "value",
              WHOLE_REF),
    Deviation(r"GET /v2/\*/(scorers|models)", "", "status", NAMELESS),
    Deviation(r"GET /v2/\*/evaluation_runs.*", r"(0\.)?(started_at|finished_at|summary\.weave\.latency_ms)", "value",
              OWN_TIMES),
    Deviation(r"GET /v2/\*/evaluation_runs/.*", "", "status", UNRECORDED, scenario="eval-status"),
    Deviation(r"GET /v2/\*/predictions.*", r"(\d\.)?output", "type",
              "finishing a prediction keeps its output (trace-evals.md 3.2, BUG)"),
    Deviation(r"POST /v2/\*/scores", "", "status", "a scorer that is no ref is 400, not 500 (trace-evals.md 3.3 [D])"),
    Deviation("POST /completions/create", r"response\.error", "lacks", SERVED_HERE),
    Deviation("POST /completions/create", r"response\.\w+", "extra", SERVED_HERE),
    *(Deviation(f"POST /agents/{path}", "", "status", UNROUTED, scenario="agents-query")
      for path in ("query", "agent-versions/query", "traces/chat", "conversations/chat", "search",
                   "spans/custom-attrs/schema")),
    *(Deviation("POST /agents/spans/query", r"total_count|spans|spans\.0\..*", kind, PLAYGROUND, "agents-query")
      for kind in ("value", "length", "extra", "lacks", "type")),
]  # fmt: skip


def time_place(place: str) -> bool:
    """True for the places that hold a time which the server made."""
    return place.rsplit(".", 1)[-1] in ("created_at", "updated_at", "deleted_at")


def user_place(place: str) -> bool:
    """True for the places that name the caller."""
    return place.rsplit(".", 1)[-1] in ("wb_user_id", "created_by", "added_by", "username")


def describe(value: Any) -> str:
    """A short text of a value for a failure message."""
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."

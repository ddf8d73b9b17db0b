"""Which recorded requests wait for a later issue, and where heddle's answers differ from the recorded ones."""

import re
from dataclasses import dataclass
from typing import Any

from tests.conformance.replay_recording import Exchange

PENDING = [
    (r"/v2/[^/]+/[^/]+/(ops|datasets|scorers|evaluations|models|evaluation_runs|predictions|scores|eval_results)\b",
     "issue 5: evaluation families"),
    (r"/v2/[^/]+/[^/]+/runtimes/", "issue 5: custom runtimes"),
    (r"/annotation_queues\b", "issue 5: annotation queues"),
    (r"/(agents|otel)/", "issue 5: OpenTelemetry and agents"),
    (r"/(evaluations/|calls/score$)", "issue 5: server-side evaluation"),
    (r"/link_to_registry$", "issue 5: registry"),
]  # fmt: skip


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
NEW_FEEDBACK = r"result\.\d+\.(span_trace_id|scorer_trace_id|span_conversation_id)"

DEVIATIONS = [
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
    Deviation("GET /v1/models", r"data\.0\.(created|owned_by)", "value", "every server names its own"),
    Deviation("GET /v1/models", r"data\.0\.(parent|max_model_len)", "extra", VLLM_KEYS),
    Deviation("POST /completions/create", r"response\.error", "lacks", SERVED_HERE),
    Deviation("POST /completions/create", r"response\.\w+", "extra", SERVED_HERE),
]  # fmt: skip


def time_place(place: str) -> bool:
    """True for the places that hold a time which the server made."""
    return place.rsplit(".", 1)[-1] in ("created_at", "updated_at", "deleted_at")


def user_place(place: str) -> bool:
    """True for the places that name the caller."""
    return place.rsplit(".", 1)[-1] in ("wb_user_id", "created_by", "username")


def describe(value: Any) -> str:
    """A short text of a value for a failure message."""
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."

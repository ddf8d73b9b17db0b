"""Addresses of related interfaces that are not served here, and what serves the purpose instead."""

_CHAT = "POST /v1/chat/completions"
_NEAR = "compare vectors of POST /v1/embeddings"
_OWN_STATE = "POST /v1/responses keeps conversations (store, previous_response_id)"
_TEXT_ONLY = f"the served models read and write text ({_CHAT})"
_INSTEAD = {
    "assistants": _OWN_STATE,
    "threads": _OWN_STATE,
    "conversations": _OWN_STATE,
    "audio": _TEXT_ONLY,
    "realtime": _TEXT_ONLY,
    "videos": _TEXT_ONLY,
    "images": "POST /image/create asks a provider of the settings for an image",
    "moderations": f"{_CHAT} with response_format lets a model judge a text, POST /calls/score a scorer",
    "batches": f"send the requests to {_CHAT} at the same time; the engine answers them together",
    "messages": "send the requests to POST /v1/messages at the same time; the engine answers them together",
    "files": "POST /file/create keeps a file of a project, POST /v1/preview/sft-training-jobs trains on one",
    "uploads": "POST /file/create keeps a file of a project",
    "fine_tuning": "POST /v1/preview/sft-training-jobs trains a model, POST /v1/preview/training-jobs with rewards",
    "evals": "evaluations are /v2/{entity}/{project}/evaluation_runs and the SDK's weave.Evaluation",
    "vector_stores": "POST /v1/embeddings makes vectors; they are kept elsewhere",
    "rerank": _NEAR,
    "score": _NEAR,
    "classify": f"{_CHAT} with structured_outputs.choice names one of several classes",
    "pooling": "POST /v1/embeddings gives pooled states",
    "edits": _CHAT,
    "engines": "GET /v1/models lists the models; the field `model` names one",
    "complete": "POST /v1/messages",
}
"""By the first part of the path after `/v1`."""
_OF_V1 = frozenset(("chat", "completions", "embeddings", "messages", "models", "responses"))
"""First parts of paths that are asked for by clients whose address lacks `/v1`."""
_WITHOUT_VERSION = frozenset(("classify", "pooling", "rerank", "score"))
"""Those that other servers offer without `/v1` too."""


def describe_instead(path: str) -> str | None:
    """What to use instead of an address that does not exist; None where nobody could have expected one."""
    parts = [part for part in path.split("/") if part]
    if parts and parts[0] in _OF_V1:
        return "the address that the client is given must end in /v1"
    if len(parts) > 1 and parts[0] == "v1" and parts[1] == "v1":
        return "the address that the client is given must not end in /v1"
    if len(parts) > 1 and parts[0] == "v1":
        return _INSTEAD.get(parts[1])
    return _INSTEAD[parts[0]] if parts and parts[0] in _WITHOUT_VERSION else None

"""The list of models as clients of Anthropic read it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from heddle.errors import InvalidRequest
from heddle.wire.jsontypes import Json

ANTHROPIC = "anthropic-version"
"""The header by which such clients are known."""
MOST_MODELS = 1000
_USUAL = 20


def describe_model(entry: Json) -> Json:
    """One entry of `/v1/models` in their shape."""
    created = datetime.fromtimestamp(entry["created"], UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": entry["max_model_len"],
        "max_tokens": entry["max_model_len"],
    }


def page_of(entries: Sequence[Json], query: Mapping[str, str]) -> Json:
    """The page that `limit`, `after_id` and `before_id` ask for; raises InvalidRequest for what they cannot be."""
    limit = _read_limit(query.get("limit"))
    ids = [entry["id"] for entry in entries]
    after, before = (_find(ids, query.get(name), name) for name in ("after_id", "before_id"))
    begin = 0 if after is None else after + 1
    rest = entries[begin:before]
    shown = rest[-limit:] if before is not None and after is None else rest[:limit]
    return {
        "data": [describe_model(entry) for entry in shown],
        "has_more": len(rest) > len(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def _read_limit(given: str | None) -> int:
    if given is None:
        return _USUAL
    if not (given.isascii() and given.isdigit() and len(given) <= 4 and 1 <= int(given) <= MOST_MODELS):
        raise InvalidRequest(f"limit must be a whole number from 1 to {MOST_MODELS}", param="limit")
    return int(given)


def _find(ids: Sequence[str], given: str | None, name: str) -> int | None:
    if given is None:
        return None
    if given not in ids:
        raise InvalidRequest(f"{name}: there is no model {given[:200]!r} in the list", param=name)
    return ids.index(given)

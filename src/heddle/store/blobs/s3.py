"""How the client of S3 is set up, so that an outage is told within seconds."""

from typing import Any

TRIES = 1
"""Of s3fs, over the two of its client: whoever waits can try again."""
_CONFIG: dict[str, Any] = {
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 3,
    "read_timeout": 10,
    "max_pool_connections": 64,
}


def options() -> dict[str, Any]:
    """What s3fs is made with. Raises ImportError without its client."""
    from aiobotocore.session import get_session

    session = get_session()
    session.get_component("event_emitter").register_last("before-call.s3", _send_at_once)
    return {"session": session, "config_kwargs": _CONFIG}


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Ask for no "100 Continue": the client waits for it without an end, and it costs a round trip."""
    params["headers"].pop("Expect", None)

"""What the process needs to know of the server."""

import json
import socket
from dataclasses import asdict, dataclass

from heddle.settings import Settings

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a server is reached that listens on every address."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Where to listen, where the server is, and the limits of settings; sizes in bytes, times in seconds."""

    address: str
    server: str
    """Of HTTP, without a path."""
    needs_key: bool
    max_message: int
    max_unfinished: int
    max_header: int
    max_connections: int
    header_timeout: float
    body_timeout: float

    @classmethod
    def of(cls, settings: Settings, listener: socket.socket) -> "Configuration":
        """The configuration for the server that listens there."""
        host, port = listener.getsockname()[:2]
        return cls(
            address=f"{_bracketed(settings.host)}:{settings.otlp_grpc_port}",
            server=f"http://{_bracketed(_LOOPBACK.get(host, host))}:{port}",
            needs_key=settings.needs_key,
            max_message=settings.max_trace_body,
            max_unfinished=settings.max_unfinished_bytes,
            max_header=settings.max_header_bytes,
            max_connections=settings.max_connections,
            header_timeout=settings.header_timeout,
            body_timeout=settings.body_timeout,
        )

    def dump(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "Configuration":
        """The configuration of a JSON text."""
        return cls(**json.loads(text))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

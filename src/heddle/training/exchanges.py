"""`exchanges` of trajectories: requests to models and their responses, as openpipe-art 0.5.23 captures them."""

import re

from pydantic_core import PydanticCustomError

from heddle.wire.jsontypes import Json

PROTOCOLS = ("chat_completions", "completions", "responses", "messages")
_ADDRESS = re.compile(r"(?:[a-z-]+:/{2,3})?([^/:@]+/[^/:@]+/[^/:@]+)(?::(?:step)?\d+|:latest|@\d+)?")
"""Of a trainable model, in each form that requests may name it by."""


def choose_exchanges(exchanges: Json) -> list[Json]:
    """The chat completions with the one trainable model, by time; a base model or another server's is none.

    Raises PydanticCustomError where there are several such models, or one is asked by another protocol.
    """
    found: dict[str, dict[str, list[Json]]] = {}
    for protocol in PROTOCOLS:
        for exchange in exchanges.get(protocol) or ():
            request = exchange.get("request") if isinstance(exchange, dict) else None
            model = request.get("model") if isinstance(request, dict) else None
            if isinstance(model, str) and (named := _ADDRESS.fullmatch(model)):
                found.setdefault(named[1], {}).setdefault(protocol, []).append(exchange)
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise PydanticCustomError(
            "value_error",
            "Exchanges with one trainable model can be trained, not with {names}; keep those of one",
            {"names": names},
        )
    by_protocol = next(iter(found.values()), {})
    chats = by_protocol.pop("chat_completions", [])
    if by_protocol:
        raise PydanticCustomError(
            "value_error",
            "Only chat completions of a trainable model can be trained, not {protocols}",
            {"protocols": ", ".join(by_protocol)},
        )
    return sorted(chats, key=lambda exchange: str(exchange.get("start_time") or ""))

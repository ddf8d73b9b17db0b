"""What interfaces for completions have in common: events, and refusals in the client's own names."""

from typing import Any, ClassVar

import pytest

from heddle.errors import InvalidRequest
from heddle.inference.chat.request import ChatRequest
from heddle.inference.chat.response import CHAT, ChatAnswer
from heddle.inference.chat.wire import ParsedRequest, Wire


class OtherWire(Wire):
    op_name = "heddle.other"
    id_prefix = "other-"
    field_names: ClassVar[dict[str, str]] = {"max_tokens": "most", "messages": "said"}

    def read(self, body: Any) -> ParsedRequest:
        raise NotImplementedError


def parsed(*places: str) -> ParsedRequest:
    return ParsedRequest(ChatRequest(messages=[]), ChatAnswer, places=places)


@pytest.mark.parametrize(
    ("param", "shown"),
    [
        ("max_tokens", "most"),
        ("messages", "said"),
        ("messages.1.content.0", "said.4.content.0"),
        ("messages.0", "before"),
        ("temperature", "temperature"),
        (None, None),
    ],
)
def test_refusals_name_the_client_s_own_fields(param: str | None, shown: str | None) -> None:
    error = InvalidRequest(f"{param}: min_tokens is above max_tokens=3", param=param)
    renamed = OtherWire().rename(error, parsed("before", "said.4"))
    assert renamed.param == shown
    assert renamed.reason == (error.reason if param is None else f"{shown}: min_tokens is above most=3")


def test_a_refusal_of_chat_completions_stays_as_it_is() -> None:
    error = InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    assert CHAT.rename(error, parsed()) is error


def test_events_are_named_by_their_type_and_chunks_are_not() -> None:
    events = [{"type": "begun"}, {"type": "ended", "text": "é\n"}]
    assert OtherWire().encode(events).decode() == (
        'event: begun\ndata: {"type":"begun"}\n\nevent: ended\ndata: {"type":"ended","text":"é\\n"}\n\n'
    )
    assert CHAT.encode([{"id": "1"}]) == b'data: {"id":"1"}\n\n'


def test_only_the_fields_that_a_request_has_are_handed_on() -> None:
    request = ChatRequest(messages=[], seed=3, top_k=None, model="m")
    assert request.sampling_fields() == {"seed": 3, "top_k": None}

"""What a client that begins with HTTP/2 is told, however its bytes come."""

import pytest

from heddle.http.connections import PREFACE, Http2Refusal

SETTINGS = bytes.fromhex("000000040000000000")
PING = bytes.fromhex("000008060000000000") + b"12345678"
HEADERS = bytes.fromhex("000002010500000003") + b"\x82\x84"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_first_request_is_answered(size: int) -> None:
    refusal, sent = Http2Refusal("x" * 300), b""
    data = PREFACE + SETTINGS + PING + HEADERS + b"rest"
    for start in range(0, len(data), size):
        assert not refusal.is_done or start + 4 >= len(data) - size
        sent += refusal.feed(data[start : start + size]) if not refusal.is_done else b""
    assert refusal.is_done
    answers = [SETTINGS, bytes.fromhex("000000040100000000"), bytes.fromhex("000008060100000000") + b"12345678"]
    assert sent.startswith(b"".join(answers))
    assert b"\x0bgrpc-status\x0212" in sent and b"\x0cgrpc-message\x7f\xad\x01" + b"x" * 300 in sent
    assert sent.endswith(bytes.fromhex("00000807000000000000000003") + bytes(4))


def test_what_is_too_long_ends_the_connection() -> None:
    for data in (PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x00", PREFACE + PING * 5000):
        refusal = Http2Refusal("no")
        refusal.feed(data)
        assert refusal.is_done

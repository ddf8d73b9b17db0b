"""Reasoning as opaque text comes back as it was, together no more than may be, and nothing else is taken for it."""

import base64
import zlib

import pytest

from heddle.errors import InvalidRequest
from heddle.inference.prompt.opaque_reasoning import ReasoningDecoder, encode_reasoning


def test_it_comes_back() -> None:
    text = "thoughts \ud800 é" * 1000
    opaque = encode_reasoning(text)
    assert ReasoningDecoder(1 << 20).decode(opaque, "x") == text and len(opaque) < len(text)


def test_what_earlier_versions_wrote_as_a_signature_is_read() -> None:
    opaque = "heddle." + base64.urlsafe_b64encode(zlib.compress(b"so")).decode()
    assert ReasoningDecoder(2).decode(opaque, "x") == "so"


def test_all_of_a_request_share_the_bytes() -> None:
    decoder, half = ReasoningDecoder(1 << 20), encode_reasoning("a" * (1 << 19))
    assert [len(decoder.decode(half, "x") or "") for _ in range(2)] == [1 << 19] * 2
    with pytest.raises(InvalidRequest, match=r"input\.2: opaque reasoning can have at most 1048576 bytes per request"):
        decoder.decode(encode_reasoning("b"), "input.2")


def test_what_was_not_made_here_is_none() -> None:
    cut = encode_reasoning("so it is")[:-4]
    for opaque in ("", "other", "heddle.%", "heddle.abcd", "heddle.", "heddle1.", "heddle1.\ud800", cut):
        assert ReasoningDecoder(99).decode(opaque, "x") is None, opaque

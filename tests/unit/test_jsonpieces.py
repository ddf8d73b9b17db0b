"""Large JSON read piece by piece gives what it gives in one go, and is wrong where that is wrong."""

import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from heddle.wire import jsontext

TEXTS = ("", "a", 'q"uote', "back\\slash\\", "com,ma", "[{", "]}", "né\u2028", '\\"', "a" * 300)
STRAY = (b",", b"[", b"]", b"{", b"}", b'"', b":", b"", b"1", b"\\")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsontext, "PIECE_BYTES", 7)


def value_of(random: random.Random, depth: int) -> Any:
    """Anything that JSON can say."""
    kind = random.randrange(8 if depth else 4)
    if kind < 2:
        return random.choice(TEXTS)
    if kind < 4:
        return random.choice((None, True, 0, -1.5, 12345678901, 1e300))
    if kind < 6:
        return [value_of(random, depth - 1) for _ in range(random.randrange(9))]
    return {random.choice(TEXTS) + str(key): value_of(random, depth - 1) for key in range(random.randrange(9))}


def test_pieces_make_the_whole() -> None:
    drawn = random.Random(7)
    for number in range(150):
        value = [value_of(drawn, 5) for _ in range(6)]
        data = json.dumps(value, ensure_ascii=bool(number % 2), indent=number % 3 or None).encode()
        assert jsontext.loads_in_pieces(data, orjson.loads) == value
        assert jsontext.loads_in_pieces(data, json.loads) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[1,2,3,4,5],"b":2,"a":[1,2,{"c":3,"d":[4,5,6]},7],"e":1}',
        '{"a":{"b":1,"c":2},"x":[1,2,3,4,5,6,7],"a":{"d":3,"e":[1,1,1,1,1,1,1]},"":0,"":[1,2,3,4,5]}',
    ],
)
def test_of_a_repeated_key_the_last_one_counts(text: str) -> None:
    assert jsontext.loads_in_pieces(text.encode(), orjson.loads) == json.loads(text)


def test_what_is_no_json_as_a_whole_is_none_in_pieces() -> None:
    drawn = random.Random(8)
    for _ in range(300):
        data = bytearray(json.dumps([value_of(drawn, 3) for _ in range(5)]).encode())
        for _ in range(drawn.randrange(1, 3)):
            at = drawn.randrange(len(data))
            data[at : at + drawn.randrange(2)] = drawn.choice(STRAY)
        assert read(jsontext.loads_in_pieces, bytes(data)) == read(lambda text, parse: parse(text), bytes(data))


def read(loads: Callable[..., Any], text: bytes) -> Any:
    """The value of a text, None where it is no JSON."""
    try:
        return loads(text, orjson.loads)
    except (ValueError, jsontext.PieceInvalid):
        return None


@pytest.mark.parametrize(
    "text", ["", "[1,", "[1,]", "[,1]", "1,2", "[1],[2]", '{"a":1,}', "[1,2,3,4,5,6,7,8,", "[1}", "]"]
)
def test_a_comma_too_many_stays_an_error(text: str) -> None:
    with pytest.raises(jsontext.PieceInvalid):
        jsontext.loads_in_pieces(text.encode(), orjson.loads)


def test_the_place_of_an_error_is_the_one_in_the_whole() -> None:
    text = "[" + "1," * 50 + "oops]"
    with pytest.raises(jsontext.PieceInvalid) as caught:
        jsontext.loads_in_pieces(text.encode(), json.loads)
    assert isinstance(caught.value.error, json.JSONDecodeError)
    assert caught.value.error.pos + caught.value.offset == text.index("oops")


def test_nodes_are_counted_outside_strings() -> None:
    assert jsontext.count_nodes(b'{"a,b,[":"x,\\",y{","c":[1,2,3],"d":{}}') == 1 + 5 + 2 + 1 - 1
    assert jsontext.count_nodes(b'"' + b"," * 1000 + b'"') == 1
    assert jsontext.may_exceed(b"[" + b"1," * 1000 + b"1]", 1000)
    assert not jsontext.may_exceed(b"[" + b"1," * 900 + b"1]", 1000)

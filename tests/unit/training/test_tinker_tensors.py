"""Tensors of Tinker's requests whose shape lies: refused by name, whatever the numbers are."""

import numpy as np
import pytest

from heddle.training.tinker import messages
from heddle.training.tinker.messages import read_data_request
from heddle.wire.otlp import Malformed, write


def longs(*numbers: int) -> bytes:
    """Numbers as int64."""
    return np.array(numbers, "<i8").tobytes()


def request(*tensors: bytes) -> bytes:
    """A request of one token with these as its inputs."""
    inputs = b"".join(write(2, write(1, f"input{place}") + write(2, one)) for place, one in enumerate(tensors))
    return write(1, "run") + write(2, 1) + write(3, inputs) + write(4, "cross_entropy")


def dense(values: bytes, *shape: int) -> bytes:
    """A tensor of int64."""
    return write(1, values) + write(3, 2) + b"".join(write(4, size) for size in shape)


def sparse(values: bytes, rows: bytes, columns: bytes, *shape: int) -> bytes:
    """The same with its rows compressed."""
    return write(2, write(1, values) + write(2, rows) + write(3, columns)) + dense(b"", *shape)


SHAPES = {
    "too many cells": dense(b"", 2**32, 2**32),
    "a product of zero": dense(b"", 2**63, 2),
    "a long side": dense(b"", 0, 2**62),
    "the longest side": dense(b"", 0, 2**64 - 1),
    "three sides": dense(longs(3), 1, 1, 1),
    "a side that is cut": dense(longs(3)) + b"\x22\x01\x80",
    "a long sparse side": sparse(b"", longs(0), b"", 0, 2**62),
    "the longest sparse side": sparse(b"", longs(0), b"", 0, 2**64 - 1),
    "one sparse side": sparse(longs(3), longs(0, 1), longs(0), 1),
}


@pytest.mark.parametrize("tensor", SHAPES.values(), ids=SHAPES)
def test_a_shape_that_cannot_be_is_named(tensor: bytes) -> None:
    with pytest.raises(Malformed, match=r"data\[0\]\.input0: "):
        read_data_request(request(tensor))


def test_sparse_tensors_of_a_request_share_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred bytes stood for half a gigabyte, as often as they were sent."""
    monkeypatch.setattr(messages, "MOST_CELLS", 100)
    one = sparse(longs(3), longs(0, 1), longs(39), 1, 40)
    (datum,) = read_data_request(request(one, one)).data
    assert datum.inputs["input1"].tolist() == [[0] * 39 + [3]]
    with pytest.raises(Malformed, match=r"input2: the sparse tensors of the request have more than 100 cells"):
        read_data_request(request(one, one, one))

"""Lines of a stream of bytes."""

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from heddle.wire.jsontext import LineSplitter, split_lines

parts = st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"a\nb", b"\r", "\u2028".encode()]))


@given(parts)
def test_how_a_stream_is_cut_does_not_matter(parts: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for part in parts for line in splitter.feed(part)]
    assert [*lines, splitter.end()] == b"".join(parts).split(b"\n")


def test_the_last_line_needs_no_line_feed() -> None:
    async def stream() -> AsyncIterator[bytes]:
        for part in (b"a", b"b\n\nc\n", b"d"):
            yield part

    async def lines() -> list[bytes]:
        return [line async for line in split_lines(stream())]

    assert asyncio.run(lines()) == [b"ab", b"", b"c", b"d"]

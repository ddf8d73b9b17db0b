"""Lines of a stream of bytes."""

from collections.abc import AsyncGenerator, AsyncIterable


class LineSplitter:
    """Cuts at line feeds only: JSON texts may hold other characters that `str.splitlines` takes for ends of lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.pending = 0
        """Bytes behind the last line feed."""

    def feed(self, part: bytes) -> list[bytes]:
        """The lines that are complete with this part."""
        first, *others = part.split(b"\n")
        self._rest.append(first)
        self.pending += len(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others[:-1]]
        self._rest = others[-1:]
        self.pending = len(others[-1])
        return lines

    def end(self) -> bytes:
        """What stands behind the last line feed."""
        return b"".join(self._rest)


async def split_lines(parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The lines of a stream, and what stands behind the last line feed."""
    splitter = LineSplitter()
    async for part in parts:
        for line in splitter.feed(part):
            yield line
    if rest := splitter.end():
        yield rest

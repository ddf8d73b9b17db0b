"""The body of a request as it arrives: how fast it must come, how much memory unfinished bodies may take, and its
encoding (gzip, deflate or zstd) undone a part at a time."""

import asyncio
import io
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import zstandard
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from heddle.errors import Busy, HeddleError, InvalidRequest, RequestTimeout, TooLarge, UnsupportedMedia
from heddle.settings import Settings

INLINE_BYTES = 256 * 1024
"""More than this is decoded in a thread."""
_decoding = ThreadPoolExecutor(1, "heddle-decoding")
"""One large body after the other is decoded: each may grow to its limit before it turns out to be too large."""
_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 5.0
"""After bodies have waited this long for memory, the slowest of those that arrive is given up."""
_HARDLY = 16 * 1024
"""A body of which less comes between two looks, while others wait for the memory it holds, is given up."""
_SMALL_BYTES = 64 * 1024
"""A body waits for nobody as long as it takes no more memory than this."""
_ZSTD_WINDOW = 8 * 1024 * 1024
"""What RFC 9659 lets a sender ask of a receiver."""
_ZSTD_PIECE = 256
"""Bytes fed at once: a block of four can stand for 128 KiB, so that a piece becomes 8 MiB at most."""
_ZLIB_PIECE = 64 * 1024
_ZLIB_PLAIN = 1024 * 1024
"""The most plain bytes of gzip and deflate that are made at once."""
_MOST_FRAMES = 10_000
"""Members or frames of one body: empty ones take a few bytes, and as long to begin as others."""


class UnfinishedBodies:
    """The bodies that arrive at a server, in order; holds each to its rate and all of them to the memory they share."""

    def __init__(self, settings: Settings, refused: Callable[[str], None]) -> None:
        """`refused` counts what is given up, by the setting that was met."""
        self._settings = settings
        self._refused = refused
        self._bodies: dict[BodyReader, None] = {}
        self._bytes = 0
        self._bytes_of: dict[str, int] = {}
        self._freed = asyncio.Event()
        self._look: asyncio.TimerHandle | None = None
        self._crowded_since: float | None = None

    @property
    def bytes(self) -> int:
        """Memory that unfinished bodies take now."""
        return self._bytes

    def begin(self, body: "BodyReader") -> None:
        """A body that does not come at once."""
        self._bodies[body] = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._check)

    def end(self, body: "BodyReader") -> None:
        """It is complete, or given up."""
        if body in self._bodies:
            del self._bodies[body]
            self._count(body.address, -body.kept)
            self._freed.set()

    def keep(self, body: "BodyReader", count: int) -> None:
        """Note that more of a body is in memory."""
        body.kept += count
        self._count(body.address, count)

    async def wait_for_memory(self, body: "BodyReader") -> None:
        """Wait while too much is in memory; whoever began first never waits, so there is always one that goes on."""
        while body.kept >= _SMALL_BYTES and self._must_wait(body):
            self._freed.clear()
            body.is_paused = True
            await self._freed.wait()
        body.is_paused = False

    def _must_wait(self, body: "BodyReader") -> bool:
        settings = self._settings
        if self._bytes >= settings.max_unfinished_bytes:
            return next(iter(self._bodies)) is not body
        if self._bytes_of.get(body.address, 0) >= settings.max_unfinished_bytes_per_address:
            return next(other for other in self._bodies if other.address == body.address) is not body
        return False

    def _count(self, address: str, count: int) -> None:
        self._bytes += count
        left = self._bytes_of.get(address, 0) + count
        if left:
            self._bytes_of[address] = left
        else:
            self._bytes_of.pop(address, None)

    def _check(self) -> None:
        """Give up what comes too slowly."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for body in list(self._bodies):
            if body.is_late(now):
                self._refused("body_timeout")
                body.give_up(self._too_slow)
        self._give_up_slow(now)
        for body in self._bodies:
            body.new_bytes = 0
        self._look = loop.call_later(_LOOK_SECONDS, self._check) if self._bodies else None

    def _too_slow(self) -> HeddleError:
        seconds, rate = self._settings.body_timeout, self._settings.min_body_rate
        return RequestTimeout(
            f"The body came too slowly: limits body_timeout = {seconds:g} s, min_body_rate = {rate} bytes a second"
        )

    def _give_up_slow(self, now: float) -> None:
        """Where bodies wait for memory, give up those that hold some and hardly come, at last the slowest."""
        if not any(body.is_paused for body in self._bodies):
            self._crowded_since = None
            return
        if self._crowded_since is None:
            self._crowded_since = now
            return
        arriving = [body for body in self._bodies if not body.is_paused and body.kept]
        slow = [body for body in arriving if body.new_bytes < _HARDLY]
        if not slow and arriving and now - self._crowded_since > _PATIENCE_SECONDS:
            self._crowded_since = now
            slow = [min(arriving, key=lambda body: body.new_bytes)]
        for body in slow:
            self._refused("max_unfinished_bytes")
            body.give_up(_too_many_bodies)


def _too_many_bodies() -> HeddleError:
    limits = "max_unfinished_bytes, max_unfinished_bytes_per_address"
    return Busy(f"Too many bodies are being received, and this one is slow (limits {limits})", retry_after=2)


class BodyReader:
    """The body of one request."""

    def __init__(
        self,
        receive: Receive,
        limit: tuple[str, int, int],
        settings: Settings,
        unfinished: UnfinishedBodies,
        address: str,
        encoding: bytes | None = None,
    ) -> None:
        """`limit` is a setting's name, its value, and the bytes that are allowed; raises UnsupportedMedia."""
        self.address = address
        self.received = 0
        """Bytes so far, decoded."""
        self.kept = 0
        """Bytes that wait in memory for the rest."""
        self.new_bytes = 0
        self.is_complete = False
        self.is_paused = False
        self.arriving: Callable[[int], None] | None = None
        """Is told the bytes of each part of a body that does not say its length; raises for those beyond a quota."""
        self._receive = receive
        self._limit = limit
        self._grace = settings.body_timeout
        self._rate = settings.min_body_rate
        self._unfinished = unfinished
        self._encoding = encoding
        self._decoder = Decoder(encoding) if encoding else None
        self._waiting_since: float | None = None
        self._waited = 0.0
        self._arrived = 0
        self._deadline: asyncio.Timeout | None = None
        # Made when it is raised: a failure that is kept would keep what its traceback leads to.
        self._problem: Callable[[], HeddleError] | None = None

    async def read(self) -> bytes:
        """The whole body, decoded; raises TooLarge, RequestTimeout, Busy, InvalidRequest and ClientDisconnect."""
        parts: list[bytes] = []
        try:
            while not self.is_complete:
                parts.append(await self._next_part(is_kept=True))
                # What is compressed may grow by the limit at most, and does so once it is complete.
                if self._arrived > self._limit[2]:
                    raise self._too_large()
            arrived = parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            # A failure holds on to this list for as long as anybody holds on to it.
            parts.clear()
        plain = arrived if self._encoding is None else await self._decode(arrived)
        if plain is None:
            raise self._too_large()
        self.received = len(plain)
        if self.received > self._limit[2]:
            raise self._too_large()
        return plain

    async def receive(self) -> Message:
        """The next part of a body that is not kept in memory, decoded; raises as `read` does."""
        if self.is_complete:
            return await self._receive()
        try:
            part = await self._next_part(is_kept=False)
        except ClientDisconnect:
            return {"type": "http.disconnect"}
        if self._decoder is not None:
            # One byte more than is allowed is asked for, so that a small bomb stays small here.
            most = self._limit[2] - self.received + 1
            part = await asyncio.to_thread(self._decoder.decode, part, most, self.is_complete)
        self.received += len(part)
        if self.received > self._limit[2]:
            raise self._too_large()
        return {"type": "http.request", "body": part, "more_body": not self.is_complete}

    def close(self) -> None:
        """The request has ended, whatever came of its body."""
        self._unfinished.end(self)

    def check_length(self, declared: int) -> None:
        """Raise TooLarge when a body says that it is larger than its limit."""
        if declared > self._limit[2]:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        name, value, _ = self._limit
        return TooLarge(f"Request too large: over the limit {name} = {value} bytes")

    def is_late(self, now: float) -> bool:
        """True when the client has been silent for too long, or sends too slowly on the whole."""
        if self._waiting_since is None or self.is_paused:
            return False
        waiting = now - self._waiting_since
        return waiting > self._grace or self._waited + waiting > self._grace + self._arrived / self._rate

    def give_up(self, problem: Callable[[], HeddleError]) -> None:
        """Let who reads this body fail."""
        if self._deadline is not None and self._problem is None:
            self._problem = problem
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _next_part(self, is_kept: bool) -> bytes:
        clock = asyncio.get_running_loop().time
        self._unfinished.begin(self)
        try:
            async with asyncio.timeout(None) as self._deadline:
                if is_kept:
                    await self._unfinished.wait_for_memory(self)
                self._waiting_since = clock()
                message = await self._receive()
        except TimeoutError:
            if self._problem is None:
                raise
            raise self._problem() from None
        finally:
            self._deadline = None
        self._waited += clock() - self._waiting_since
        self._waiting_since = None
        if message["type"] != "http.request":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        self._arrived += len(part)
        if self.arriving is not None:
            self.arriving(len(part))
        self.new_bytes += len(part)
        self.is_complete = not message.get("more_body", False)
        if self.is_complete:
            self._unfinished.end(self)
        elif is_kept:
            self._unfinished.keep(self, len(part))
        return part

    async def _decode(self, data: bytes) -> bytes | None:
        """The plain bytes; None where there are more than the limit."""
        assert self._decoder is not None and self._encoding is not None
        plain = self._decoder.decode(data, INLINE_BYTES + 1, True)
        if len(plain) <= INLINE_BYTES:
            return plain
        work = partial(_decode_within, self._encoding, data, self._limit[2])
        return await asyncio.get_running_loop().run_in_executor(_decoding, work)


def _decode_within(encoding: bytes, data: bytes, most: int) -> bytes | None:
    """The plain bytes; what is too large is let go here, before the next body's turn comes."""
    plain = Decoder(encoding).decode(data, most + 1, True)
    return plain if len(plain) <= most else None


class Decoder:
    """Undoes one encoding; raises UnsupportedMedia for one that is not known."""

    def __init__(self, encoding: bytes) -> None:
        self._name = encoding.decode("latin-1")
        self._unpacker: _Gzip | _Deflate | _Zstd
        if encoding in (b"gzip", b"x-gzip"):
            self._unpacker = _Gzip()
        elif encoding == b"deflate":
            self._unpacker = _Deflate()
        elif encoding == b"zstd":
            self._unpacker = _Zstd()
        else:
            supported = "supported are gzip, deflate and zstd"
            raise UnsupportedMedia(f"Content-Encoding {self._name[:40]!r} is not supported here; {supported}")
        self._has_begun = False

    def decode(self, data: bytes, most: int, last: bool) -> bytes:
        """The plain bytes of the next part, at most `most`; raises InvalidRequest for data that is not so encoded."""
        self._has_begun = self._has_begun or bool(data)
        if not self._has_begun:
            return b""
        try:
            plain = self._unpacker.unpack(data, most)
        except (zlib.error, zstandard.ZstdError):
            raise InvalidRequest(f"The body is not valid {self._name}") from None
        if last and len(plain) < most and not self._unpacker.is_done:
            raise InvalidRequest(f"The {self._name} body is truncated")
        return plain


class _Deflate:
    """The format of zlib, which "deflate" means; some clients send the bare stream."""

    def __init__(self) -> None:
        self._inflater: Any = None

    def unpack(self, data: bytes, most: int) -> bytes:
        if self._inflater is None and data:
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        plain = io.BytesIO()
        if self._inflater is not None:
            _inflate(self._inflater, data, 0, most, plain)
        return plain.getvalue()

    @property
    def is_done(self) -> bool:
        return self._inflater is not None and bool(self._inflater.eof)


class _Gzip:
    """One gzip member or several, one behind the other."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._begun = 1

    def unpack(self, data: bytes, most: int) -> bytes:
        plain = io.BytesIO()
        place = 0
        while place < len(data) and plain.tell() < most:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
                self._begun = _next_frame(self._begun)
            place = _inflate(self._inflater, data, place, most, plain)
        return plain.getvalue()

    @property
    def is_done(self) -> bool:
        return self._inflater.eof


def _inflate(inflater: Any, data: bytes, place: int, most: int, plain: io.BytesIO) -> int:
    """Add plain bytes until there are `most` or the stream ends; returns the place in `data` that was reached."""
    piece, rest, is_full = 1024, b"", False
    while (rest or is_full or place < len(data)) and plain.tell() < most and not inflater.eof:
        if not rest and not is_full:
            rest = data[place : place + piece]
            place += len(rest)
            piece = min(2 * piece, _ZLIB_PIECE)
        space = min(_ZLIB_PLAIN, most - plain.tell())
        # What is full may have taken all it was given and still hold plain bytes.
        is_full = plain.write(inflater.decompress(rest, space)) == space
        rest = inflater.unconsumed_tail
    return place - len(inflater.unused_data)


def _next_frame(begun: int) -> int:
    """One frame more; raises InvalidRequest."""
    if begun >= _MOST_FRAMES:
        raise InvalidRequest(f"The body is compressed in more than {_MOST_FRAMES} parts")
    return begun + 1


class _Zstd:
    """One zstd frame or several."""

    def __init__(self) -> None:
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._begun = 1

    def unpack(self, data: bytes, most: int) -> bytes:
        plain = io.BytesIO()
        place, piece = 0, 32
        while place < len(data) and plain.tell() < most:
            if self._frame.eof:
                self._frame = self._unpacker.decompressobj()
                self._begun = _next_frame(self._begun)
            part = data[place : place + piece]
            piece = min(2 * piece, _ZSTD_PIECE)
            plain.write(self._frame.decompress(part))
            place += len(part) - len(self._frame.unused_data)
        plain.truncate(most)
        return plain.getvalue()

    @property
    def is_done(self) -> bool:
        return bool(self._frame.eof)

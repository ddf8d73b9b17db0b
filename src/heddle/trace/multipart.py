"""Multipart forms with one file, written to its place while they arrive."""

import asyncio
from collections.abc import AsyncIterator, Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from heddle.errors import TooLarge, ValidationFailed
from heddle.store.blobs.base import BlobWriter

FILE_PART = "file"
_WRITE_BYTES = 1 << 20
_MAX_FIELD = 64 * 1024
_MAX_HEADERS = 16 * 1024
_MAX_PARTS = 20


def boundary_of(content_type: str) -> bytes:
    """The boundary of a multipart content type; raises ValidationFailed for anything else."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise ValidationFailed.at(["body"], "Expected multipart/form-data with a boundary", "multipart_invalid")
    return boundary


class FileForm:
    """A form on its way in: its text fields, and its file.

    A small file waits in memory; of a large one the most is in `writer`, which the caller ends by `keep` or `discard`.
    """

    def __init__(self, boundary: bytes, begin: Callable[[], BlobWriter], max_file: int) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self.writer: BlobWriter | None = None
        self._begin = begin
        self._max_file = max_file
        self._waiting = bytearray()
        self._file_size = 0
        self._has_file = self._complete = False
        self._parts = self._header_bytes = 0
        self._name: str | None = None
        self._text = bytearray()
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    async def receive(self, chunks: AsyncIterator[bytes]) -> None:
        """Read the whole form; raises ValidationFailed when it is none, TooLarge and StorageFull."""
        async for chunk in chunks:
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise ValidationFailed.at(["body"], f"The form cannot be read: {error}", "multipart_invalid") from None
            if len(self._waiting) >= _WRITE_BYTES:
                await asyncio.to_thread(self._write)
        if not self._complete:
            raise ValidationFailed.at(["body"], "The form ends too early", "multipart_invalid")

    def field(self, name: str) -> str:
        """A text field; raises ValidationFailed when it is missing."""
        if name not in self.fields:
            raise ValidationFailed.at(["body", name], "Field required", "missing")
        return self.fields[name]

    def require_file(self) -> None:
        """Raise ValidationFailed when the form has no file."""
        if not self._has_file:
            raise ValidationFailed.at(["body", FILE_PART], "Field required", "missing")

    def keep(self, check: Callable[[str], None]) -> tuple[str, int]:
        """Make the file durable; returns the key of its blob and its size. Blocks.

        `check(key)` may raise before anything is kept.
        """
        writer = self._write()
        check(writer.key)
        return writer.commit(), writer.size

    async def discard(self) -> None:
        """Leave nothing behind, unless the file was kept."""
        if self.writer is not None and not self.writer.is_done:
            await asyncio.to_thread(self.writer.discard)

    def _decoded(self, name: str) -> str:
        try:
            return self._text.decode()
        except UnicodeDecodeError:
            raise ValidationFailed.at(["body", name], "The field is not UTF-8", "multipart_invalid") from None

    def _write(self) -> BlobWriter:
        if self.writer is None:
            self.writer = self._begin()
        waiting, self._waiting = bytes(self._waiting), bytearray()
        self.writer.write(waiting)
        return self.writer

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ValidationFailed.at(["body"], f"The form has more than {_MAX_PARTS} parts", "multipart_invalid")
        self._disposition, self._name, self._header_bytes = b"", None, 0
        self._text.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._count_header(end - start)

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count_header(end - start)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MAX_HEADERS:
            raise ValidationFailed.at(["body"], "The headers of a part are too long", "multipart_invalid")

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE_PART:
            if self._has_file:
                raise ValidationFailed.at(["body", FILE_PART], "The form has two files", "multipart_invalid")
            self._has_file = True
            self.file_name = options.get(b"filename", b"").decode("utf-8", "replace")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE_PART:
            self._text += data[start:end]
            if len(self._text) > _MAX_FIELD:
                raise ValidationFailed.at(["body", self._name or ""], f"Longer than {_MAX_FIELD} bytes", "too_long")
            return
        self._file_size += end - start
        if self._file_size > self._max_file:
            raise TooLarge(f"Request too large: the file is over the limit max_file = {self._max_file} bytes")
        self._waiting += data[start:end]

    def _on_part_end(self) -> None:
        if self._name and self._name != FILE_PART:
            self.fields[self._name] = self._decoded(self._name)

    def _on_end(self) -> None:
        self._complete = True

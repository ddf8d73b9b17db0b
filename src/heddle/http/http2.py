"""The answer to a client that begins with HTTP/2, as those of gRPC do: this port speaks HTTP/1.1."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _PING, _GOAWAY = 1, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_FRAME_HEAD = 9
_LONGEST_FRAME = 16_384
_MOST_BYTES = 65_536
_UNIMPLEMENTED = b"12"
_STATUS_200 = b"\x88"


def describe(grpc_port: int) -> str:
    """What a client can do instead; 0 is no port for gRPC."""
    instead = f"gRPC to port {grpc_port}" if grpc_port else "gRPC after the server got --otlp-grpc-port 4317"
    return f"this port speaks HTTP/1.1; send OTLP with OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or {instead}"


class Http2Refusal:
    """Reads the frames of a client up to its first request, which is answered with a reason."""

    def __init__(self, reason: str) -> None:
        self.is_done = False
        self._reason = reason
        self._held = b""
        self._received = 0
        self._has_begun = False

    def feed(self, data: bytes) -> bytes:
        """What to send for the next bytes of the client, the preface included; `is_done` says that this is all."""
        self._held += data
        self._received += len(data)
        if self._received > _MOST_BYTES:
            self.is_done = True
        answer = b""
        if not self._has_begun:
            if len(self._held) < len(PREFACE):
                return b""
            self._has_begun = True
            self._held = self._held[len(PREFACE) :]
            answer = _frame(_SETTINGS, 0, 0, b"")
        while not self.is_done and len(self._held) >= _FRAME_HEAD:
            length, kind, flags = int.from_bytes(self._held[:3], "big"), self._held[3], self._held[4]
            stream = int.from_bytes(self._held[5:_FRAME_HEAD], "big") & 0x7FFF_FFFF
            if length > _LONGEST_FRAME:
                self.is_done = True
            elif len(self._held) < _FRAME_HEAD + length:
                break
            else:
                answer += self._answer(kind, flags, stream, self._held[_FRAME_HEAD : _FRAME_HEAD + length])
                self._held = self._held[_FRAME_HEAD + length :]
        return answer

    def _answer(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        if kind == _HEADERS:
            self.is_done = True
            fields = (b"content-type", b"application/grpc"), (b"grpc-status", _UNIMPLEMENTED)
            block = _STATUS_200 + b"".join(
                _field(*pair) for pair in (*fields, (b"grpc-message", self._reason.encode()))
            )
            goodbye = stream.to_bytes(4, "big") + bytes(4)
            return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, block) + _frame(_GOAWAY, 0, 0, goodbye)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            return _frame(kind, _ACK, 0, body if kind == _PING else b"")
        return b""


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _field(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, parts = len(text) - 127, bytearray((127,))
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts) + text

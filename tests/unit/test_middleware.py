"""The outermost layer's rules: which limit bounds which path, compressed bodies, pages of other origins."""

import gzip
import os
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from heddle.auth import check_origin, public_address
from heddle.errors import Forbidden, InvalidRequest, UnsupportedMedia
from heddle.http.bodies import Decoder
from heddle.http.middleware import MULTIPART_SLACK, body_limit, client_prefix
from heddle.settings import Settings
from tests.support import attacks

SETTINGS = Settings(max_trace_body=1, max_chat_body=2, max_training_body=3, max_file=4, max_table_body=5)


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/call/start", ("max_trace_body", 1, 1)),
        ("/v2/team/project/calls/complete", ("max_trace_body", 1, 1)),
        ("/table/create", ("max_trace_body", 1, 1)),
        ("/table/create_from_digests", ("max_table_body", 5, 5)),
        ("/file/create", ("max_file", 4, 4 + MULTIPART_SLACK)),
        ("/files/create", ("max_file", 4, 4 + MULTIPART_SLACK)),
        ("/v1/chat/completions", ("max_chat_body", 2, 2)),
        ("/v1/preview/training-jobs", ("max_training_body", 3, 3)),
        ("/v1", ("max_trace_body", 1, 1)),
    ],
)
def test_each_kind_of_route_has_its_limit(path: str, limit: tuple[str, int, int]) -> None:
    assert body_limit(path, SETTINGS) == limit


@pytest.mark.parametrize(
    ("request_line", "prefix"),
    [
        ("POST /traces/call/start", "/traces"),
        ("GET /openai/v1/models", "/openai"),
        ("GET /openai/health", ""),
        ("GET /traces/own/weave/calls", ""),
        ("HEAD /openai/v1/weave", ""),
        ("GET /openai/v1/r/call/x", ""),
        # Entities and objects may have the names of parts of those addresses.
        ("POST /traces/v2/weave/own/call/start", "/traces"),
        ("GET /traces/v2/weave/own/ops", "/traces"),
        ("GET /traces/v2/r/own/ops", "/traces"),
        ("PUT /traces/objs/weave/aliases", "/traces"),
        ("PUT /traces/objs/r/versions/x/tags", "/traces"),
    ],
)
def test_what_clients_put_in_front_of_routes_is_no_project(request_line: str, prefix: str) -> None:
    method, _, path = request_line.partition(" ")
    assert client_prefix({"method": method, "path": path}) == prefix


def raw_deflate(data: bytes) -> bytes:
    """DEFLATE without the zlib wrapper."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def in_two(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """The same data as two members or frames, one behind the other."""
    return lambda data: pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


PACKERS = {
    "gzip": (b"gzip", gzip.compress),
    "gzip in two": (b"gzip", in_two(gzip.compress)),
    "zlib": (b"deflate", zlib.compress),
    "raw": (b"deflate", raw_deflate),
    "zstd": (b"zstd", zstandard.compress),
    "zstd in two": (b"zstd", in_two(zstandard.compress)),
}


@given(data=st.binary(max_size=5000), pieces=st.integers(1, 20), how=st.sampled_from(sorted(PACKERS)))
def test_what_was_compressed_comes_back_in_any_number_of_parts(data: bytes, pieces: int, how: str) -> None:
    encoding, pack = PACKERS[how]
    packed = pack(data)
    step = max(1, len(packed) // pieces)
    parts = [packed[start : start + step] for start in range(0, len(packed), step)]
    decoder = Decoder(encoding)
    plain = [decoder.decode(part, 6000, part_number == len(parts) - 1) for part_number, part in enumerate(parts)]
    assert b"".join(plain) == data


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"zstd", zstandard.compress)])
def test_a_bomb_yields_no_more_than_was_asked_for(encoding: bytes, pack: Callable[[bytes], bytes]) -> None:
    assert len(Decoder(encoding).decode(pack(bytes(50_000_000)), 1001, True)) == 1001


def test_half_a_body_and_other_encodings_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="is truncated"):
        Decoder(b"gzip").decode(gzip.compress(b"x" * 1000)[:-10], 6000, True)
    with pytest.raises(InvalidRequest, match="not valid gzip"):
        Decoder(b"gzip").decode(b"plain text", 6000, True)
    with pytest.raises(InvalidRequest, match="is truncated"):
        Decoder(b"zstd").decode(zstandard.compress(os.urandom(1000))[:-10], 6000, True)
    with pytest.raises(InvalidRequest, match="not valid zstd"):
        Decoder(b"zstd").decode(b"plain text", 6000, True)
    with pytest.raises(UnsupportedMedia, match="'br' is not supported"):
        Decoder(b"br")


@pytest.mark.parametrize(("encoding", "bomb"), [(b"gzip", attacks.gzip_bomb), (b"zstd", attacks.zstd_bomb)])
def test_a_bomb_takes_little_more_memory_than_what_is_kept_of_it(encoding: bytes, bomb: Callable[[int], bytes]) -> None:
    packed, most = bomb(256 * attacks.MIB), 32 * attacks.MIB
    tracemalloc.start()
    plain = Decoder(encoding).decode(packed, most, True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(plain) == most
    assert peak < 1.75 * most


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"zstd", zstandard.compress)])
def test_a_body_of_very_many_parts_is_refused(encoding: bytes, pack: Callable[[bytes], bytes]) -> None:
    assert Decoder(encoding).decode(pack(b"x") * 10_000, 20_000, True) == b"x" * 10_000
    with pytest.raises(InvalidRequest, match="more than 10000 parts"):
        Decoder(encoding).decode(pack(b"") * 10_001, 20_000, True)


@pytest.mark.parametrize(("encoding", "pack"), PACKERS.values(), ids=PACKERS)
def test_what_is_read_in_pieces_is_whole(encoding: bytes, pack: Callable[[bytes], bytes]) -> None:
    plain = os.urandom(300_000) + bytes(3_000_000) + os.urandom(1000) + b"[1,2,3]" * 400_000
    assert Decoder(encoding).decode(pack(plain), len(plain) + 1, True) == plain


def test_a_zstd_window_that_takes_much_memory_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed = packer.compress(b"x" * 100) + packer.flush()
    with pytest.raises(InvalidRequest, match="not valid zstd"):
        Decoder(b"zstd").decode(packed, 6000, True)


HERE = b"127.0.0.1:8470"
KEYLESS = Settings()
BEHIND_A_PROXY = Settings(auth="off", public_url="https://heddle.example.com:444/x")
WITH_KEYS = Settings(auth="on")
BASIC = {b"authorization": b"Basic eDp5"}


@pytest.mark.parametrize(
    ("method", "headers", "settings"),
    [
        ("POST", {b"host": HERE}, KEYLESS),
        ("POST", {b"host": HERE, b"origin": b"http://127.0.0.1:8470"}, KEYLESS),
        (
            "POST",
            {b"host": b"localhost:8470", b"origin": b"http://localhost:8470", b"sec-fetch-site": b"same-origin"},
            KEYLESS,
        ),
        ("PUT", {b"host": b"[::1]:8470", b"origin": b"http://[::1]:8470"}, KEYLESS),
        ("PUT", {b"host": b"[::1]", b"origin": b"http://[::1]"}, KEYLESS),
        ("GET", {b"host": b"heddle.localhost:8470", b"sec-fetch-site": b"cross-site"}, KEYLESS),
        ("GET", {b"host": b"localhost:8470", b"user-agent": b"Mozilla/5.0", b"accept-language": b"en"}, KEYLESS),
        ("POST", {b"host": b"host.docker.internal:8470", b"sec-fetch-mode": b"cors"}, KEYLESS),
        ("GET", {b"host": b"heddle.example.com:444", b"x-forwarded-for": b"1.2.3.4"}, BEHIND_A_PROXY),
        ("POST", {b"host": b"heddle.example.com"}, BEHIND_A_PROXY),
        ("POST", {b"host": b"any.example", b"x-forwarded-for": b"1.2.3.4"}, WITH_KEYS),
        ("POST", {b"host": b"any.example", b"origin": b"https://other.example"}, WITH_KEYS),
        ("POST", {b"host": HERE, b"origin": b"https://other.example", b"authorization": b"Bearer x"}, WITH_KEYS),
        ("POST", {b"host": HERE, b"origin": b"http://127.0.0.1:8470", **BASIC}, WITH_KEYS),
        ("POST", {b"host": HERE, **BASIC}, WITH_KEYS),
        ("GET", {b"host": HERE, b"sec-fetch-site": b"cross-site", **BASIC}, WITH_KEYS),
    ],
)
def test_programs_and_own_pages_pass(method: str, headers: dict[bytes, bytes], settings: Settings) -> None:
    check_origin(method, headers, settings)


@pytest.mark.parametrize(
    ("method", "headers", "settings"),
    [
        ("POST", {b"host": HERE, b"origin": b"https://evil.example"}, KEYLESS),
        ("POST", {b"host": HERE, b"origin": b"http://127.0.0.1:9999"}, KEYLESS),
        ("POST", {b"host": HERE, b"sec-fetch-site": b"cross-site"}, KEYLESS),
        ("PATCH", {b"host": HERE, b"sec-fetch-site": b"same-site"}, KEYLESS),
        ("DELETE", {b"host": HERE, b"origin": b"null"}, KEYLESS),
        ("POST", {b"host": b"evil.example", b"origin": b"http://evil.example"}, KEYLESS),
        ("GET", {b"host": b"evil.example"}, KEYLESS),
        ("GET", {b"host": b"127.0.0.1.evil.example:8470"}, KEYLESS),
        ("GET", {b"host": b"evil.example:127.0.0.1"}, KEYLESS),
        ("GET", {}, KEYLESS),
        ("GET", {b"host": b"evil.example:8470", b"user-agent": b"Mozilla/5.0 (X11)"}, KEYLESS),
        ("POST", {b"host": HERE, b"x-forwarded-for": b"1.2.3.4"}, KEYLESS),
        ("GET", {b"host": HERE, b"forwarded": b"for=1.2.3.4"}, KEYLESS),
        ("GET", {b"host": HERE, b"x-real-ip": b"127.0.0.1"}, KEYLESS),
        ("GET", {b"host": HERE, b"via": b"1.1 proxy"}, KEYLESS),
        ("GET", {b"host": b"other.example.com", b"x-forwarded-for": b"1.2.3.4"}, BEHIND_A_PROXY),
        ("POST", {b"host": b"heddle.example.com", b"origin": b"https://evil.example"}, BEHIND_A_PROXY),
        ("POST", {b"host": HERE, b"origin": b"https://evil.example", **BASIC}, WITH_KEYS),
        ("POST", {b"host": HERE, b"origin": b"null", **BASIC}, WITH_KEYS),
        ("PUT", {b"host": HERE, b"sec-fetch-site": b"cross-site", **BASIC}, WITH_KEYS),
        ("DELETE", {b"host": HERE, b"sec-fetch-site": b"same-site", b"authorization": b"bAsIc eDp5"}, WITH_KEYS),
    ],
)
def test_pages_of_others_and_strangers_behind_proxies_do_not(
    method: str, headers: dict[bytes, bytes], settings: Settings
) -> None:
    with pytest.raises(Forbidden):
        check_origin(method, headers, settings)


def test_links_name_the_public_address() -> None:
    assert public_address(BEHIND_A_PROXY, "http://evil.example/") == "https://heddle.example.com:444/x/"
    assert public_address(KEYLESS, "http://127.0.0.1:8470/") == "http://127.0.0.1:8470/"

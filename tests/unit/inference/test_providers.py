"""Providers of the settings: how they are written, and what is sent to them."""

import asyncio
import ssl
import threading
from typing import Any

import pytest

from heddle import certificates
from heddle import settings as table
from heddle.errors import InvalidRequest
from heddle.inference import providers
from heddle.inference.providers import Provider, ProviderClient, ProviderFailed, check_headers, read_providers
from heddle.settings import BadSetting, Settings
from tests.support.provider import FakeProvider

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_providers_are_read_from_one_line() -> None:
    line = " openai=https://api.example.com/v1/,OPENAI_KEY ; local-1=http://127.0.0.1:8000/v1;"
    settings = table.load({"providers": line}, {})
    assert read_providers(settings) == {
        "openai": Provider("openai", "https://api.example.com/v1", "OPENAI_KEY"),
        "local-1": Provider("local-1", "http://127.0.0.1:8000/v1", ""),
    }
    assert read_providers(Settings()) == read_providers(table.load({"providers": "none"}, {})) == {}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "openai",
        "openai=",
        "openai=ftp://x/v1",
        "openai=https://x/v1,KEY,MORE",
        "openai=https://x/v1,1KEY",
        "open ai=https://x/v1",
        "a=https://x/v1?key=1",
        "a=https://x/v1; a=https://y/v1",
    ],
)
def test_a_line_that_cannot_be_used_stops_the_start(line: str) -> None:
    with pytest.raises(BadSetting, match="name=base_url,KEY_VARIABLE"):
        table.load({"providers": line}, {})


@pytest.mark.parametrize(
    "headers", [{"Host": "x"}, {"authorization": "x"}, {"a b": "x"}, {"x": 1}, {"x": "a\nb"}, {"": "x"}, {"x": "é"}]
)
def test_headers_that_are_not_the_clients_to_set_are_refused(headers: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_headers(headers)
    assert refused.value.param == "extra_headers"
    assert check_headers({"X-Team": "blue"}) == {"X-Team": "blue"}


def test_answers_that_are_nested_without_end_are_no_json() -> None:
    with FakeProvider() as fake:
        for model in ("model-deep", "model-deep-object"):
            with pytest.raises(ProviderFailed, match="returned JSON that is nested too deep"):
                asyncio.run(ProviderClient(Provider("p", fake.url)).complete({**BODY, "model": model}))
        with pytest.raises(ProviderFailed, match="p returned 400"):
            asyncio.run(ProviderClient(Provider("p", fake.url)).complete({**BODY, "model": "model-deeply-wrong"}))


def test_an_answer_that_only_drips_ends_with_the_time_for_it() -> None:
    with FakeProvider() as fake, pytest.raises(ProviderFailed, match=r"did not answer within 0\.5 s"):
        asyncio.run(ProviderClient(Provider("p", fake.url), seconds=0.5).complete({**BODY, "model": "model-drips"}))


def test_answers_hold_nothing_that_cannot_be_stored() -> None:
    """A model whose name was half a surrogate pair ended the evaluation that asked it."""
    with FakeProvider() as fake:
        client = ProviderClient(Provider("p", fake.url))
        answer = asyncio.run(client.complete({**BODY, "model": "model-surrogate"}))
        assert answer == {"model": "\ufffd", "choices": [], "usage": {"total_tokens": None}}
        with pytest.raises(ProviderFailed, match="p returned 429: \ufffd"):
            asyncio.run(client.complete({**BODY, "model": "model-oddly-wrong"}))


_HE, _END = (
    b'data: {"choices": [{"delta": {"content": "he"}}]}\n\n',
    b'data: {"choices": [{"finish_reason": "stop"}]}\n\n',
)
_BOOM = b'"error": {"message": "boom", "code": 429}'


async def _stream(url: str) -> list[Any]:
    return [chunk async for chunk in ProviderClient(Provider("p", url)).stream(BODY)]


@pytest.mark.parametrize(
    "raw",
    [
        _HE + _END,
        _HE + b"data: [DONE]\n\n" + _END,
        b"\xef\xbb\xbf" + _HE + _END,
        b": ping\n\nretry: 5\n\nevent: chunk\r\nid: 3\r\n"
        + (_HE + _END).replace(b"\n", b"\r\n").replace(b"data: ", b"data:"),
    ],
    ids=["no end", "more behind the end", "byte order mark", "comments"],
)
def test_streams_are_read_in_every_form(raw: bytes) -> None:
    with FakeProvider() as fake:
        fake.raw = raw
        chunks = asyncio.run(_stream(fake.url))
    assert chunks[0] == {"choices": [{"delta": {"content": "he"}}]}
    assert len(chunks) == 1 + (b"[DONE]" not in raw)


@pytest.mark.parametrize(
    ("raw", "reason", "status"),
    [
        (_HE, "p closed the connection before the end of its answer", 0),
        (
            _END + _HE.replace(b'"delta"', b'"index": 1, "delta"'),
            "p closed the connection before the end of its answer",
            0,
        ),
        (_HE + b'data: {"choices": [], ' + _BOOM + b"}\n\n", "p: boom", 429),
        (_HE + b'data: {"choices": [{"finish_reason": "error", ' + _BOOM + b"}]}\n\n", "p: boom", 429),
        (_HE + b'event: error\ndata: {"message": "boom"}\n\n', "p: boom", 0),
        (b"<html>", "p did not return a stream of chunks", 0),
    ],
    ids=["cut", "one choice cut", "error beside choices", "error of a choice", "event", "page"],
)
def test_a_stream_that_fails_in_the_middle_is_no_answer(raw: bytes, reason: str, status: int) -> None:
    """The half of an answer was stored and shown as a whole one."""
    with FakeProvider() as fake:
        fake.raw = raw
        with pytest.raises(ProviderFailed) as failed:
            asyncio.run(_stream(fake.url))
    assert (failed.value.reason, failed.value.answered) == (reason, status)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{" + _BOOM + b"}", "p: boom"),
        (b'{"choices": [{"message": null, ' + _BOOM + b"}]}", "p: boom"),
        (b"{}", "p did not return a completion"),
        (b'{"choices": 5}', "p did not return a completion"),
    ],
)
def test_200_alone_makes_no_answer(raw: bytes, reason: str) -> None:
    with FakeProvider() as fake:
        fake.raw = raw
        with pytest.raises(ProviderFailed, match=reason):
            asyncio.run(ProviderClient(Provider("p", fake.url)).complete(BODY))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "boom", "type": "t"}}, "boom"),
        ({"error": "boom"}, "boom"),
        ([{"error": {"message": "boom", "code": 429}}], "boom"),
        ({"message": "boom"}, "boom"),
        ({"detail": [{"loc": ["body"], "msg": "boom"}]}, "boom"),
        ({"errors": [{"message": "boom"}]}, "boom"),
        ({"error": {"message": None}}, '{"error":{"message":null}}'),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_provider(body: Any, message: str) -> None:
    assert providers.read_message(body) == message


@pytest.mark.parametrize("is_stream", [False, True])
def test_answers_are_read_as_far_as_they_may_be_large(is_stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, a provider's answer of a few MB was gigabytes here."""
    monkeypatch.setattr(providers, "MOST_BYTES", 100_000)

    async def ask(client: ProviderClient, size: int) -> None:
        body = {**BODY, "messages": [{"role": "user", "content": "x" * size}]}
        if is_stream:
            async for _ in client.stream(body):
                pass
        else:
            await client.complete(body)

    with FakeProvider() as fake:
        client = ProviderClient(Provider("p", fake.url))
        asyncio.run(ask(client, 100))
        with pytest.raises(ProviderFailed, match="p returned more than 100000 bytes"):
            asyncio.run(ask(client, 200_000))


def test_certificates_are_read_once_and_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them costs more than a request."""
    read: list[threading.Thread] = []
    make = ssl.create_default_context

    def counted(*arguments: Any, **options: Any) -> Any:
        read.append(threading.current_thread())
        return make(*arguments, **options)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    certificates.read.cache_clear()
    with FakeProvider() as fake:
        for _ in range(3):
            asyncio.run(ProviderClient(Provider("p", fake.url)).complete(BODY))
    assert len(read) == 1 and read[0] is not threading.main_thread()


def test_the_key_comes_from_its_variable_and_the_version_is_a_parameter() -> None:
    with FakeProvider() as fake:
        provider = Provider("p", fake.url, "P_KEY")
        client = ProviderClient(provider, {"x-a": "b"}, api_version="2026-01-01", environment={"P_KEY": " k \n"})
        assert asyncio.run(client.complete(BODY))["choices"][0]["message"]["content"] == "HI"
        (sent,) = fake.requests
    assert sent["path"] == "/v1/chat/completions?api-version=2026-01-01"
    assert (sent["headers"]["Authorization"], sent["headers"]["x-a"]) == ("Bearer k", "b")
    with pytest.raises(ProviderFailed, match="set the environment variable P_KEY"):
        ProviderClient(provider, environment={})

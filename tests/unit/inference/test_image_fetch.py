"""Which addresses of images are loaded: only what anybody could load, over the address that was checked."""

import asyncio
import socket
from typing import Any

import pytest

from heddle.inference.api import images
from heddle.wire.inference import ProviderFailed

PROVIDER = "https://api.example.com/v1"


def known_as(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[tuple[str, str]]:
    """Let every host name mean these addresses; returns what is loaded: the address, and the host that it is for."""
    loaded: list[tuple[str, str]] = []

    async def look_up(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def load(parts: Any, address: str) -> bytes:
        loaded.append((address, parts.hostname))
        return b"image"

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)
    monkeypatch.setattr(images, "_load", load)
    return loaded


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "ff02::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "::7f00:1",
        "fec0::1", "192.0.0.8",
    ],
)  # fmt: skip
def test_names_that_lead_inside_are_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for addresses in ((address,), ("93.184.216.34", address)):
        loaded = known_as(monkeypatch, *addresses)
        with pytest.raises(ProviderFailed, match="non-public address"):
            asyncio.run(images.fetch_image("https://images.example.com/x.png", PROVIDER))
        assert loaded == []


def test_the_checked_address_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = known_as(monkeypatch, "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946")
    assert asyncio.run(images.fetch_image("https://images.example.com/x.png", PROVIDER)) == b"image"
    assert loaded == [("93.184.216.34", "images.example.com")]


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://127.0.0.1:8000/x.png", True),
        ("http://127.0.0.1:8001/x.png", False),
        ("https://127.0.0.1:8000/x.png", False),
        ("http://localhost:8000/x.png", False),
        ("http://127.0.0.1:8000@10.0.0.1/x.png", False),
    ],
)
def test_only_the_providers_own_origin_may_lie_inside(monkeypatch: pytest.MonkeyPatch, url: str, is_own: bool) -> None:
    loaded = known_as(monkeypatch, "127.0.0.1")
    if is_own:
        assert asyncio.run(images.fetch_image(url, "http://127.0.0.1:8000/v1")) == b"image"
    else:
        with pytest.raises(ProviderFailed):
            asyncio.run(images.fetch_image(url, "http://127.0.0.1:8000/v1"))
    assert len(loaded) == is_own


def test_data_addresses_are_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = known_as(monkeypatch, "127.0.0.1")
    assert asyncio.run(images.fetch_image("data:image/png;base64,aGVsbG8=", PROVIDER)) == b"hello"
    with pytest.raises(ProviderFailed, match="not base64"):
        asyncio.run(images.fetch_image("data:image/png;base64,!!!", PROVIDER))
    assert loaded == []

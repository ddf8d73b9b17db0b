"""The certificates of other servers are read once, whoever asks one."""

import asyncio
import ssl
from typing import Any

import pytest

from heddle import certificates
from heddle.errors import HeddleError
from heddle.trace.alerts.targets import create_secret, send_webhook
from heddle.trace.training_data import _download

NOBODY = "http://127.0.0.1:9/hook"


def test_messages_and_downloads_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes longer than a request, and everybody waits meanwhile."""
    certificates.read()
    read: list[Any] = []
    make = ssl.create_default_context

    def count(*given: Any, **named: Any) -> ssl.SSLContext:
        read.append(given)
        return make(*given, **named)

    monkeypatch.setattr(ssl, "create_default_context", count)
    assert asyncio.run(send_webhook(NOBODY, create_secret(), "msg", 0, "{}")) == "cannot be reached: ConnectError"
    with pytest.raises(HeddleError, match=r"127\.0\.0\.1"):
        asyncio.run(_download(NOBODY, 1))
    assert read == []

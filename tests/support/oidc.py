"""A certified provider of OpenID Connect (npm oidc-provider) on this machine, with the people of oidc_provider.mjs."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import free_port

MODULE = Path(__file__).parent.parent.parent / ".node" / "node_modules" / "oidc-provider"
SECRET = "secret&with=signs%+"
ROLES = "platform=admin; ml=editor:team/website,viewer:shared"


def require_provider() -> None:
    """Skip where something of it is not installed."""
    if not MODULE.exists() or shutil.which("node") is None:
        pytest.skip("npm oidc-provider is not installed: make clients")
    pytest.importorskip("authlib", reason="the extra oidc is not installed")


@contextmanager
def running_provider(client: str) -> Iterator[str]:
    """Its issuer, while it runs for the client at an address."""
    port = free_port()
    command = ["node", str(Path(__file__).parent / "oidc_provider.mjs"), str(MODULE), str(port), client]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n", process.communicate()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()

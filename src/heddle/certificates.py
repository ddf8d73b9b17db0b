"""What other servers are recognised by."""

import ssl
from functools import cache


@cache
def ssl_context() -> ssl.SSLContext:
    """The certificates of this machine, read once: that takes longer than a request, and holds up all others."""
    import httpx

    return httpx.create_ssl_context()

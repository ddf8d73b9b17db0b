"""What other servers are recognised by."""

import asyncio
import ssl
from functools import cache


async def ssl_context() -> ssl.SSLContext:
    """The certificates of this machine, read once and beside the event loop: that takes longer than a request."""
    return read() if read.cache_info().currsize else await asyncio.to_thread(read)


@cache
def read() -> ssl.SSLContext:
    """The certificates of this machine, or those that `SSL_CERT_FILE` names."""
    import httpx

    return httpx.create_ssl_context()

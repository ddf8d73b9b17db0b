"""A completion at a provider, on its account: admitted at the beginning, counted at the end."""

import time
from types import TracebackType

from heddle.errors import HeddleError
from heddle.inference.limits.accounts import Accounts
from heddle.inference.tracing import tokens_of
from heddle.wire.inference import Completion
from heddle.wire.jsontypes import Json

CLIENT_GONE = 499
_UNKNOWN_MANY = 10**9


class ProviderAccount:
    """A context in which a provider answers; `response` is what it said, at least its usage."""

    def __init__(self, accounts: Accounts, record: Completion) -> None:
        self.response: Json | None = None
        self._accounts = accounts
        self._record = record
        self._started = time.perf_counter()

    async def __aenter__(self) -> "ProviderAccount":
        """Admit it; raises Busy over a limit."""
        record = self._record
        wanted = record.request.get("max_completion_tokens") or record.request.get("max_tokens")
        tokens = wanted if isinstance(wanted, int) and wanted > 0 else _UNKNOWN_MANY
        self._ticket = await self._accounts.admit(record.caller, record.project, record.served, 0, tokens)
        return self

    def arrived(self, chunk: Json) -> None:
        """Note a chunk of a stream."""
        if self._record.first_token_seconds is None:
            self._record.first_token_seconds = time.perf_counter() - self._started
        if self.response is None or chunk.get("usage"):
            self.response = {"usage": chunk.get("usage")}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count it, however it ended."""
        record = self._record
        record.response, record.seconds = self.response, time.perf_counter() - self._started
        if error is not None:
            record.status = error.status if isinstance(error, HeddleError) else CLIENT_GONE
            record.error = str(error) or "The client went away"
            if self.response is None:
                # A name that no provider knows must not become a row of its own.
                record.served = record.base
        for name, count in tokens_of(self.response or {}).items():
            setattr(record, name, count)
        await self._ticket.close(record)

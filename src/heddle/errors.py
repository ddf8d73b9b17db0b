"""Every failure that heddle answers; each knows its HTTP status and its body."""

from collections.abc import Sequence
from typing import Any


class HeddleError(Exception):
    """A failure with an HTTP status; `reason` is what the client's user reads, `param` the field it is about."""

    status = 500

    def __init__(
        self, reason: str, headers: dict[str, str] | None = None, param: str | None = None, **extra: Any
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.headers = headers or {}
        self.param = param
        self.extra = extra

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return {"reason": self.reason, **self.extra}


class InvalidRequest(HeddleError):
    """A well-formed request that cannot be done: a business rule, a bad ref, a bad value."""

    status = 400


class NotAuthenticated(HeddleError):
    """No key, or an unknown or revoked one."""

    status = 401

    def __init__(self, reason: str, scheme: str = "Basic") -> None:
        super().__init__(reason, headers={"WWW-Authenticate": f'{scheme} realm="heddle"'})


class Forbidden(HeddleError):
    """The key's scope or binding does not reach that far."""

    status = 403


class NotFound(HeddleError):
    """What the request names does not exist, or was deleted."""

    status = 404


class RangeNotSatisfiable(HeddleError):
    """No byte of what is there lies in the range that the request asks for."""

    status = 416


class RequestTimeout(HeddleError):
    """The body did not come in time."""

    status = 408


class Conflict(HeddleError):
    """The client computed another digest; it never heals, so clients must not retry it."""

    status = 409

    def __init__(self, reason: str) -> None:
        super().__init__(reason, headers={"x-should-retry": "false"})


class Gone(HeddleError):
    """It was there, and is over."""

    status = 410


class TooLarge(HeddleError):
    """Over a limit of the settings, which the reason names."""

    status = 413


class UnsupportedMedia(HeddleError):
    """A body of a type or an encoding that the route does not read."""

    status = 415


class ValidationFailed(HeddleError):
    """The request's shape is wrong; `detail` items are `{loc, msg, type}`."""

    status = 422

    def __init__(self, detail: Sequence[dict[str, Any]], status: int = 422) -> None:
        super().__init__("; ".join(map(_sentence, detail)))
        self.detail = list(detail)
        self.status = status

    def __reduce__(self) -> tuple[type["ValidationFailed"], tuple[list[dict[str, Any]], int]]:
        # Failures are pickled between processes.
        return type(self), (self.detail, self.status)

    @classmethod
    def at(cls, location: Sequence[str | int], message: str, kind: str = "value_error") -> "ValidationFailed":
        """One problem at one place."""
        return cls([{"loc": list(location), "msg": message, "type": kind}])

    def body(self) -> dict[str, Any]:
        """The validation body of the interface, section 2.7."""
        return {"detail": self.detail}


def _sentence(item: dict[str, Any]) -> str:
    """What is wrong, behind the name of the field: `messages.0.role: Field required`."""
    place = list(item.get("loc", ()))[1:]
    is_named = any(isinstance(part, str) for part in place)
    return f"{'.'.join(map(str, place))}: {item.get('msg')}" if is_named else str(item.get("msg"))


class InvalidField(HeddleError):
    """A field that a query or a sort cannot use."""

    status = 422


class Busy(HeddleError):
    """Back-pressure or a rate limit."""

    status = 429

    def __init__(self, reason: str, retry_after: int = 1) -> None:
        super().__init__(reason, headers={"Retry-After": str(retry_after)})


class QuotaReached(Busy):
    """A project or key has used up what it may send in a period; jobs go on in the next."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason, retry_after)
        self.retry_after = retry_after


class ExtraMissing(HeddleError):
    """An optional part is not installed; the reason names the pip line."""

    status = 501


class Unavailable(HeddleError):
    """The store or a service does not answer at the moment."""

    status = 503

    def __init__(self, reason: str, retry_after: int = 1) -> None:
        super().__init__(reason, headers={"Retry-After": str(retry_after)})


class Damaged(Unavailable):
    """What is stored is no more what was written."""

    def __init__(self, what: object) -> None:
        super().__init__(f"What is stored is damaged (heddle check names it): {what}")


class QueryTimeout(HeddleError):
    """A query ran longer than its deadline."""

    status = 504

    def __init__(self) -> None:
        super().__init__("The query ran longer than the setting query_timeout allows")


class StorageFull(HeddleError):
    """The disk or the configured limit is full; nothing of the request was stored."""

    status = 507

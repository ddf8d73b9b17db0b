"""Every failure that heddle answers, as one tree; each knows its HTTP status and its body.

HeddleError
├── InvalidRequest       400  a business rule, a bad ref, a bad value
├── NotAuthenticated     401  no key, or an unknown or revoked one
├── Forbidden            403  the key's scope or binding does not reach that far
├── NotFound             404  what the request names does not exist (or was deleted)
├── RequestTimeout       408  the body did not come in time
├── Conflict             409  the digest that the client computed is another one
├── TooLarge             413  over a limit of the settings, which the reason names
├── UnsupportedMedia     415  a body of a type or an encoding that the route does not read
├── ValidationFailed     422  `detail` list: a field is missing or has the wrong type
├── InvalidField         422  `reason`: an unknown field in a query or sort
├── Busy                 429  back-pressure or a rate limit; Retry-After
├── ExtraMissing         501  an optional part is not installed; names the pip line
├── Unavailable          503  the store or a service does not answer now
├── QueryTimeout         504  a query ran longer than its deadline
└── StorageFull          507  the disk (or the configured limit) is full; nothing was stored
"""

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
    """A request that is well-formed and still cannot be done."""

    status = 400


class NotAuthenticated(HeddleError):
    """Nobody could be recognised behind the request."""

    status = 401

    def __init__(self, reason: str, scheme: str = "Basic") -> None:
        super().__init__(reason, headers={"WWW-Authenticate": f'{scheme} realm="heddle"'})


class Forbidden(HeddleError):
    """The caller is known and may not do this."""

    status = 403


class NotFound(HeddleError):
    """What the request names is not there."""

    status = 404


class RequestTimeout(HeddleError):
    """The client took too long to send its request."""

    status = 408


class Conflict(HeddleError):
    """A digest mismatch; never heals, so clients must not retry it."""

    status = 409

    def __init__(self, reason: str) -> None:
        super().__init__(reason, headers={"x-should-retry": "false"})


class TooLarge(HeddleError):
    """Over a limit of the settings."""

    status = 413


class UnsupportedMedia(HeddleError):
    """A body of a type or an encoding that is not read here."""

    status = 415


class ValidationFailed(HeddleError):
    """The request's shape is wrong; `detail` items are `{loc, msg, type}`."""

    status = 422

    def __init__(self, detail: Sequence[dict[str, Any]]) -> None:
        super().__init__("; ".join(str(item.get("msg")) for item in detail))
        self.detail = list(detail)

    def __reduce__(self) -> tuple[type["ValidationFailed"], tuple[list[dict[str, Any]]]]:
        """Processes hand failures on to each other."""
        return type(self), (self.detail,)

    @classmethod
    def at(cls, location: Sequence[str | int], message: str, kind: str = "value_error") -> "ValidationFailed":
        """One problem at one place."""
        return cls([{"loc": list(location), "msg": message, "type": kind}])

    def body(self) -> dict[str, Any]:
        """The validation body of the interface, section 2.7."""
        return {"detail": self.detail}


class InvalidField(HeddleError):
    """A field that a query or a sort cannot use."""

    status = 422


class Busy(HeddleError):
    """Too much waits already."""

    status = 429

    def __init__(self, reason: str, retry_after: int = 1) -> None:
        super().__init__(reason, headers={"Retry-After": str(retry_after)})


class ExtraMissing(HeddleError):
    """An optional part of heddle is not installed."""

    status = 501


class Unavailable(HeddleError):
    """Something that is needed does not answer at the moment."""

    status = 503

    def __init__(self, reason: str, retry_after: int = 1) -> None:
        super().__init__(reason, headers={"Retry-After": str(retry_after)})


class QueryTimeout(HeddleError):
    """A query ran longer than its deadline."""

    status = 504


class StorageFull(HeddleError):
    """There is no room left; nothing of the request was stored."""

    status = 507

"""Lists as the API of Langfuse has them: conditions, pages counted from 1, with totals; names and templates."""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import Query, Response

from heddle.errors import InvalidRequest
from heddle.http.routing import answer
from heddle.trace.objects import MAX_NAME
from heddle.wire import times
from heddle.wire.jsontypes import Json

T = TypeVar("T")
Page = Annotated[int, Query(ge=1, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=100)]


@dataclass(slots=True)
class Conditions:
    """What is chosen: conditions of a query that all hold; None is no condition."""

    conditions: list[Json] = field(default_factory=list)

    def path(self, name: str) -> str:
        """Where the field of a name lies."""
        return name

    def compare(self, operator: str, name: str, value: Any) -> None:
        """A field compares so with a value."""
        if value is not None:
            self.conditions.append({operator: [{"$getField": self.path(name)}, {"$literal": value}]})

    def equals(self, name: str, value: Any) -> None:
        """A field has a value."""
        self.compare("$eq", name, value)

    def among(self, name: str, values: Sequence[Any] | None) -> None:
        """A field has one of some values."""
        if values is not None:
            literals = [{"$literal": value} for value in values]
            self.conditions.append({"$in": [{"$getField": self.path(name)}, literals]})

    def within(self, name: str, first: datetime | None, end: datetime | None) -> None:
        """An instant lies in `[first, end)`."""
        for operator, moment in (("$gte", first), ("$lt", end)):
            self.compare(operator, name, None if moment is None else times.to_iso(times.to_micros(moment)))


def meta(page: int, limit: int, total: int) -> Json:
    """What is said of a page."""
    return {"page": page, "limit": limit, "totalItems": total, "totalPages": -(-total // limit)}


def cut(items: Sequence[T], page: int, limit: int) -> Sequence[T]:
    """The items of a page."""
    return items[(page - 1) * limit : page * limit]


def to_cursor(offset: int) -> str:
    """The cursor of the page that begins there."""
    return base64.urlsafe_b64encode(f"from:{offset}".encode()).decode().rstrip("=")


def offset_of(cursor: str | None) -> int:
    """Where the page of a cursor begins; raises InvalidRequest for a text that is none."""
    if cursor is None:
        return 0
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    prefix, _, number = text.partition(":")
    if prefix != "from" or not number.isdecimal() or len(number) > 15:
        raise InvalidRequest("cursor: it is none of this interface", param="cursor")
    return int(number)


def answer_with(status: int, value: Json) -> Response:
    """An answer of a status of its own."""
    made = answer(value)
    made.status_code = status
    return made


_NO_OBJECT_NAME = re.compile(r"[^\w.-]")
_HASHED = 12
_VARIABLE = re.compile(r"\{\{(\w+)\}\}|[{}]")
_FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def object_id(name: str) -> str:
    """The object that a name means; names that no object can have (`folder/prompt`) get a suffix of their own."""
    safe = _NO_OBJECT_NAME.sub("-", name)
    if safe == name and 0 < len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASHED]
    return f"{safe[: MAX_NAME - _HASHED - 1]}-{digest}"


def to_template(text: str) -> str:
    """A text with `{{variable}}` as one with `{variable}`, in which single braces are doubled."""
    return _VARIABLE.sub(lambda match: f"{{{match[1]}}}" if match[1] else match[0] * 2, text)


def from_template(text: str) -> str:
    """The same backwards."""
    return _FIELD.sub(lambda match: f"{{{{{match[1]}}}}}" if match[1] else match[0][0], text)

"""What every /v2 route shares: path parts, bodies, refs in them, line streams."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from pydantic import BaseModel, TypeAdapter

from heddle.errors import InvalidRequest
from heddle.http.routing import not_negative, off_loop, validate
from heddle.wire import jsontext, refs

B = TypeVar("B", bound=BaseModel)

_NO_LETTER = re.compile(r"[^\w.-]")

Entity = Annotated[str, Path()]
Project = Annotated[str, Path()]
Limit = Annotated[int | None, Query()]
Offset = Annotated[int | None, Query()]
Names = Annotated[list[str] | None, Query()]


def object_id(name: str | None, default: str) -> str:
    """The object that a name means: blanks and slashes as `_`, other signs dropped, in lower case."""
    return _NO_LETTER.sub("", re.sub(r"[ /]", "_", name)).lower() if name else default


async def read_body(request: Request, model: type[B], keep_non_finite: bool = False) -> B:
    """The typed body with its refs as they were sent; no body is an empty one. Raises ValidationFailed."""
    body = await request.body()
    return await off_loop(
        len(body), lambda: validate(TypeAdapter(model), jsontext.loads(body or b"{}", keep_non_finite))
    )


def to_external(value: Any) -> Any:
    """A stored value with its refs in external form, to be written again."""
    return jsontext.loads(refs.convert_out(jsontext.dumps_bytes(value)))


def parse_ref(text: str) -> refs.Ref | None:
    """The ref that a text in either form is, None for any other text; raises InvalidRequest for a malformed ref."""
    if not text.startswith((refs.EXTERNAL, refs.INTERNAL)):
        return None
    return refs.parse(refs.to_internal(text) if text.startswith(refs.EXTERNAL) else text)


def internal_ref(text: str, field: str, kinds: tuple[str, ...] = ("object",)) -> refs.Ref:
    """The ref behind a text in either form; raises InvalidRequest when it is none of those kinds."""
    ref = parse_ref(text)
    if ref is None or ref.kind not in kinds or ref.edges:
        raise InvalidRequest(f"{field} must be a ref of {' or '.join(f'an {kind}' for kind in kinds)}: {text[:300]!r}")
    return ref


def check_page(limit: int | None, offset: int | None) -> tuple[int | None, int]:
    """Limit and offset of a list; raises InvalidRequest for negative ones."""
    return not_negative(limit, "limit"), not_negative(offset, "offset") or 0


async def fetch_first(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same stream with its first chunk fetched already, so that a failure is answered as one."""
    first = await anext(chunks, b"")

    async def stream() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return stream()

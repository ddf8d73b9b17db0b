"""What the values of a page say that a browser cannot read itself: targets of refs, messages of any library."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import orjson
from fastapi import Response
from pydantic import Field

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.routing import ProjectReq, Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.trace.refs import RefReader, fill_refs
from heddle.wire import jsontext, refs
from heddle.wire.calls import CallsQuery, Filter
from heddle.wire.conversation.call import of_value
from heddle.wire.jsontypes import Json

router = group("Pages")

_MOST_ROWS = 50
_LARGEST = 1_000_000


class ReadValues(ProjectReq):
    """Refs to follow, and values that may be messages."""

    refs: Annotated[list[str], Field(max_length=200)] = Field(default_factory=list)
    values: Annotated[list[Any], Field(max_length=50)] = Field(default_factory=list)


@router.post("/_ui/api/values", include_in_schema=False)
async def read_values(body: ReadValues, caller: Reader, store: StoreDep) -> Response:
    """For each ref its `value`, `call` or `table`, null for a dead one; for each value its conversation or null."""
    project = caller.open(body.project_id)
    targets = [_readable(text, caller) for text in body.refs]
    known: dict[refs.Ref, Json] = {}
    objects = [ref for ref in targets if ref is not None and ref.kind in ("object", "op") and ref.version != "latest"]
    objects = list(dict.fromkeys(objects))
    found = await RefReader(store, is_strict=False).read(objects)
    for ref, text in zip(objects, await asyncio.to_thread(lambda: [*map(jsontext.dumps_bytes, found)]), strict=True):
        if text != b"null":
            known[ref] = {"is_large": True} if len(text) > _LARGEST else {"value": orjson.Fragment(text)}
    known |= await _calls(store, [ref for ref in targets if ref is not None and ref.kind == "call"])
    for table in {ref for ref in targets if ref is not None and ref.kind == "table"}:
        known |= await _table(store, table)
    values = await fill_refs(store, project, body.values)
    said = await asyncio.to_thread(lambda: [found and asdict(found) for found in map(of_value, values)])
    return answer({"refs": [known.get(ref) if ref else None for ref in targets], "values": said})


def _readable(text: str, caller: Caller) -> refs.Ref | None:
    try:
        ref = refs.parse(text)
    except InvalidRequest:
        return None
    owner = refs.external_project(ref.project)
    return ref if owner is not None and caller.may_read(owner) else None


async def _calls(store: Store, wanted: list[refs.Ref]) -> dict[refs.Ref, Json]:
    """The name and the trace of calls."""
    found: dict[refs.Ref, Json] = {}
    for project in {ref.project for ref in wanted}:
        by_id = {ref.name: ref for ref in wanted if ref.project == project}
        query = CallsQuery(project, Filter(call_ids=tuple(by_id)), columns=frozenset())
        async for rows in store.calls.stream(query):
            for row in rows:
                name = row.display_name or refs.operation_name(row.op_name)
                found[by_id[row.id]] = {"call": {"name": name, "trace_id": row.trace_id, "status": row.status}}
    return found


async def _table(store: Store, ref: refs.Ref) -> dict[refs.Ref, Json]:
    """How many rows a table has, and the first of them."""
    count = await store.tables.count(ref.project, ref.name)
    if count is None:
        return {}
    rows: list[Any] = []
    async for page in store.tables.pages(ref.project, ref.name, limit=_MOST_ROWS):
        rows += [orjson.Fragment(row.val) for row in page]
    return {ref: {"table": {"count": count, "rows": rows}}}

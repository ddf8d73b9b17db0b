"""Refs: reading what they point to, many at once, along paths that lead through further refs."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import orjson
from fastapi import APIRouter, Response

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound, TooLarge
from heddle.http.routing import Reader, RequestModel, ResponseModel, StoreDep, answer, group, local, off_loop
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallRow

MAX_REFS = 1000
MAX_HOPS = 100
MOST_BYTES = 128 << 20
_MOST_FILLED = 32 << 20
router: APIRouter = group("Refs")
Version = tuple[str, str, str]


class RefsReadBatchReq(RequestModel):
    """Body of /refs/read_batch."""

    refs: list[str]


class RefsReadBatchRes(ResponseModel):
    """One value per ref, in their order."""

    vals: list[Any]


@router.post("/refs/read_batch", response_model=RefsReadBatchRes)
@local
async def refs_read_batch(body: RefsReadBatchReq, caller: Reader, store: StoreDep) -> Response:
    """The values of object and op refs; a path that leads nowhere reads as null."""
    if len(body.refs) > MAX_REFS:
        raise InvalidRequest(f"Too many refs: {len(body.refs)}, at most {MAX_REFS} are allowed")
    targets = await off_loop(sum(map(len, body.refs)), lambda: [readable(text, caller) for text in body.refs])
    values = await RefReader(store).read(targets)
    return answer({"vals": await asyncio.to_thread(_write_values, values)})


def _write_values(values: Sequence[Any]) -> list[orjson.Fragment]:
    """The values as JSON, each written once; raises TooLarge for more than MOST_BYTES in all."""
    written: dict[int, bytes] = {}
    size = 0
    for value in values:
        if (text := written.get(id(value))) is None:
            text = written[id(value)] = orjson.dumps(value)
        size += len(text)
        if size > MOST_BYTES:
            raise TooLarge(f"Request too large: the values exceed {MOST_BYTES} bytes; ask for fewer refs")
    return [orjson.Fragment(written[id(value)]) for value in values]


def readable(text: str, caller: Caller) -> refs.Ref:
    """The parsed ref; raises InvalidRequest when it is none that can be read, Forbidden outside the caller's reach."""
    ref = refs.parse(text)
    if ref.kind not in ("object", "op"):
        raise InvalidRequest(f"{ref.kind.replace('_', ' ').capitalize()} refs not supported")
    if ref.version == "latest":
        raise InvalidRequest("Resolving references with `latest` is not supported")
    project = refs.external_project(ref.project)
    if project is None:
        raise InvalidRequest("Encountered unexpected internal ref format.")
    if not caller.may_read(project):
        raise Forbidden(f"The key of user '{caller.user}' does not have access to '{project}'")
    return ref


@dataclass(slots=True)
class _Walk:
    """One ref on its way: where it stands, and what is left of its path."""

    project: str
    edges: Sequence[refs.Edge]
    value: Any = None
    next_object: refs.Ref | None = None
    next_row: str | None = None
    hops: int = 0

    def advance(self) -> None:
        """Follow the path as far as it goes without reading anything more."""
        while self.edges and self.value is not None:
            if isinstance(self.value, str) and self.value.startswith(refs.INTERNAL):
                self._leave(self.value)
                return
            edge, part = self.edges[0]
            self.edges = self.edges[1:]
            self.value = refs.follow_edge(self.value, edge, part)

    def _leave(self, text: str) -> None:
        """Note what must be read before the path goes on; another project's values are never read."""
        ref = refs.try_parse(text)
        self.value, self.hops = None, self.hops + 1
        if ref is None or ref.project != self.project or self.hops > MAX_HOPS:
            return
        if ref.kind in ("object", "op"):
            self.next_object = ref
            self.edges = (*ref.edges, *self.edges)
        elif ref.kind == "table" and self.edges[0][0] == "id":
            self.next_row, self.edges = self.edges[0][1], self.edges[1:]


class RefReader:
    """Reads refs in rounds, each with one look-up per project for all refs that need one.

    Unless it is strict, what is missing reads as null.
    """

    def __init__(self, store: Store, is_strict: bool = True) -> None:
        self._store = store
        self._is_strict = is_strict
        self._contents: dict[Version, Any] = {}

    async def read(self, targets: Sequence[refs.Ref]) -> list[Any]:
        """Values in the order of the refs; raises NotFound naming the digests that no version has."""
        walks = [_Walk(ref.project, ref.edges, next_object=ref) for ref in targets]
        pending = walks
        while pending:
            await self._load(pending)
            for walk in pending:
                if walk.next_object is not None:
                    walk.value, walk.next_object = self._contents[_key(walk.next_object)], None
            await self._enter_rows([walk for walk in pending if walk.next_row is not None])
            for walk in pending:
                walk.advance()
            pending = [walk for walk in pending if walk.next_object is not None or walk.next_row is not None]
        return [walk.value for walk in walks]

    async def _load(self, walks: Sequence[_Walk]) -> None:
        by_project: dict[str, set[tuple[str, str]]] = {}
        for walk in walks:
            ref = walk.next_object
            if ref is not None and _key(ref) not in self._contents:
                by_project.setdefault(ref.project, set()).add((ref.name, ref.version))
        for project, wanted in by_project.items():
            found = await self._store.objects.contents(project, wanted)
            texts = [text or "null" for text in found.values()]
            values: list[Any] = await off_loop(sum(map(len, texts)), partial(list, map(orjson.loads, texts)))
            self._contents.update(((project, *name), value) for name, value in zip(found, values, strict=True))
        missing = {key for walk in walks if walk.next_object and (key := _key(walk.next_object)) not in self._contents}
        if not self._is_strict:
            self._contents.update(dict.fromkeys(missing))
        elif missing:
            names = sorted({version for _, _, version in missing})
            reason = f"Ref read contains {len(walks)} refs; missing object digests: {names}"
            raise NotFound(reason[:2000], missing_object_digests=names)

    async def _enter_rows(self, walks: Sequence[_Walk]) -> None:
        by_project: dict[str, set[str]] = {}
        for walk in walks:
            by_project.setdefault(walk.project, set()).add(walk.next_row or "")
        for project, digests in by_project.items():
            found = await self._store.tables.row_values(project, digests)
            unknown = sorted(digests - found.keys())
            if unknown and self._is_strict:
                raise NotFound(f"Row {unknown[0][:100]} not found")
            for walk in walks:
                if walk.project == project and walk.next_row is not None:
                    walk.value, walk.next_row = orjson.loads(found.get(walk.next_row, "null")), None


def _key(ref: refs.Ref) -> Version:
    return ref.project, ref.name, ref.version


async def fill_refs(store: Store, project: str, values: Sequence[Any]) -> list[Any]:
    """The values with rows, parts of objects and media of the project in the place of refs to them; other refs stay.

    All stay where what they lead to would make the values very large.
    """
    counts = Counter(text for value in values for text in refs.find(value))
    texts = list(islice(counts, MAX_REFS))
    parsed = {text: ref for text in texts if (ref := refs.try_parse(text)) and ref.project == project}
    known = {text: ref for text, ref in parsed.items() if ref.kind == "object"}
    if not known:
        return list(values)
    read = await RefReader(store, is_strict=False).read(list(known.values()))
    pairs = zip(known.items(), read, strict=True)
    found = {text: value for (text, ref), value in pairs if ref.edges or _is_custom(value)}
    size = await asyncio.to_thread(lambda: sum(counts[text] * len(orjson.dumps(found[text])) for text in found))
    # Many refs may lead to one large value.
    return [refs.replace(value, found) for value in values] if size <= _MOST_FILLED else list(values)


async def fill_bodies(store: Store, project: str, calls: Sequence[CallRow]) -> dict[str, tuple[Any, Any]]:
    """Inputs and output of those calls that hold refs, by id, with what the refs point to."""
    holding = [call for call in calls if refs.INTERNAL in (call.inputs or "") or refs.INTERNAL in (call.output or "")]
    texts = [text or "null" for call in holding for text in (call.inputs, call.output)]
    values = await off_loop(sum(map(len, texts)), lambda: [orjson.loads(text) for text in texts])
    filled = await fill_refs(store, project, values)
    return {call.id: (filled[2 * at], filled[2 * at + 1]) for at, call in enumerate(holding)}


def _is_custom(value: Any) -> bool:
    return isinstance(value, dict) and value.get("_type") == "CustomWeaveType"

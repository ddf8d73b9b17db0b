"""Calls as rows of ClickHouse, put together from halves that are brought, that waited, or are stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, listed, quoted
from heddle.store.control.pending_calls import FoundHalves, Half, Key, Waiting
from heddle.wire import calls, times
from heddle.wire.batched import batched, group_pairs
from heddle.wire.calls import RUNNING, End, Start, Usage
from heddle.wire.spans import AgentSpan

Row = tuple[Any, ...]
"""The values of the columns `COLUMNS`."""

_HEAD = ("project", "id", "deleted_at", "inserted_at", "version")
_START = [column for column in calls.COLUMNS if not column.of_end and column.name != "id"]
_END = [column for column in calls.COLUMNS if column.of_end]
_of_start, _of_end = (attrgetter(*(column.name for column in part)) for part in (_START, _END))
_STARTED = (*(column.name for column in _START), "size_in", "input_refs")
_ENDED = (*(column.name for column in _END), "size_out", "output_refs", *(f"usage_{name}" for name in Usage._fields))
COLUMNS = (*_HEAD, *_STARTED, *_ENDED, "files")
_IN_AT, _OUT_AT, _FILES_AT = len(_HEAD), len(_HEAD) + len(_STARTED), len(COLUMNS) - 1
_TRACE_AT, _STARTED_AT, _NAME_AT = map(_STARTED.index, ("trace_id", "started_at", "display_name"))
_ENDED_AT = _OUT_AT + _ENDED.index("ended_at")
_NOTHING: list[Any] = []
_NO_USAGE = (_NOTHING,) * len(Usage._fields)
_NO_END = (*(RUNNING if column.name == "status" else None for column in _END), 0, _NOTHING, *_NO_USAGE)
_NO_START = (*("" if column.is_required else None for column in _START), 0, _NOTHING)

_RUNNING_RANK, _ENDED_RANK, _DELETED_RANK = 0, 1, 2
_RANK_BITS = 56
_CLOCK = (1 << _RANK_BITS) - 1
MOVED = -1
"""`deleted_at` of the row at a position that the call has left."""


@dataclass(frozen=True, slots=True)
class Part:
    """One half as values of its columns, and its large fields that lie in files."""

    values: tuple[Any, ...]
    files: dict[str, str]

    def named(self, display_name: str) -> "Part":
        """A start with another display name."""
        return Part((*self.values[:_NAME_AT], display_name, *self.values[_NAME_AT + 1 :]), self.files)


_NOT_ENDED = Part(_NO_END, {})


@dataclass(frozen=True, slots=True)
class Position:
    """Where a row lies: rows of one position replace each other (a trace decides about the shard)."""

    started_at: int
    trace_id: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A row that is stored."""

    position: Position
    version: int
    deleted_at: int
    inserted_at: int
    start: Part
    end: Part | None


class Versions:
    """Numbers of rows: what is known of a call decides, then when the writing began.

    Rows that hide others are numbered as they are made, so that whoever began to write there before loses.
    """

    def __init__(self) -> None:
        self._last = 0

    def reserve(self, count: int) -> int:
        """The first of as many instants (microseconds) in a row that are nobody else's in this process."""
        first = max(self._last + 1, times.now())
        self._last = first + count - 1
        return first

    def of_move(self, above: int) -> int:
        """The version of the row at a position that a call has left, above one that was read."""
        return max(_ENDED_RANK << _RANK_BITS | self.reserve(1), above + 1)

    def of_deletion(self) -> int:
        """The version of a deletion: nothing replaces it."""
        return _DELETED_RANK << _RANK_BITS | self.reserve(1)


def version_of(has_ended: bool, number: int, above: int) -> int:
    """The version of a call that runs or has ended, whose writing began at an instant, above one that was read."""
    return max((_ENDED_RANK if has_ended else _RUNNING_RANK) << _RANK_BITS | number, above + 1)


def written_at(found: Stored) -> int:
    """The instant (microseconds) at which the writing of a row began."""
    return found.version & _CLOCK


def was_left(found: Iterable[Stored], position: Position, number: int) -> bool:
    """True where a call has left a position since the instant at which the writing began."""
    return any(row.deleted_at == MOVED and row.position == position and written_at(row) > number for row in found)


def part_of_start(start: Start) -> Part:
    """The columns of a start."""
    return Part((*_of_start(start), start.size, start.refs), start.files)


def part_of_end(end: End) -> Part:
    """The columns of an end."""
    usage = tuple(zip(*{entry.model: entry for entry in end.usage}.values(), strict=True)) if end.usage else _NO_USAGE
    return Part((*_of_end(end), end.size, end.refs, *usage), end.files)


def position_of(start: Part) -> Position:
    """Where a call with this start lies."""
    return Position(start.values[_STARTED_AT], start.values[_TRACE_AT])


def row(key: Key, start: Part, end: Part | None, inserted_at: int, version: int) -> Row:
    """The row of a live call."""
    ended = end or _NOT_ENDED
    return (*key, 0, inserted_at, version, *start.values, *ended.values, start.files | ended.files)


def hidden_row(key: Key, position: Position, deleted_at: int, version: int) -> Row:
    """A row that hides what lies at a position; it holds no texts."""
    start = list(_NO_START)
    start[_TRACE_AT], start[_STARTED_AT] = position.trace_id, position.started_at
    return (*key, deleted_at, 0, version, *start, *_NO_END, {})


def stored(values: Sequence[Any]) -> tuple[Key, Stored]:
    """The call that a row of `COLUMNS` tells."""
    project, call_id, deleted_at, inserted_at, version = values[:_IN_AT]
    files: dict[str, str] = values[_FILES_AT]
    started = {name: blob for name, blob in files.items() if name in calls.BODY_IN}
    start = Part(tuple(values[_IN_AT:_OUT_AT]), started)
    ended = {name: blob for name, blob in files.items() if name not in calls.BODY_IN}
    end = Part(tuple(values[_OUT_AT:_FILES_AT]), ended) if values[_ENDED_AT] is not None else None
    return (project, call_id), Stored(position_of(start), version, deleted_at, inserted_at, start, end)


_KEYS = 2000
_BODIES = 200
Spot = tuple[str, int, str]
"""Project, start (microseconds) and id: the order in which calls lie."""


async def find_spots(clickhouse: Clickhouse, keys: Iterable[Key]) -> list[Spot]:
    """Everywhere that the calls lie or have lain, also those that were deleted."""
    found: list[Spot] = []
    for project, ids in group_pairs(keys).items():
        for part in batched(ids, _KEYS):
            query = f"SELECT DISTINCT project, started_at, id FROM {CALL_KEYS}"
            query += f" WHERE project = {quoted(project)} AND id IN {listed(part)}"
            found.extend((row[0], row[1], row[2]) for row in await clickhouse.rows(query))
    return found


def at_spots(spots: Sequence[Spot]) -> str:
    """The condition that reads these spots of the calls and hardly anything else."""
    starts = [spot[1] for spot in spots]
    return f"(project, started_at, id) IN {listed(spots)} AND started_at BETWEEN {min(starts)} AND {max(starts)}"


async def find_stored(clickhouse: Clickhouse, keys: Iterable[Key]) -> dict[Key, list[Stored]]:
    """The rows of the calls, more than one where a call has moved; unknown calls are left out."""
    found: dict[Key, list[Stored]] = {}
    for part in batched(await find_spots(clickhouse, keys), _BODIES):
        query = f"SELECT {', '.join(COLUMNS)} FROM {CALLS} FINAL WHERE {at_spots(part)}"
        for values in await clickhouse.rows(query):
            key, row = stored(values)
            found.setdefault(key, []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """What one request writes; `names` are new display names of calls.

    With `is_missing_only` halves that are there already stay; `added` are then the calls of which one was taken.
    """

    starts: Sequence[Start] = ()
    ends: Sequence[End] = ()
    agents: Sequence[AgentSpan] = ()
    names: Sequence[tuple[Key, str]] = ()
    is_missing_only: bool = False
    added: set[Key] = field(default_factory=set)


@dataclass(slots=True)
class Batch:
    """The halves of a group, of each call the last of a kind, and display names for calls whose start is not here."""

    starts: dict[Key, Start] = field(default_factory=dict)
    ends: dict[Key, End] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)
    agents: list[AgentSpan] = field(default_factory=list)

    def add(self, change: Change) -> None:
        """Take what comes after all that is here."""
        for start in change.starts:
            key = start.project, start.id
            self.starts[key] = start
            self.names.pop(key, None)
        for end in change.ends:
            self.ends[end.project, end.id] = end
        for key, name in change.names:
            if key in self.starts:
                self.starts[key] = replace(self.starts[key], display_name=name)
            else:
                self.names[key] = name
        self.agents.extend(change.agents)

    def add_missing(
        self, change: Change, found: Mapping[Key, Sequence[Stored]], waiting: Mapping[Key, Waiting]
    ) -> None:
        """Take the halves that are neither here nor among what is `found` or `waiting`; none of deleted calls."""
        halves: list[Half] = [*change.starts, *change.ends]
        for half in halves:
            key = half.project, half.id
            rows = found.get(key, ())
            live = [row for row in rows if not row.deleted_at]
            is_here = key in (self.starts if isinstance(half, Start) else self.ends)
            is_stored = any(isinstance(half, Start) or row.end is not None for row in live)
            waits = key in waiting and type(waiting[key].half) is type(half)
            if is_here or is_stored or waits or any(row.deleted_at > 0 for row in rows):
                continue
            change.added.add(key)
            if isinstance(half, Start):
                self.starts[key] = half
            else:
                self.ends[key] = half

    def single(self) -> dict[Key, Half]:
        """The halves whose other half is not here."""
        found: dict[Key, Half] = {key: start for key, start in self.starts.items() if key not in self.ends}
        found.update((key, end) for key, end in self.ends.items() if key not in self.starts)
        return found

    def keys(self) -> list[Key]:
        """The calls that are concerned."""
        return list(dict.fromkeys((*self.starts, *self.ends, *self.names)))

    def only(self, keys: Iterable[Key]) -> "Batch":
        """The halves of some of the calls."""
        wanted = set(keys)
        return Batch(
            {key: start for key, start in self.starts.items() if key in wanted},
            {key: end for key, end in self.ends.items() if key in wanted},
        )


@dataclass(slots=True)
class Outcome:
    """What a group comes to.

    `settled` are calls whose half need not wait any more, and at which revision (None: whichever there is); `whole`
    those that are whole and were written to; `positions` where calls lie now.
    """

    rows: list[Row] = field(default_factory=list)
    settled: dict[Key, int | None] = field(default_factory=dict)
    whole: list[Key] = field(default_factory=list)
    positions: dict[Key, Position] = field(default_factory=dict)


class Assembly:
    """One group: its halves, what they met, and what is stored of the calls that may be stored already.

    `left` are positions that calls were just written to, before it showed that they lie elsewhere; `first` is the
    number (the instant at which the writing began) of the first call, those after it follow.
    """

    def __init__(
        self,
        batch: Batch,
        met: FoundHalves,
        found: Mapping[Key, Sequence[Stored]],
        left: Mapping[Key, Position],
        first: int,
    ) -> None:
        self._batch = batch
        self._met = met
        self._found = found
        self._left = left
        self._first = first
        self._outcome = Outcome()

    def assemble(self, versions: Versions) -> Outcome:
        """The rows of all calls of the group."""
        for number, key in enumerate(self._batch.keys(), self._first):
            self._add(key, number, versions)
        return self._outcome

    def _add(self, key: Key, number: int, versions: Versions) -> None:
        found = self._found.get(key, ())
        live = max((row for row in found if not row.deleted_at), key=lambda row: row.version, default=None)
        if any(row.deleted_at > 0 for row in found):
            self._settle(key, live)
            return
        start, end = self._start(key, live), self._end(key, live)
        if start is None:
            return
        if end is not None:
            self._settle(key, live)
            if key in self._batch.starts or key in self._batch.ends:
                self._outcome.whole.append(key)
        position = position_of(start)
        if end is None and was_left(found, position, number):
            return  # Another server moved it: its start counts.
        self._outcome.positions[key] = position
        above = self._hide(key, position, found, versions)
        inserted_at = live.inserted_at if live else self._met.inserted_at.get(key, number)
        version = version_of(end is not None, number, above)
        self._outcome.rows.append(row(key, start, end, inserted_at, version))

    def _start(self, key: Key, live: Stored | None) -> Part | None:
        waiting = self._waiting(key)
        start = self._batch.starts.get(key) or (waiting if isinstance(waiting, Start) else None)
        part = part_of_start(start) if start else live.start if live else None
        name = self._batch.names.get(key)
        return part.named(name) if part and name is not None else part

    def _end(self, key: Key, live: Stored | None) -> Part | None:
        end = self._batch.ends.get(key)
        waiting = self._met.before.get(key)
        if end is None and waiting is not None and isinstance(waiting.half, End):
            # A whole call that came meanwhile did not look for it.
            is_older = live is not None and live.end is not None and waiting.revision < written_at(live)
            end = None if is_older else waiting.half
        return part_of_end(end) if end else live.end if live else None

    def _waiting(self, key: Key) -> Half | None:
        found = self._met.before.get(key)
        return found.half if found else None

    def _settle(self, key: Key, live: Stored | None) -> None:
        """The half of a call need not wait any more; one that is stored already may have left its start there."""
        if key in self._met.revisions:
            self._outcome.settled[key] = self._met.revisions[key]
        elif live is not None:
            self._outcome.settled[key] = None

    def _hide(self, key: Key, position: Position, found: Sequence[Stored], versions: Versions) -> int:
        """Hide what the call has left at other positions; returns the version above which its row must be."""
        earlier = {row.position for row in found if not row.deleted_at}
        waiting = self._waiting(key)
        if isinstance(waiting, Start):
            earlier.add(position_of(part_of_start(waiting)))
        if key in self._left:
            earlier.add(self._left[key])
        above = max((row.version for row in found), default=0)
        for other in earlier - {position}:
            version = versions.of_move(above)
            self._outcome.rows.append(hidden_row(key, other, MOVED, version))
            # The same key in another shard, but on one node the same row.
            above = max(above, version) if other.started_at == position.started_at else above
        return above

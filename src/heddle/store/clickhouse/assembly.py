"""Putting calls together: from halves that are brought, halves that waited, and what is stored, to rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heddle.store.clickhouse import rows
from heddle.store.clickhouse.rows import Part, Position, Row, Stored, Versions
from heddle.store.control.call_halves import Half, Key, Met
from heddle.wire.calls import End, Start
from heddle.wire.spans import AgentSpan


@dataclass(frozen=True, slots=True)
class Change:
    """What one request writes; `names` are new display names of calls."""

    starts: Sequence[Start] = ()
    ends: Sequence[End] = ()
    agents: Sequence[AgentSpan] = ()
    names: Sequence[tuple[Key, str]] = ()


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
        self, batch: Batch, met: Met, found: Mapping[Key, Sequence[Stored]], left: Mapping[Key, Position], first: int
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
        position = rows.position_of(start)
        if end is None and rows.was_left(found, position, number):
            return  # Another server moved it: its start counts.
        self._outcome.positions[key] = position
        above = self._hide(key, position, found, versions)
        inserted_at = live.inserted_at if live else self._met.inserted_at.get(key, number)
        version = rows.version_of(end is not None, number, above)
        self._outcome.rows.append(rows.row(key, start, end, inserted_at, version))

    def _start(self, key: Key, live: Stored | None) -> Part | None:
        waiting = self._waiting(key)
        start = self._batch.starts.get(key) or (waiting if isinstance(waiting, Start) else None)
        part = rows.part_of_start(start) if start else live.start if live else None
        name = self._batch.names.get(key)
        return part.named(name) if part and name is not None else part

    def _end(self, key: Key, live: Stored | None) -> Part | None:
        end = self._batch.ends.get(key)
        waiting = self._met.before.get(key)
        if end is None and waiting is not None and isinstance(waiting.half, End):
            # A whole call that came meanwhile did not look for it.
            is_older = live is not None and live.end is not None and waiting.revision < rows.written_at(live)
            end = None if is_older else waiting.half
        return rows.part_of_end(end) if end else live.end if live else None

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
            earlier.add(rows.position_of(rows.part_of_start(waiting)))
        if key in self._left:
            earlier.add(self._left[key])
        above = max((row.version for row in found), default=0)
        for other in earlier - {position}:
            version = versions.of_move(above)
            self._outcome.rows.append(rows.hidden_row(key, other, rows.MOVED, version))
            # The same key in another shard, but on one node the same row.
            above = max(above, version) if other.started_at == position.started_at else above
        return above

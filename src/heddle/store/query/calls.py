"""Calls as queries see them: fields, filter and order, as far as they are the same in every store.

A store says how it keeps the fields; statements name the table of calls `c`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.store.query.compiler import Dialect, JsonValue, Kind, Value, balanced, contained
from heddle.wire import refs
from heddle.wire.call_fields import MULTI_VALUE_FEEDBACK, CallField, resolve_field
from heddle.wire.call_fields import FieldKind as FieldKind
from heddle.wire.calls import STATUS_WORDS, CallsQuery, Filter, SortTerm, ThreadRow
from heddle.wire.query import Scalar

Position = tuple[int, str]
"""Start and id of a call, by which pages are continued."""
_Turn = tuple[str, int, int | None]
DEFAULT_ORDER = (SortTerm("started_at", False), SortTerm("id", False))


class CallTable(ABC):
    """Resolves the fields of calls for one query."""

    status: str
    latency: str
    label: str
    """The SQL of the status word, of the latency in whole milliseconds, and of the name that people read of an op."""
    call: str
    """The SQL that tells calls apart where sums go over calls and models."""

    def __init__(self, dialect: Dialect, query: CallsQuery) -> None:
        self.dialect = dialect
        self.query = query
        self.project = query.project
        self.fields: list[CallField] = []

    @abstractmethod
    def column(self, name: str) -> str:
        """The SQL of a column, named as in records."""

    @abstractmethod
    def json_column(self, name: str) -> str:
        """The SQL of the text of a JSON column."""

    @abstractmethod
    def referenced(self, above: JsonValue, path: tuple[str, ...]) -> str:
        """The SQL of the JSON text that a ref at a path leads to; null where no ref is, as in Weave."""

    @abstractmethod
    def feedback(self, item: CallField) -> Value:
        """The first feedback row of a call; empty text where there is none."""

    @abstractmethod
    def queue(self) -> str:
        """The SQL of the first annotation queue that a call is in."""

    @abstractmethod
    def has_ref(self, name: str, ref: str | None) -> str:
        """The condition that a call names a ref, or any (None)."""

    @abstractmethod
    def in_queue(self, queues: Sequence[str]) -> str:
        """The condition that a call is in any of some annotation queues."""

    @abstractmethod
    def feedback_text(self, item: CallField) -> str:
        """The SQL of the value of one feedback row as text; a missing one is empty."""

    def feedback_test(self, item: CallField, test: str, text: str) -> str:
        """The condition of `any_feedback` on one row."""
        value, constant = self.feedback_text(item), self.dialect.bound.value(text)
        return f"{value} = {constant}" if test == "=" else contained(self.dialect, value, constant, test == "folded")

    @abstractmethod
    def any_feedback(self, item: CallField, test: str, text: str) -> str:
        """The condition that any feedback row equals (`=`), `contains` or, whatever the case, contains (`folded`)."""

    @abstractmethod
    def no_feedback(self, item: CallField) -> str:
        """The condition that a call has no feedback row with the value."""

    @abstractmethod
    def among_names(self, column: str, names: Sequence[str]) -> str:
        """The condition that a column of repeated texts is one of exact names and of `...:*` wildcards."""

    @abstractmethod
    def names_refs(self, column: str, names: Sequence[str]) -> str:
        """The condition that a call names any of some refs and of `...:*` wildcards."""

    def equals_names(self, column: str, texts: Sequence[str]) -> str | None:  # noqa: ARG002
        """An equality with one of some repeated texts that is answered better than by the field's own SQL."""
        return None

    @property
    def external(self) -> str:
        """The project as clients name it."""
        return refs.external_project(self.project) or ""

    def resolve(self, path: str) -> Value:
        """The value of a field path; raises InvalidField for one that calls lack."""
        return self.value(resolve_field(path))

    def value(self, item: CallField) -> Value:
        """The value of a field."""
        self.fields.append(item)
        members = CallMembers(self, item)
        match item.kind:
            case FieldKind.JSON:
                return Value(Kind.JSON, json=self.json(item))
            case FieldKind.FEEDBACK:
                return self.feedback(item)
            case FieldKind.REFS:
                return Value(Kind.REFS, "NULL", members=members)
            case FieldKind.QUEUE:
                return Value(Kind.TEXT, self.queue(), members=members)
            case FieldKind.TIME if item.column == "expire_at":
                kept = self.query.retention
                at = None if kept is None else f"({self.column('started_at')} + {kept})"
                return Value(Kind.INSTANT, at or self.column("expire_at"))
            case FieldKind.TIME | FieldKind.NUMBER:
                kind = Kind.INSTANT if item.kind is FieldKind.TIME else Kind.NUMBER
                return Value(kind, self.column(item.column))
            case FieldKind.COMPUTED if item.column == "latency_ms":
                return Value(Kind.NUMBER, self.latency)
            case FieldKind.COMPUTED if item.column == "trace_name":
                return Value(Kind.TEXT, f"coalesce(nullif(c.display_name, ''), {self.label})")
            case FieldKind.COMPUTED:
                return Value(Kind.TEXT, self.status, members=members)
        return Value(Kind.TEXT, self.column(item.column), members=members)

    def json(self, item: CallField) -> JsonValue:
        """A JSON column and a path; where that runs through an expanded column, the value behind the ref there."""
        path, *others = item.spellings
        found = JsonValue(self.dialect, self.json_column(item.column), path, others=tuple(others))
        full, taken = (item.column, *item.path), 1
        for column in expanded(item, self.query.expand):
            above = JsonValue(self.dialect, found.source, nullable=found.nullable)
            source = self.referenced(above, column[taken:])
            found, taken = JsonValue(self.dialect, source, full[len(column) :], True), len(column)
        return found

    def order(self, term: SortTerm) -> list[str]:
        """The sort keys of a field: nulls last both ways; JSON and feedback by presence, then as number, as text."""
        direction = "DESC" if term.descending else "ASC"
        item = resolve_field(term.field)
        value = self.value(item)
        if item.kind is FieldKind.FEEDBACK:
            text = value.sql or (value.json.read("text") if value.json else "''")
            number = self.dialect.reread(text, "double")
            return [f"({text} <> '') DESC", f"{number} {direction} NULLS LAST", f"{text} {direction}"]
        if value.json is not None:
            keys = [f"{value.json.read(reading)} {direction} NULLS LAST" for reading in ("double", "text")]
            return [f"coalesce({value.json.read('present')}, 0) DESC", *keys]
        nulls = "" if value.sql in ("c.started_at", "c.id") else " NULLS LAST"
        return [f"{value.sql} {direction}{nulls}"]

    def filter(self, chosen: Filter) -> list[str]:
        """The conditions of a filter."""
        conditions = []
        for column, listed in (("op_name", chosen.op_names), ("user", chosen.user_ids)):
            if listed:
                conditions.append(self.among_names(column, listed))
        for column, listed in (("input_refs", chosen.input_refs), ("output_refs", chosen.output_refs)):
            if listed:
                conditions.append(self.names_refs(column, listed))
        texts = {
            "parent_id": chosen.parent_ids or None,
            "trace_id": chosen.trace_ids or None,
            "id": chosen.call_ids or None,
            "run_id": chosen.run_ids or None,
            "thread_id": chosen.thread_ids,
            "turn_id": chosen.turn_ids,
        }
        for column, values in texts.items():
            if values is not None:
                one = f"c.{column} = {self.dialect.bound.value(values[0])}" if len(values) == 1 else ""
                many = f"c.{column} IN {self.dialect.bound.values(values)}" if values else "0"
                conditions.append(one or many)
        if chosen.roots_only:
            conditions.append("c.parent_id IS NULL")
        return conditions


@dataclass(frozen=True, slots=True)
class CallMembers:
    """Tests of refs, queues, feedback of many rows, and of texts that are kept as numbers."""

    table: CallTable
    item: CallField

    def equals(self, constants: Sequence[Scalar]) -> str | None:
        texts = [constant for constant in constants if isinstance(constant, str)]
        if self.item.kind is FieldKind.REFS:
            tests = [self.table.has_ref(self.item.column, text) for text in texts]
            return balanced(tests, "OR") if tests else "0"
        if self.item.kind is FieldKind.QUEUE:
            return self.table.in_queue(texts) if texts else "0"
        if len(constants) != 1:
            return self.table.equals_names(self.item.column, texts) if texts else None
        if self.item.kind is FieldKind.FEEDBACK:
            return self.table.any_feedback(self.item, "=", texts[0]) if texts else "0"
        if self.item.column == "status":
            # As the number itself: an index of failed calls serves it.
            word = constants[0]
            return f"(c.status = {STATUS_WORDS.index(word) if word in STATUS_WORDS else len(STATUS_WORDS)})"
        return self.table.equals_names(self.item.column, texts) if texts else None

    def contains(self, text: Scalar, folded: bool) -> str | None:
        if self.item.kind is FieldKind.REFS:
            return self.equals([text])
        if self.item.kind is FieldKind.FEEDBACK:
            test = "folded" if folded else "contains"
            return self.table.any_feedback(self.item, test, text) if isinstance(text, str) else "0"
        return None

    def missing(self) -> str | None:
        if self.item.kind is FieldKind.REFS:
            return f"(NOT {self.table.has_ref(self.item.column, None)})"
        return self.table.no_feedback(self.item) if self.item.kind is FieldKind.FEEDBACK else None


def feedback_members(table: CallTable, item: CallField) -> CallMembers | None:
    """The tests of feedback of a type of which a call can have many rows."""
    return CallMembers(table, item) if item.feedback_type in MULTI_VALUE_FEEDBACK else None


def expanded(item: CallField, expand: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The columns with refs that are followed which a path runs through, the shortest first."""
    full = (item.column, *item.path)
    return sorted(
        {column for column in expand if 1 < len(column) < len(full) and full[: len(column)] == column}, key=len
    )


@dataclass(slots=True)
class Selection:
    """WHERE and ORDER BY of a calls query; `keyset` is the direction of an order by (started_at, id) alone."""

    table: CallTable
    where: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    keyset: str = ""

    def sort(self, sort: tuple[SortTerm, ...] | None) -> None:
        """Order by some terms, made total: `id` comes last in the direction of a last started_at, else descending."""
        terms = DEFAULT_ORDER if sort is None else sort
        if terms and not any(term.field == "id" for term in terms):
            terms = (*terms, SortTerm("id", terms[-1].descending if terms[-1].field == "started_at" else True))
        self.order = [key for term in terms for key in self.table.order(term)]
        if [term.field for term in terms] == ["started_at", "id"] and terms[0].descending == terms[1].descending:
            self.keyset = "<" if terms[0].descending else ">"

    def behind(self, position: Position | None) -> str:
        """The condition that continues a keyset order behind a position; empty without one."""
        if not self.keyset or position is None:
            return ""
        bound = self.table.dialect.bound
        started_at, call_id = bound.value(position[0]), bound.value(position[1])
        then = f"(c.started_at {self.keyset} {started_at} OR c.id {self.keyset} {call_id})"
        return f"c.started_at {self.keyset}= {started_at} AND {then}"

    def source(self) -> str:
        """What stands behind FROM."""
        return "calls c"

    def head(self) -> str:
        """What stands before SELECT."""
        return ""

    def sql(self, columns: str, extra: str = "", order: bool = True, group: str = "", joins: str = "") -> str:
        """The whole SELECT; `extra` is one more condition, `joins` stand behind the table of calls."""
        conditions = " AND ".join([*self.where, extra] if extra else self.where)
        grouped = f" GROUP BY {group}" if group else ""
        ordered = f" ORDER BY {', '.join(self.order)}" if order and self.order else ""
        return f"{self.head()}SELECT {columns} FROM {self.source()} {joins} WHERE {conditions}{grouped}{ordered}"


def sum_turns(rows: Iterable[Sequence[Any]]) -> list[ThreadRow]:
    """Threads of turns as (thread id, call id, start, end), which come by start and id; in the order of first turns."""
    turns: dict[str, list[_Turn]] = {}
    for thread_id, call_id, started_at, ended_at in rows:
        turns.setdefault(thread_id, []).append((call_id, started_at, ended_at))
    return [_thread(thread_id, items) for thread_id, items in turns.items()]


def _thread(thread_id: str, turns: list[_Turn]) -> ThreadRow:
    ended = [(ended_at, -index) for index, (_, _, ended_at) in enumerate(turns) if ended_at is not None]
    last_updated, index = max(ended, default=(None, 0))
    durations = [(ended_at - started_at) / 1000 for _, started_at, ended_at in turns if ended_at is not None]
    return ThreadRow(thread_id, len(turns), turns[0][1], last_updated, turns[0][0], turns[-index][0], sorted(durations))

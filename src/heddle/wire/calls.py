"""A call as it is written and as it is read back: plain records between the routes and the store.

JSON fields are minified text with refs in internal form; instants are microseconds. A column of calls is declared once,
in `COLUMNS` beside the records that carry it: tables, statements, query fields, answers and archives follow from it.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heddle.wire.inference import CostOf
from heddle.wire.query import Operation

SUCCESS, ERROR, DESCENDANT_ERROR, RUNNING = 0, 1, 2, 3
STATUS_WORDS = ("success", "error", "descendant_error", "running")


class ColumnType(Enum):
    """What a column of calls holds."""

    TEXT = "text"
    INTEGER = "integer"
    INSTANT = "instant"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class CallColumn:
    """A column of calls: an attribute of `Start` (or, with `of_end`, of `End`) and of `CallRow`.

    `shown` is its name in the interface. `is_plain` columns pass through it as they are. `is_body` columns are large
    and lie apart. Of `is_repeated` ones few different texts make up very many rows.
    """

    name: str
    type: ColumnType = ColumnType.TEXT
    shown: str = ""
    of_end: bool = False
    is_required: bool = False
    is_plain: bool = False
    is_body: bool = False
    is_repeated: bool = False

    @property
    def field(self) -> str:
        """Its name in the interface."""
        return self.shown or self.name


_TEXT, _INTEGER, _INSTANT, _JSON = ColumnType.TEXT, ColumnType.INTEGER, ColumnType.INSTANT, ColumnType.JSON
COLUMNS = (
    CallColumn("id", is_required=True),
    CallColumn("trace_id", is_required=True),
    CallColumn("started_at", _INSTANT, is_required=True),
    CallColumn("parent_id", is_plain=True),
    CallColumn("op_name", is_required=True, is_repeated=True),
    CallColumn("thread_id", is_plain=True),
    CallColumn("turn_id", is_plain=True),
    CallColumn("run_id", shown="wb_run_id"),
    CallColumn("run_step", _INTEGER, shown="wb_run_step", is_plain=True),
    CallColumn("user", shown="wb_user_id", is_repeated=True),
    CallColumn("display_name"),
    CallColumn("inputs", _JSON, is_required=True, is_body=True),
    CallColumn("attributes", _JSON, is_required=True, is_body=True),
    CallColumn("otel_dump", _JSON, is_body=True),
    CallColumn("ended_at", _INSTANT, of_end=True),
    CallColumn("status", _INTEGER, of_end=True, is_required=True),
    CallColumn("run_step_end", _INTEGER, shown="wb_run_step_end", of_end=True, is_plain=True),
    CallColumn("output", _JSON, of_end=True, is_body=True),
    CallColumn("summary", _JSON, of_end=True, is_required=True, is_body=True),
    CallColumn("exception", of_end=True, is_body=True),
)
HEAD = tuple(column.name for column in COLUMNS if not column.is_body)
SPILLABLE = tuple(column.name for column in COLUMNS if column.type is ColumnType.JSON)
BODY = tuple(column.name for column in COLUMNS if column.is_body)
BODY_IN = tuple(column.name for column in COLUMNS if column.is_body and not column.of_end)
BODY_OUT = tuple(column.name for column in COLUMNS if column.is_body and column.of_end)


class Usage(NamedTuple):
    """Tokens of one call and model, as reported; `total` is None where only the parts were reported."""

    model: str
    requests: int
    prompt: int
    completion: int
    total: int | None
    cache_read: int
    cache_creation: int


@dataclass(slots=True)
class Start:
    """The first half of a call."""

    project: str
    id: str
    trace_id: str
    op_name: str
    started_at: int
    inputs: str
    attributes: str
    user: str
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    display_name: str | None = None
    run_id: str | None = None
    run_step: int | None = None
    otel_dump: str | None = None
    refs: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class End:
    """The second half of a call; `files` maps a field whose text was shortened to the blob with the whole."""

    project: str
    id: str
    ended_at: int
    output: str | None
    summary: str
    status: int
    exception: str | None = None
    run_step_end: int | None = None
    usage: list[Usage] = field(default_factory=list)
    refs: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    size: int = 0


class DumpSlice(NamedTuple):
    """Stored `otel_dump` texts as (call id, trace id, text), and how many of the asked ids were looked at."""

    dumps: list[tuple[str, str, str]]
    read: int


@dataclass(slots=True)
class CallRow:
    """A call as stored: `HEAD` in that order, then `BODY`, of which what was not asked for is None."""

    rid: int
    size: int
    id: str
    trace_id: str
    started_at: int
    parent_id: str | None
    op_name: str
    thread_id: str | None
    turn_id: str | None
    run_id: str | None
    run_step: int | None
    user: str | None
    display_name: str | None
    ended_at: int | None
    status: int
    run_step_end: int | None
    inputs: str | None = None
    attributes: str | None = None
    otel_dump: str | None = None
    output: str | None = None
    summary: str | None = None
    exception: str | None = None
    trace_size: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which calls: all conditions hold, each list is an alternative, None is no condition. Refs are internal."""

    op_names: tuple[str, ...] | None = None
    input_refs: tuple[str, ...] | None = None
    output_refs: tuple[str, ...] | None = None
    parent_ids: tuple[str, ...] | None = None
    trace_ids: tuple[str, ...] | None = None
    call_ids: tuple[str, ...] | None = None
    thread_ids: tuple[str, ...] | None = None
    turn_ids: tuple[str, ...] | None = None
    user_ids: tuple[str, ...] | None = None
    run_ids: tuple[str, ...] | None = None
    roots_only: bool = False


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One term of an order."""

    field: str
    descending: bool


@dataclass(frozen=True, slots=True)
class CostTest:
    """A condition on the dollars of a call: `op` is gt, gte, lt or lte; `price` says what tokens cost."""

    op: str
    dollars: float
    price: CostOf


@dataclass(frozen=True, slots=True)
class CallsQuery:
    """Which calls, in which order, and how much of each.

    `sort` None is the default order (started_at, id); an empty tuple is insertion order. `columns` are the JSON columns
    and `exception` to be read; `expand` the paths whose refs conditions and order follow. With `shortened` texts that
    were too large for a row come as the row has them: JSON with long texts cut.
    """

    project: str
    filter: Filter = Filter()
    query: Operation | None = None
    sort: tuple[SortTerm, ...] | None = None
    limit: int | None = None
    offset: int = 0
    columns: frozenset[str] = frozenset()
    expand: tuple[tuple[str, ...], ...] = ()
    trace_sizes: bool = False
    retention: int | None = None
    cost: CostTest | None = None
    shortened: bool = False


class CallSums(NamedTuple):
    """Calls of one bucket of time, and how many of them failed."""

    calls: int
    errors: int


class OpCount(NamedTuple):
    """How often an op (an internal ref or a plain name) was called, and how often it failed."""

    op_name: str
    calls: int
    errors: int


class UsageRow(NamedTuple):
    """The usage entries of one call, with its place in the trace."""

    id: str
    parent_id: str | None
    ended: bool
    started_at: int
    usage: list[Usage]


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread, summed over its turn calls; durations in milliseconds, `last_updated` None while no turn has ended."""

    thread_id: str
    turn_count: int
    start_time: int
    last_updated: int | None
    first_turn_id: str | None
    last_turn_id: str | None
    durations: list[float]


class ModelUsage(NamedTuple):
    """Tokens of one model, summed over calls of which the first started at `priced_at`; one price holds for all."""

    model: str
    requests: int
    prompt: int
    completion: int
    cache_read: int
    cache_creation: int
    priced_at: int


class ProjectActivity(NamedTuple):
    """A project (internal id) in sums; `lately` and what follows count from an instant that the asker chose."""

    project: str
    calls: int
    last_started_at: int | None
    lately: int
    errors: int
    usage: tuple[ModelUsage, ...]


class UsageSum(NamedTuple):
    """Tokens of one model in one bucket, by the op or the user (empty where that was not asked for).

    The first of the calls started at `priced_at`; one price holds for all of them.
    """

    bucket: int
    name: str
    model: str
    calls: int
    requests: int
    prompt: int
    completion: int
    cache_read: int
    cache_creation: int
    priced_at: int


class OpActivity(NamedTuple):
    """What an op (a ref or a name) did; `kind` is its newest call's, `errors` and `seconds` of those that ended."""

    op: str
    calls: int
    last_started_at: int
    kind: str | None
    errors: int
    seconds: tuple[float, ...]


class MetricRow(NamedTuple):
    """One metric of one bucket (and model): its aggregates, and all values in order where quantiles are asked for."""

    bucket: int
    model: str
    metric: str
    calls: int
    total: float
    smallest: float | None
    largest: float | None
    ones: int
    zeros: int
    known: int


class Ending(NamedTuple):
    """A call of a watched project that has ended (or ended again); `seq` grows."""

    seq: int
    project: str
    call_id: str


class UniformRun(NamedTuple):
    """A run of equal time buckets: number and start of the first, width, and the instants covered, in microseconds."""

    first: int
    start: int
    width: int
    lower: int
    upper: int

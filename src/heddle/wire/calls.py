"""A call as it is written and as it is read back: plain records between the routes and the store.

JSON fields are minified text with refs in internal form; instants are microseconds. A column of calls is declared once,
in `COLUMNS` beside the records that carry it: tables, statements, query fields, answers and archives follow from it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

import orjson

from heddle.text_cache import cache_texts
from heddle.wire import jsontext
from heddle.wire.call_summary import read_error
from heddle.wire.lazy_model import LazyModel
from heddle.wire.query import Operation
from heddle.wire.refs import operation_name

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
    and lie apart. Of `is_repeated` ones few different texts make up very many rows. `is_derived` ones follow from the
    others as a call is written, so archives leave them out.
    """

    name: str
    type: ColumnType = ColumnType.TEXT
    shown: str = ""
    of_end: bool = False
    is_required: bool = False
    is_plain: bool = False
    is_body: bool = False
    is_repeated: bool = False
    is_derived: bool = False

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
    CallColumn("kind", is_required=True, is_repeated=True, is_derived=True),
    CallColumn("inputs", _JSON, is_required=True, is_body=True),
    CallColumn("attributes", _JSON, is_required=True, is_body=True),
    CallColumn("otel_dump", _JSON, is_body=True),
    CallColumn("ended_at", _INSTANT, of_end=True),
    CallColumn("status", _INTEGER, of_end=True, is_required=True),
    CallColumn("run_step_end", _INTEGER, shown="wb_run_step_end", of_end=True, is_plain=True),
    CallColumn("error_group", of_end=True, is_derived=True),
    CallColumn("output", _JSON, of_end=True, is_body=True),
    CallColumn("summary", _JSON, of_end=True, is_required=True, is_body=True),
    CallColumn("exception", of_end=True, is_body=True),
)
HEAD = tuple(column.name for column in COLUMNS if not column.is_body)
SPILLABLE = tuple(column.name for column in COLUMNS if column.type is ColumnType.JSON)
BODY = tuple(column.name for column in COLUMNS if column.is_body)
BODY_IN = tuple(column.name for column in COLUMNS if column.is_body and not column.of_end)
BODY_OUT = tuple(column.name for column in COLUMNS if column.is_body and column.of_end)


_MAX_TOKENS = 10**12
"""The most that one call counts with, so that sums over millions of calls fit 64 bits."""
_COUNT = re.compile(r"[+-]?[0-9]+")


def to_tokens(value: Any) -> int:
    """A reported count as an integer; texts of numbers count, anything else is 0."""
    if value is None:
        return 0
    if type(value) is int and -_MAX_TOKENS <= value <= _MAX_TOKENS:
        return value
    if isinstance(value, (int, float)):
        return int(max(-_MAX_TOKENS, min(_MAX_TOKENS, value))) if value - value == 0 else 0
    is_count = isinstance(value, str) and len(value) < 20 and _COUNT.fullmatch(value.strip())
    return to_tokens(int(value)) if is_count else 0


class Usage(NamedTuple):
    """Tokens of one call and model, as reported; `total` is None where only the parts were reported."""

    model: str
    requests: int
    prompt: int
    completion: int
    total: int | None
    cache_read: int
    cache_creation: int

    @classmethod
    def of(cls, model: str, reported: Mapping[str, Any]) -> "Usage":
        """An entry of `summary.usage`: both spellings of a count are summed, what is no number counts 0.

        Tokens of caches may be told as parts of the prompt alone, as APIs of OpenAI and their gateways tell them;
        thoughts of Gemini stand beside the completion and are output all the same.
        """
        get = reported.get
        told = get("prompt_tokens_details") or get("input_tokens_details")
        parts: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        return cls(
            model,
            to_tokens(get("requests")),
            to_tokens(get("prompt_tokens")) + to_tokens(get("input_tokens")),
            to_tokens(get("completion_tokens")) + to_tokens(get("output_tokens")) + to_tokens(get("thoughts_tokens")),
            None if get("total_tokens") is None else to_tokens(get("total_tokens")),
            to_tokens(get("cache_read_input_tokens")) or to_tokens(parts.get("cached_tokens")),
            to_tokens(get("cache_creation_input_tokens"))
            or to_tokens(parts.get("cache_creation_tokens"))
            or to_tokens(parts.get("cache_write_tokens")),
        )


def tokens_of(summary: Mapping[str, Any]) -> int:
    """Tokens of all models of a call, 0 where none are reported; entries that are no objects count nothing."""
    reported = summary.get("usage")
    held = reported.items() if isinstance(reported, Mapping) else ()
    entries = [Usage.of(model, entry) for model, entry in held if isinstance(entry, Mapping)]
    return sum(entry.total or entry.prompt + entry.completion for entry in entries)


class SharedText(NamedTuple):
    """A part of a call's `otel_dump` that one of its other columns holds as well, from `start` on."""

    at: int
    length: int
    column: str
    start: int


PLAIN_KIND = "fn"
CALL_KINDS = ("agent", "tool", "llm", "scorer", "chain", PLAIN_KIND)
KIND_WORDS = {
    **dict.fromkeys(("agent", "create_agent", "invoke_agent"), "agent"),
    **dict.fromkeys(("tool", "execute_tool", "search", "retriever", "retrieval", "reranker", "rerank"), "tool"),
    **dict.fromkeys(("llm", "chat", "chat_model", "generation", "completion", "text_completion"), "llm"),
    **dict.fromkeys(("generate_content", "embedding", "embeddings"), "llm"),
    **dict.fromkeys(("scorer", "guardrail", "evaluator"), "scorer"),
    **dict.fromkeys(("chain", "workflow", "invoke_workflow", "evaluation"), "chain"),
}
"""What SDKs and conventions of spans call them, in lower case."""
KIND_PATHS = (("weave", "kind"), ("kind",))
"""Where the attributes of a call say it; the first word that is known counts."""
KIND_PATTERNS = (
    (r"^Evaluation\.|\.predict_and_score$", "chain"),
    (r"(?i)(^|[._])(scorer?|judge)$", "scorer"),
    (
        r"(?i)(^|[._])(chat\.completions?|completions|responses|messages|embeddings?)[._](create|parse|stream)$"
        r"|(^|\.)(generate_content|chat\.complete|a?completion|completions_create)$",
        "llm",
    ),
)
"""Names of ops that give it away."""
_KIND_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in KIND_PATTERNS)


def kind_of(op_name: str, attributes: str) -> str:
    """The kind of a call by its op (a ref or a name) and the JSON text of its attributes."""
    if '"kind"' in attributes:
        said = orjson.loads(attributes)
        for path in KIND_PATHS:
            word = jsontext.follow(said, path)
            if isinstance(word, str) and (known := KIND_WORDS.get(word.lower())):
                return known
    return _kind_of_op(op_name)


@cache_texts()
def _kind_of_op(op_name: str) -> str:
    name = operation_name(op_name)
    return next((kind for pattern, kind in _KIND_PATTERNS if pattern.search(name)), PLAIN_KIND)


@dataclass(slots=True)
class Start:
    """The first half of a call; `shared` tells what of `otel_dump` other columns hold, in order."""

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
    shared: tuple[SharedText, ...] = ()

    @property
    def kind(self) -> str:
        """What the call is, as people sort calls."""
        return kind_of(self.op_name, self.attributes)


@dataclass(slots=True)
class End:
    """The second half of a call; `files` maps a field whose text was shortened to the blob with the whole.

    `error_group` follows from the exception: alike errors have the same.
    """

    project: str
    id: str
    ended_at: int
    output: str | None
    summary: str
    status: int
    exception: str | None = None
    run_step_end: int | None = None
    error_group: str | None = None
    usage: list[Usage] = field(default_factory=list)
    refs: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def __post_init__(self) -> None:
        self.error_group = read_error(self.exception).group if self.exception else None


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
    kind: str
    ended_at: int | None
    status: int
    run_step_end: int | None
    error_group: str | None
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
    price: "CostOf"


@dataclass(frozen=True, slots=True)
class CallsQuery:
    """Which calls, in which order, and how much of each.

    `sort` None is the default order (started_at, id); an empty tuple is insertion order. `columns` are the JSON columns
    and `exception` to be read; `expand` the paths whose refs conditions and order follow. With `shortened` texts that
    were too large for a row come as the row has them: JSON with long texts cut. `used` selects the calls whose tokens
    of a model (of any, where it is empty) sums count: they are reported, and not those of calls below.
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
    used: str | None = None
    shortened: bool = False


@dataclass(slots=True)
class Contents:
    """What some calls hold: the traces that they are in, and their JSON texts."""

    traces: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)


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
    """Tokens of one model, summed over calls; the price at `priced_at` holds for all of them."""

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
    """Tokens of one model in one bucket, by the op, user or thread (empty where that was not asked for).

    The price at `priced_at` holds for all of the calls. `tokens` are the totals that calls report, else those of prompt
    and completion. A call of several models is one of `calls` of each.
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
    tokens: int
    priced_at: int


CostOf = Callable[[Usage | ModelUsage | UsageSum, int], float | None]
"""What tokens come to at an instant (microseconds), in US dollars; None for a model without a price.

Tokens read from a cache and those written to it (created) are part of the prompt tokens.
"""


class OpActivity(NamedTuple):
    """What an op (a ref or a name) did; `kind` is its newest call's, `seconds` are those of the newest that ended."""

    op: str
    calls: int
    last_started_at: int
    kind: str
    seconds: tuple[float, ...]


class SearchProgress(NamedTuple):
    """How many calls the index of a text search still lacks, of how many."""

    left: int
    total: int


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


class CallConditions(LazyModel):
    """All conditions must hold; each list is an alternative."""

    op_names: list[str] | None = None
    input_refs: list[str] | None = None
    output_refs: list[str] | None = None
    parent_ids: list[str] | None = None
    trace_ids: list[str] | None = None
    call_ids: list[str] | None = None
    thread_ids: list[str] | None = None
    turn_ids: list[str] | None = None
    trace_roots_only: bool | None = None
    wb_user_ids: list[str] | None = None
    wb_run_ids: list[str] | None = None


MAX_SORT_TERMS = 20


class OrderTerm(LazyModel):
    """One term of an order."""

    field: str
    direction: Literal["asc", "desc"]

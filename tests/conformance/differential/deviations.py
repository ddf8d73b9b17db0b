"""Every known defect of the reference's in-memory server that heddle does not copy, each with the reason.

Two kinds. A `Correction` mends the oracle before it answers, so that its whole answer can be compared: the in-memory
server contradicts the contract in a way that can be repaired in place. A `Deviation` changes what is expected of one
kind of answer, where a repair would mean writing the feature again. Sections are those of the trace-core contract.
This file is read by both sides: by the oracle's interpreter (no heddle there) and by the comparer (no weave there).
"""

import datetime
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Answer = tuple[int, Any]


@dataclass(frozen=True)
class Correction:
    """A defect that is mended inside the oracle by `mend(in-memory module)`."""

    section: str
    reason: str
    mend: Callable[[ModuleType], None]


CORRECTIONS: list[Correction] = []


def correction(section: str, reason: str) -> Callable[[Callable[[ModuleType], None]], Callable[[ModuleType], None]]:
    """Register a mending function."""

    def register(mend: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        CORRECTIONS.append(Correction(section, reason, mend))
        return mend

    return register


def correct(memory: ModuleType) -> None:
    """Apply every correction to the imported in-memory server."""
    for item in CORRECTIONS:
        item.mend(memory)


def wrap(memory: ModuleType, method: str, around: Callable[..., Any]) -> None:
    """Replace a server method by `around(original, server, request)`."""
    original = getattr(memory.InMemoryTraceServer, method)

    def replacement(server: Any, request: Any) -> Any:
        return around(original, server, request)

    setattr(memory.InMemoryTraceServer, method, replacement)


REWRITTEN: dict[str, str] = {}


def rewrite(owner: Any, name: str, memory: ModuleType, changes: list[tuple[str, str]]) -> None:
    """Replace the first of each piece of a function's source and define it again; each piece must be there."""
    source = REWRITTEN.get(name) or textwrap.dedent(inspect.getsource(getattr(owner, name)))
    for old, new in changes:
        assert old in source, f"{name}: {old!r} not found"
        source = source.replace(old, new, 1)
    REWRITTEN[name] = source
    scope: dict[str, Any] = {}
    exec(source, memory.__dict__, scope)  # the source is the installed package's own
    setattr(owner, name, scope[name])


def sql_and(values: Iterable[Any]) -> bool | None:
    """AND of three truth values."""
    unknown = False
    for value in values:
        if value is None:
            unknown = True
        elif not value:
            return False
    return None if unknown else True


def sql_or(values: Iterable[Any]) -> bool | None:
    """OR of three truth values."""
    negated = sql_and(None if value is None else not value for value in values)
    return None if negated is None else not negated


@correction(
    "7 expand_columns", "paths *through* a listed column read the referenced value; the column itself stays the ref"
)
def expanded_column_itself(memory: ModuleType) -> None:
    """Follow refs only for longer paths, as production's builder does."""
    server = memory.InMemoryTraceServer
    for function, name in (("_compile_calls_query", "field_name"), ("_compile_calls_sort_field", "sort_field")):
        longer = f'{name}.startswith(col + ".")'
        rewrite(server, function, memory, [(f"{name} == col or {longer}", longer)])
    rewrite(server, "_compile_expanded_field", memory, [("or field_path == col", "")])


@correction("5 $not", "$and/$or of several operands turn unknown into false; the contract keeps unknown, as SQL does")
def three_valued_connectives(memory: ModuleType) -> None:
    """Let $and and $or answer unknown, which $not then keeps."""
    memory.__dict__.update(sql_and=sql_and, sql_or=sql_or)
    for owner, name, call in (
        (memory.InMemoryTraceServer, "_compile_calls_query", "part(rec)"),
        (memory, "_orm_eval_query", "process_operand(op)"),
    ):
        over = ("and_parts", "or_parts") if call == "part(rec)" else ("operation.and_", "operation.or_")
        variable = "part" if call == "part(rec)" else "op"
        changes = [
            (f"all(_truthy({call}) for {variable} in {over[0]})", f"sql_and({call} for {variable} in {over[0]})")
        ]
        changes += [
            (f"any(_truthy({call}) for {variable} in {over[1]})", f"sql_or({call} for {variable} in {over[1]})")
        ]
        rewrite(owner, name, memory, changes)


@correction(
    "5 typing", "containers read as JSON text with \\u escapes in memory; the contract says minified JSON text only"
)
def plain_letters(memory: ModuleType) -> None:
    """Write letters of every alphabet as they are."""
    memory._minify_json = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@correction(
    "2.4", "$contains with a number for text is 400; in memory it is only so in the small tables, when rows exist"
)
def contains_of_number(memory: ModuleType) -> None:
    """Refuse numeric substrings before any row is looked at."""
    query = memory.tsi_query

    def check(node: Any) -> None:
        if isinstance(node, query.ContainsOperation):
            substring = node.contains_.substr
            if getattr(node.contains_.input, "get_field_", "") == "scorer_tags":
                return  # there it asks for membership, and no number is a member
            if isinstance(substring, query.LiteralOperation) and isinstance(substring.literal_, (int, float)):
                from weave.trace_server.errors import InvalidRequest

                raise InvalidRequest("Illegal type of argument")
        if isinstance(node, (list, tuple)):
            for item in node:
                check(item)
        elif hasattr(node, "model_fields_set"):
            for name in type(node).model_fields:
                check(getattr(node, name))

    compile_query = memory.InMemoryTraceServer._compile_calls_query
    select = memory._orm_select

    def checked_compile(server: Any, asked: Any, *rest: Any, **options: Any) -> Any:
        compiled = compile_query(server, asked, *rest, **options)
        check(asked.expr_)
        return compiled

    def checked_select(table: Any, rows: Any, **options: Any) -> Any:
        if options.get("query") is not None:
            check(options["query"].expr_)
        return select(table, rows, **options)

    memory.InMemoryTraceServer._compile_calls_query = checked_compile
    memory._orm_select = checked_select


@correction("5", "an unknown field of a small table is only noticed when there are rows; it is 400 always")
def unknown_fields_without_rows(memory: ModuleType) -> None:
    """Try every question on an empty row first."""
    select = memory._orm_select

    def checked(table: Any, rows: Any, **options: Any) -> Any:
        blank = {column.name: None for column in table.cols}
        unlimited = options | {"project_id": None, "offset": None, "limit": None}
        select(table, [blank], **unlimited)
        select(table, [blank], **(unlimited | {"query": None}))
        return select(table, rows, **options)

    memory._orm_select = checked


@correction(
    "5 sort",
    "a null is equal to everything while sorting, so rows around it may stay unsorted; the contract puts nulls last",
)
def sorting_around_nulls(memory: ModuleType) -> None:
    """Sort what is not null, then append the nulls."""

    def plain(value: Any) -> Any:
        if isinstance(value, bool):
            return int(value)
        return memory._ensure_tz(value) if isinstance(value, datetime.datetime) else value

    def sort(rows: list[Any], terms: list[tuple[Any, str]], value_of: Callable[[Any, Any], Any]) -> list[Any]:
        result = list(rows)
        for term, direction in reversed(terms):
            valued = [(plain(value_of(row, term)), row) for row in result]
            filled = [pair for pair in valued if pair[0] is not None]
            filled.sort(key=lambda pair: pair[0], reverse=direction.lower() == "desc")
            result = [row for _, row in filled] + [row for value, row in valued if value is None]
        return result

    memory._ch_sorted_by_terms = sort


@correction(
    "9 feedback/replace", "the emoji of the new row is checked after the old one is gone; validation comes first"
)
def replace_checks_first(memory: ModuleType) -> None:
    """Try the payload before anything is deleted."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        memory.process_feedback_payload(request)
        return original(server, request)

    wrap(memory, "feedback_replace", around)


@correction("7 stream_query", "a limit of 0 means everything in memory; proposed: none; negative numbers are 400")
def limits_of_calls(memory: ModuleType) -> None:
    """Make 0 mean none, and refuse negative limits and offsets."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        if (request.limit or 0) < 0 or (request.offset or 0) < 0:
            raise ValueError("must be non-negative")
        result = original(server, request)
        return memory.tsi.CallsQueryRes(calls=[]) if request.limit == 0 else result

    wrap(memory, "calls_query", around)


@correction("11 objects", "negative limits and offsets of object lists are 400; in memory they cut from the end")
def limits_of_objects(memory: ModuleType) -> None:
    """Refuse negative limits and offsets."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        if (request.limit or 0) < 0 or (request.offset or 0) < 0:
            raise ValueError("must be non-negative")
        return original(server, request)

    wrap(memory, "objs_query", around)


@correction(
    "7 columns", "without `summary` among the columns the status may read running; it is always computed properly"
)
def status_without_summary(memory: ModuleType) -> None:
    """Select what the computed fields need, then hide it again."""
    needed = ["ended_at", "exception", "display_name", "summary"]

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        if not request.columns:
            return original(server, request)
        asked = {column.split(".")[0] for column in request.columns}
        shown = asked | (set(needed) if "summary" in asked or request.include_costs else set())
        result = original(server, request.model_copy(update={"columns": [*request.columns, *needed]}))
        for call in result.calls:
            for name in needed[:3]:
                if name not in shown:
                    setattr(call, name, None)
            if "summary" not in shown:
                computed = ("status", "latency_ms", "trace_name", "display_name", "feedback")
                call.summary = {"weave": {k: v for k, v in call.summary["weave"].items() if k in computed}}
        return result

    wrap(memory, "calls_query", around)


@correction("6.1", "expire_at of a call that never expires is null; in memory a filter sees a date far away")
def never_expires(memory: ModuleType) -> None:
    """Read the sentinel as null."""
    original = memory._compile_call_column

    def column(name: str) -> Any:
        getter = original(name)
        if name != "expire_at":
            return getter
        return lambda rec: None if getter(rec) == memory.EXPIRE_AT_NEVER else getter(rec)

    memory._compile_call_column = column


@correction(
    "6.2", "latency in filters is computed from floating seconds and is off by one; it is the floor that is shown"
)
def exact_latency(memory: ModuleType) -> None:
    """Floor of the difference in milliseconds."""

    def latency(server: Any, rec: Any) -> int | None:
        if rec.ended_at is None or rec.started_at is None:
            return None
        return int((rec.ended_at - rec.started_at) // datetime.timedelta(milliseconds=1))

    memory.InMemoryTraceServer._latency_ms = latency


@correction("7 calls/delete", "0 is returned when none of the requested calls exists, as production does")
def delete_of_nothing(memory: ModuleType) -> None:
    """Count nothing when nothing was there."""

    original = memory.InMemoryTraceServer.calls_delete

    def deleted(server: Any, request: Any) -> Any:
        live = [server._calls.get((request.project_id, call_id)) for call_id in request.call_ids]
        live = [rec for rec in live if rec is not None and rec.deleted_at is None]
        result = original(server, request)
        if not live:
            result.num_deleted = 0
        return result

    memory.InMemoryTraceServer.calls_delete = deleted


@correction("7 calls/delete", "a deleted call that is written whole again comes back; it stays hidden from all reads")
def deleted_stays_deleted(memory: ModuleType) -> None:
    """Carry the time of deletion over."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        keys = [(call.project_id, call.id) for call in request.batch]
        gone = {key: server._calls[key].deleted_at for key in keys if key in server._calls}
        result = original(server, request)
        for key, deleted_at in gone.items():
            server._calls[key].deleted_at = deleted_at
        return result

    wrap(memory, "calls_complete", around)


@correction(
    "11 threads", "deleted calls are hidden from all reads (7 calls/delete); in memory threads still count them"
)
def threads_without_deleted(memory: ModuleType) -> None:
    """Hide deleted calls while threads are computed."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        everything = server._calls
        server._calls = {
            key: rec for key, rec in everything.items() if rec.deleted_at is None and rec.op_name is not None
        }
        try:
            return iter(list(original(server, request)))
        finally:
            server._calls = everything

    wrap(memory, "threads_query_stream", around)


@correction("8 cost/create", "prices of cached tokens are dropped; 6.3 prices them")
def cached_prices(memory: ModuleType) -> None:
    """Keep the two prices of cached tokens."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        result = original(server, request)
        rows = {row["id"]: row for row in server._llm_token_prices}
        for cost_id, llm_id in result.ids:
            for name in ("cache_read_input_token_cost", "cache_creation_input_token_cost"):
                rows[cost_id][name] = getattr(request.costs[llm_id], name)
        return result

    wrap(memory, "cost_create", around)


@correction("8 cost/query", "a query replaces the restriction to the project, and dates never compare; both must hold")
def cost_query_in_project(memory: ModuleType) -> None:
    """Look only at the rows of the project, with their dates as instants."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        everything = server._llm_token_prices
        own = [row for row in everything if row["pricing_level_id"] == request.project_id]
        moment = datetime.datetime.fromisoformat
        server._llm_token_prices = [row | {"effective_date": moment(row["effective_date"])} for row in own]
        try:
            return original(server, request)
        finally:
            server._llm_token_prices = everything

    wrap(memory, "cost_query", around)


@correction(
    "11 versions", "version numbers count both kinds together and change on revival; each kind counts its own once"
)
def version_numbers(memory: ModuleType) -> None:
    """Number versions per kind in order of first creation."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        result = original(server, request)
        counts: dict[str, int] = {}
        for rec in server._objs_for_object_id(request.obj.project_id, request.obj.object_id):
            rec.version_index = counts.get(rec.kind, 0)
            counts[rec.kind] = rec.version_index + 1
        return result

    wrap(memory, "obj_create", around)


@correction("11 refs", "a path that leads nowhere is an error in memory; it reads as null, and goes on through refs")
def ref_walk(memory: ModuleType) -> None:
    """Walk the path of a ref as the contract says."""
    ri = memory.ri

    def step(server: Any, project: str, value: Any, edge: str, part: str) -> Any:
        if isinstance(value, str) and value.startswith(ri.WEAVE_INTERNAL_SCHEME + ":///"):
            ref = ri.parse_internal_uri(value)
            if ref.project_id != project:
                return None
            if isinstance(ref, ri.InternalTableRef):
                return server._table_row_read(project, part).val if edge == "id" else None
            value = read(server, ref)
        if edge == "index":
            return value[int(part)] if isinstance(value, list) and 0 <= int(part) < len(value) else None
        return value.get(part) if isinstance(value, dict) else None

    def read(server: Any, ref: Any) -> Any:
        found = [rec for rec in server._objs_for_object_id(ref.project_id, ref.name) if rec.digest == ref.version]
        if not found:
            raise memory.NotFoundError(f"Obj {ref.name}:{ref.version} not found")
        value = None if found[0].deleted_at is not None else found[0].val
        for edge, part in zip(ref.extra[::2], ref.extra[1::2], strict=True):
            value = None if value is None else step(server, ref.project_id, value, edge, part)
        return value

    memory.InMemoryTraceServer._read_internal_obj_ref = read


@correction("11 refs", "a ref with the version `latest` is refused with 400; in memory it is looked up as a digest")
def refs_to_latest(memory: ModuleType) -> None:
    """Refuse `latest`."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        if any(":latest" in ref for ref in request.refs):
            raise ValueError("Resolving references with `latest` is not supported")
        return original(server, request)

    wrap(memory, "refs_read_batch", around)


@correction(
    "7 expand_columns", "an object whose value is null counts as missing; below a null every path reads empty (5)"
)
def null_objects(memory: ModuleType) -> None:
    """Let conditions see an object without any keys."""
    resolve = memory.InMemoryTraceServer._resolve_ref_str_for_filter

    def resolved(server: Any, ref: Any) -> Any:
        value = resolve(server, ref)
        if value is not None or not isinstance(ref, str) or not memory.ri.string_will_be_interpreted_as_ref(ref):
            return value
        parsed = memory.ri.parse_internal_uri(ref)
        if not isinstance(parsed, memory.ri.InternalObjectRef) or parsed.extra:
            return None
        versions = server._objs_for_object_id(parsed.project_id, parsed.name)
        live = any(rec.digest == parsed.version and rec.deleted_at is None for rec in versions)
        return {} if live else None

    memory.InMemoryTraceServer._resolve_ref_str_for_filter = resolved


@correction("7 expand_columns", "only dict values get `_ref`; a missing or deleted object leaves the ref as it is")
def expansion(memory: ModuleType) -> None:
    """Expand the values at the listed paths, shallow first."""

    def expand(server: Any, data: dict[str, Any], columns: list[str]) -> dict[str, Any]:
        for column in sorted(columns, key=lambda name: name.count(".")):
            ref = memory.get_nested_key(data, column)
            if not memory.ri.any_will_be_interpreted_as_ref_str(ref):
                continue
            parsed = memory.ri.parse_internal_uri(ref)
            if not isinstance(parsed, memory.ri.InternalObjectRef):
                continue
            versions = server._objs_for_object_id(parsed.project_id, parsed.name)
            if not any(rec.digest == parsed.version and rec.deleted_at is None for rec in versions):
                continue
            try:
                value = server._read_internal_obj_ref(parsed)
            except memory.NotFoundError:
                continue
            memory.set_nested_key(data, column, value)
            if isinstance(value, dict):
                memory.set_nested_key(data, f"{column}._ref", ref)
        return data

    memory.InMemoryTraceServer._expand_refs = expand


@correction("7 expand_columns", "return_expanded_column_values=false is ignored in memory")
def unexpanded_answers(memory: ModuleType) -> None:
    """Filter and sort through refs, but return them as they are."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        if request.return_expanded_column_values is not False:
            return original(server, request)
        server._expand_refs = lambda data, columns: data
        try:
            return original(server, request)
        finally:
            del server._expand_refs

    wrap(memory, "calls_query", around)


@correction("11 table/update", "an unknown table is 404; in memory it is 500")
def update_of_unknown_table(memory: ModuleType) -> None:
    """Answer not found."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        if (request.project_id, request.base_digest) not in server._tables:
            raise memory.NotFoundError(f"Table {request.base_digest} not found")
        return original(server, request)

    wrap(memory, "table_update", around)


@correction(
    "9 feedback/stats", "numbers are JSON numbers and truth values JSON ones; in memory texts and casts count too"
)
def typed_values_of_feedback(memory: ModuleType) -> None:
    """Take a value only when it has the type that was asked for."""
    original = memory._extract_stats_value
    kinds: dict[str, tuple[type, ...]] = {"numeric": (int, float), "boolean": (bool,), "categorical": (str,)}

    def extract(payload: str, path: str, value_type: str) -> Any:
        value = original(payload, path, "raw")
        if not isinstance(value, kinds[value_type]) or (value_type == "numeric" and isinstance(value, bool)):
            return None
        return float(value) if value_type == "numeric" else value

    memory._extract_stats_value = extract


@correction("9 feedback/payload_schema", "one newest payload per distinct trigger_ref is sampled; in memory all are")
def sampled_payloads(memory: ModuleType) -> None:
    """Keep the newest row of every trigger while the schema is discovered."""

    def around(original: Callable[..., Any], server: Any, request: Any) -> Any:
        everything = server._feedback
        newest: dict[Any, Any] = {}
        for row in everything:
            wanted = request.feedback_type in (None, row["feedback_type"])
            if row["project_id"] == request.project_id and wanted:
                newest[row.get("trigger_ref")] = row
        server._feedback = list(newest.values())
        try:
            return original(server, request)
        finally:
            server._feedback = everything

    wrap(memory, "feedback_payload_schema", around)


@dataclass(frozen=True)
class Deviation:
    """A kind of answer that is compared after `adapt(request body, answer)` on both sides."""

    section: str
    reason: str
    path: str
    adapt: Callable[[dict[str, Any], Any], Any]


def folded(buckets: list[dict[str, Any]], by: str | None) -> dict[str, float]:
    """The sums over all buckets that are not zero, per value of `by`."""
    result: dict[str, float] = {}
    for bucket in buckets:
        for key, value in bucket.items():
            if key.startswith("sum_") and value:
                name = f"{bucket.get(by)} {key}" if by else key
                result[name] = result.get(name, 0) + value
    return result


def series_totals(body: dict[str, Any], answer: Any) -> Any:
    """Of the time series of calls only the totals over the whole range."""
    totals = {"usage": folded(answer["usage_buckets"], "model"), "calls": folded(answer["call_buckets"], None)}
    return totals | {key: answer[key] for key in ("start", "end", "timezone")}


def window_only(body: dict[str, Any], answer: Any) -> Any:
    """Of the statistics of feedback the whole window and the number of rows."""
    rows = sum(bucket["count"] for bucket in answer["buckets"])
    window = {
        slug: {name: None if value is None else float(value) for name, value in stats.items()}
        for slug, stats in (answer["window_stats"] or {}).items()
    }
    kept = {key: answer[key] for key in ("start", "end", "granularity", "timezone")}
    return kept | {"rows": rows, "window_stats": window if answer["window_stats"] is not None else None}


def sizes_as_types(body: dict[str, Any], answer: Any) -> Any:
    """Stored sizes become `size`: each server counts its own stored form."""
    names = ("storage_size_bytes", "total_storage_size_bytes", "size_bytes")
    if isinstance(answer, list):
        return [sizes_as_types(body, item) for item in answer]
    if isinstance(answer, dict):
        return {
            key: "size" if key in names and isinstance(value, int) else sizes_as_types(body, value)
            for key, value in answer.items()
        }
    return answer


# Keys that the newer interface (or heddle's own contract notes) adds to answers of 0.53.0.
ADDED = {
    "/feedback/query": ("total_count", "span_trace_id", "span_conversation_id", "scorer_trace_id"),
    "/cost/query": ("cache_read_input_token_cost", "cache_creation_input_token_cost"),
    "/obj/delete": ("deleted_versions",),
    "/trace/usage": ("x_unpriced_models",),
    "/calls/usage": ("x_unpriced_models",),
}


def without(names: tuple[str, ...]) -> Callable[[dict[str, Any], Any], Any]:
    """Drops keys at the top and in the listed rows."""

    def adapt(body: dict[str, Any], answer: Any) -> Any:
        kept = {key: value for key, value in answer.items() if key not in names}
        for rows in {"result", "results"} & kept.keys():
            kept[rows] = [{k: v for k, v in row.items() if k not in names} for row in kept[rows]]
        return kept

    return adapt


def size_when_asked(body: dict[str, Any], answer: Any) -> Any:
    """The size of all traces, null when it was not asked for."""
    return answer if body.get("include_total_storage_size") else answer | {"total_storage_size_bytes": None}


DEVIATIONS = [
    Deviation(
        "7 calls/stats",
        "buckets in memory hang on `start`, skip empty ones, and quantiles do not interpolate; the totals must agree",
        "/calls/stats",
        series_totals,
    ),
    Deviation(
        "9 feedback/stats",
        "buckets in memory are not aligned to the interval; the window and the number of rows must agree",
        "/feedback/stats",
        window_only,
    ),
    Deviation(
        "7 storage sizes",
        "sizes are JSON lengths, and the JSON text of the two servers differs in blanks and escapes",
        "*",
        sizes_as_types,
    ),
    Deviation(
        "7 query_stats",
        "without include_total_storage_size the in-memory server sums over nothing; int|null allows both",
        "/calls/query_stats",
        size_when_asked,
    ),
    *(
        Deviation("14", "keys that 0.54.0 or the contract's own decisions add", path, without(names))
        for path, names in ADDED.items()
    ),
]

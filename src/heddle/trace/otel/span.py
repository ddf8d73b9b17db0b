"""A span as it was exported, decoded from either encoding of OTLP."""

from dataclasses import dataclass, field

from heddle.errors import TooLarge
from heddle.wire.jsontypes import Json

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_CODES = ("UNSET", "OK", "ERROR")
MAX_PARTS = 200_000
"""How many spans, events and links one export may hold together."""
MAX_DEPTH = 40
"""How deep values nest; the packages of OTLP stop at about 45."""


@dataclass(slots=True)
class OtelEvent:
    """An event of a span; `time` in nanoseconds."""

    name: str
    time: int
    attributes: Json
    dropped_attributes: int = 0


@dataclass(slots=True)
class OtelLink:
    """A link to another span."""

    trace_id: str
    span_id: str
    trace_state: str
    attributes: Json
    dropped_attributes: int = 0
    flags: int = 0


@dataclass(slots=True)
class OtelSpan:
    """One span. Ids are lower-case hex (empty: none), times nanoseconds, attributes flat with dotted keys.

    Attribute values are text, numbers, booleans, None, lists and dicts of them; bytes are base64 text, numbers that
    JSON has no word for are `nan`, `inf` and `-inf`.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: int
    attributes: Json
    status_code: int = 0
    status_message: str = ""
    trace_state: str = ""
    events: list[OtelEvent] = field(default_factory=list)
    links: list[OtelLink] = field(default_factory=list)
    scope: str = ""
    """The instrumentation library's name."""
    scope_version: str = ""
    resource: Json = field(default_factory=dict)
    """Attributes of the resource, flat, shared by all its spans."""
    resource_dropped: int = 0


@dataclass(slots=True)
class ResourceSpans:
    """The spans of one resource, as one export holds them."""

    resource: Json = field(default_factory=dict)
    resource_dropped: int = 0
    spans: list[OtelSpan] = field(default_factory=list)
    parts: int = 0
    """Spans, events and links that were read so far."""


def check_parts(count: int, what: str = "spans, events and links") -> None:
    """Raise TooLarge for more parts than one export may hold.

    An empty part takes two bytes of a body, hundreds of memory.
    """
    if count > MAX_PARTS:
        raise TooLarge(f"Request too large: over {MAX_PARTS} {what} in one export; send smaller batches")

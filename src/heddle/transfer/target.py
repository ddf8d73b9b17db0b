"""What every import shares: the report, asking a server again, and the server that spans and scores go to."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote

from heddle.errors import HeddleError
from heddle.remote import Refused, Remote, Unreachable
from heddle.transfer.rows import Misfit, take
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json
from heddle.wire.records import object_value
from heddle.wire.refs import DOTS

P = ParamSpec("P")
T = TypeVar("T")
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
LATER = (408, 425, 429, 500, 502, 503, 504)
_BAD = (400, 413, 422)
_SPANS, _ROWS = 200, 100
_LOOK_SECONDS = 0.5
_NAMESPACE = uuid.UUID("7b1d7a52-6a1e-5f0c-9a55-6f1f3b0c9e11")


@dataclass(slots=True)
class Report:
    """Counts per group; `left_out` says why something did not come over, with how often."""

    new: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, group: str, new: int, known: int = 0) -> None:
        """Count records that were stored now, and those that had been there."""
        if new or known:
            self.new[group] = self.new.get(group, 0) + new
            self.known[group] = self.known.get(group, 0) + known

    def leave(self, why: str, count: int = 1) -> None:
        """Count records that did not come over."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count

    def refuse(self, group: str, error: Misfit, place: str) -> None:
        """Count a record that does not fit; where the first of its kind is stands beside the count."""
        begin = f"{group} {error.reason} (the first: "
        self.leave(next((why for why in self.left_out if why.startswith(begin)), f"{begin}{place})"))

    def read(self, group: str, rows: Iterable[tuple[str, Any]], convert: Callable[[Any], T]) -> Iterator[T]:
        """What each row becomes, which comes with its place; those that do not fit are counted and left out."""
        for place, row in rows:
            try:
                found = convert(row)
            except Misfit as error:
                self.refuse(group, error, place)
            else:
                yield found

    def lines(self) -> Iterator[str]:
        """One line per group, then what was left out, then the notes."""
        for group in self.new:
            known = self.known[group]
            yield f"  {group}: {self.new[group]} stored" + (f", {known} already there" if known else "")
        if not self.new:
            yield "  nothing"
        for why, count in self.left_out.items():
            yield f"  left out: {count} {why}"
        yield from (f"  note: {note}" for note in self.notes)


@contextmanager
def explain_mismatch(source: object) -> Iterator[None]:
    """Raise HeddleError for an answer or a file that lacks what its kind always has."""
    try:
        yield
    except Misfit as error:
        raise HeddleError(f"{source} has entries {error.reason}; check that it is the right one") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise HeddleError(f"{source} has an unexpected format ({error!r}); check that it is the right one") from error


def read_pages(
    ask: Callable[[str | None], Any], named: str, items: str, cursor: str, is_optional: bool = False
) -> Iterator[tuple[str, Any]]:
    """The items of pages with their places, until one names no next page.

    Raises Misfit for a page of another form, and HeddleError for one that leads back to a page that was read.
    """
    seen: set[str] = set()
    after: str | None = None
    number = 0
    while True:
        page = retry(ask, after)
        for item in take(page, items, list, [] if is_optional else None):
            number += 1
            yield f"number {number} of {named}", item
        after = take(page, cursor, str, "")
        if not after:
            return
        if after in seen:
            raise HeddleError(f"the pages of {named} repeat: {cursor} {after[:100]!r} was returned twice")
        seen.add(after)


def retry(ask: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What `ask` returns, which is tried a few times; raises its last HeddleError."""
    for wait in _WAITS:
        try:
            return ask(*args, **named)
        except Unreachable:
            time.sleep(wait)
        except Refused as error:
            if error.answered not in LATER:
                raise
            time.sleep(wait)
    return ask(*args, **named)


def send_archive(server: str, key: str | None, source: Path, renamed: Sequence[str]) -> Report:
    """Let a running server store an archive, and wait until its job has ended; raises HeddleError."""
    remote = Remote(server, key)

    def upload() -> Any:
        try:
            with source.open("rb") as file:
                return remote.upload("/archives/import", file, project=list(renamed))
        except OSError as error:
            raise HeddleError(f"{source} cannot be read: {error.strerror}") from None

    job = retry(upload)
    asked = {"project_id": job["project_id"], "kinds": ["import_archive"], "limit": 1000}
    while True:
        jobs = retry(remote.post, "/evaluations/jobs/query", asked)["jobs"]
        found = next((each for each in jobs if each["id"] == job["job_id"]), None)
        if found is None:
            raise HeddleError(f"the job of {source} on {server} no longer exists: its project was erased")
        if found["ended_at"] is not None:
            break
        time.sleep(_LOOK_SECONDS)
    if found["state"] != "succeeded":
        raise HeddleError(f"{server} did not store {source}: {found['error']}")
    return Report(**found["result"])


class Score(NamedTuple):
    """A score of a span; `identity` is what it has where it comes from."""

    identity: str
    span_id: str
    kind: str
    payload: Json


class Target:
    """One project of a server; what is sent again takes the place of what came before."""

    def __init__(self, server: str | None, key: str | None, project_id: str) -> None:
        """Raises HeddleError for a bad address or project."""
        self.report = Report()
        self._remote = Remote(server, key)
        self._project = self._remote.project(project_id)

    def spans(self, spans: Iterable[Json], resource: Json) -> None:
        """Store spans in the JSON form of OTLP; those that the server rejects are reported."""
        entity, _, name = self._project.id.partition("/")
        attributes = attributes_of({**resource, "wandb.entity": entity, "wandb.project": name})

        def send(batch: list[Json]) -> None:
            body = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": batch}]}]}
            asked = {"project_id": self._project.id, "filter": {"call_ids": [_span_id(span) for span in batch]}}
            known = int(retry(self._remote.post, "/calls/query_stats", asked)["count"])
            answer = retry(self._remote.post, "/otel/v1/traces", body)
            partial = answer.get("partial_success") or {}
            rejected = int(partial.get("rejected_spans", 0))
            self.report.add("spans", max(0, len(batch) - rejected - known), known)
            self.report.leave(f"spans that were rejected: {partial.get('error_message', '')[:500]}", rejected)

        self._send("spans", spans, _SPANS, _span_id, send)

    def feedback(self, scores: Iterable[Score]) -> None:
        """Store scores; those that the server rejects are reported."""

        def send(items: list[Json]) -> None:
            ids = [{"$literal": item["id"]} for item in items]
            query = {"$expr": {"$in": [{"$getField": "id"}, ids]}}
            asked = {"project_id": self._project.id, "query": query, "fields": ["id"]}
            known = len(retry(self._remote.post, "/feedback/query", asked)["result"])
            retry(self._remote.post, "/feedback/batch/create", {"batch": items})
            self.report.add("feedback", len(items) - known, known)

        self._send("feedback", map(self._item, scores), _ROWS, lambda item: str(item["id"]), send)

    def _send(
        self,
        group: str,
        records: Iterable[Json],
        size: int,
        identify: Callable[[Json], str],
        send: Callable[[list[Json]], None],
    ) -> None:
        """Send records in batches, of equal ones the last; a batch that is refused is halved down to what is bad."""
        for batch in batched(records, size):
            single = list({identify(record): record for record in batch}.values())
            if len(single) < len(batch):
                self.report.add(group, 0, len(batch) - len(single))
            waiting = [single]
            while waiting:
                part = waiting.pop()
                try:
                    send(part)
                except Refused as error:
                    if error.answered not in _BAD:
                        raise
                    middle = len(part) // 2
                    if middle:
                        waiting += [part[middle:], part[:middle]]
                    else:
                        place = f"{identify(part[0])}: {error.reason[:500]}"
                        self.report.refuse(group, Misfit("that the server rejected"), place)

    def _item(self, score: Score) -> Json:
        project = self._project.id
        return {
            "project_id": project,
            "id": str(uuid.uuid5(_NAMESPACE, f"{project}/{score.kind}/{score.identity}")),
            "weave_ref": f"weave:///{project}/call/{quote(score.span_id, safe='')}",
            "feedback_type": score.kind,
            "payload": score.payload,
        }

    def dataset(self, name: str, rows: Sequence[Json]) -> None:
        """Publish rows as a dataset."""
        table = {"project_id": self._project.id, "rows": list(rows)}
        made = retry(self._remote.post, "/table/create", {"table": table})
        ref = f"weave:///{self._project.id}/table/{made['digest']}"
        value = object_value("Dataset", name=name, description=None, rows=ref)
        place = {"project_id": self._project.id, "object_id": object_id(name)}
        asked = {
            "project_id": place["project_id"],
            "filter": {"object_ids": [place["object_id"]]},
            "metadata_only": True,
        }
        versions = retry(self._remote.post, "/objs/query", asked)["objs"]
        stored = retry(self._remote.post, "/obj/create", {"obj": {**place, "val": value}})["digest"]
        known = stored in [version["digest"] for version in versions]
        for group, count in (("datasets", 1), ("rows of datasets", len(rows))):
            self.report.add(group, 0 if known else count, count if known else 0)


def _span_id(span: Json) -> str:
    """The id of a span in either spelling."""
    return str(span.get("span_id") or span["spanId"])


def object_id(name: str) -> str:
    """A name as the name of an object: letters, digits, `-`, `_` and `.`, at most 128."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)
    return "dataset" if kept in ("", *DOTS) else kept[:128]


def attributes_of(values: Json) -> list[Json]:
    """Attributes in the JSON form of OTLP."""
    return [{"key": key, "value": any_value(value)} for key, value in values.items() if value is not None]


def any_value(value: Any) -> Json:
    """One value in the JSON form of OTLP."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes_of(value)}}
    return {"stringValue": str(value)}

"""A Phoenix project over its REST API: spans as they were exported, annotations as feedback, datasets."""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from heddle.remote import Refused, Remote
from heddle.transfer.rows import identify, members, objects, take
from heddle.transfer.target import Report, Score, Target, read_pages, retry
from heddle.wire.jsontypes import Json

_PAGE = 1000
_NAMED = 100
"""How many spans are asked about at once."""


def import_project(remote: Remote, project: str, target: Target) -> Report:
    """Send everything of a Phoenix project to a target; raises HeddleError, and what was sent until then stays."""
    source = Phoenix(remote, project)
    roots = source.send_spans(target)
    for kind, key, ids in (
        ("span_annotations", "span_id", source.span_ids),
        ("trace_annotations", "trace_id", list(roots)),
        ("session_annotations", "session_id", list(source.sessions)),
    ):
        spans = {"trace_id": roots, "session_id": source.sessions}.get(key, {})
        target.feedback(source.annotations(target.report, kind, key, ids, spans))
    named = target.report.read("datasets", source.listed("/v1/datasets"), _dataset)
    for name, identity in named:
        target.dataset(name, source.examples(target.report, identity))
        experiments = source.listed(f"/v1/datasets/{identity}/experiments")
        target.report.leave("experiments (Phoenix stores their runs as separate projects)", len(list(experiments)))
    target.report.notes.append("prompts, annotation configurations and older versions of datasets are not read")
    return target.report


class Phoenix:
    """One Phoenix project; `span_ids` and `sessions` (id to its first span) fill while spans are sent."""

    def __init__(self, remote: Remote, project: str) -> None:
        self.span_ids: list[str] = []
        self.sessions: dict[str, str] = {}
        self._remote = remote
        self._path = f"/v1/projects/{quote(project, safe='')}"

    def send_spans(self, target: Target) -> dict[str, str]:
        """Send the spans; returns the root span of each trace."""
        roots: dict[str, str] = {}

        def spans() -> Iterator[Json]:
            found = self.listed(f"{self._path}/spans/otlpv1")
            for span, identity, trace, session in target.report.read("spans", found, _read_span):
                self.span_ids.append(identity)
                if not span.get("parent_span_id"):
                    roots[trace] = identity
                if session is not None:
                    self.sessions[session] = identity
                yield span

        target.spans(spans(), {"service.name": "phoenix"})
        return roots

    def annotations(
        self, report: Report, kind: str, key: str, ids: list[str], spans: dict[str, str]
    ) -> Iterator[Score]:
        """The annotations of spans, traces or sessions, as feedback on spans."""

        def read(row: Json) -> Score:
            result = take(row, "result", dict, {})
            payload = {name: result.get(name) for name in ("label", "score", "explanation")}
            payload |= {name: row.get(name) for name in ("name", "annotator_kind", "metadata", "created_at")}
            about = identify(row, key)
            kind_here = f"phoenix.{identify(row, 'name')}"
            return Score(identify(row, "id"), spans.get(about, about), kind_here, {**payload, "about": key[:-3]})

        for first in range(0, len(ids), _NAMED):
            rows = self._optional(f"{self._path}/{kind}", {f"{key}s": ids[first : first + _NAMED]})
            yield from report.read(kind.replace("_", " "), rows, read)

    def examples(self, report: Report, dataset: str) -> list[Json]:
        """The rows of the newest version of a dataset."""
        path = f"/v1/datasets/{dataset}/examples"
        found = take(take(retry(self._remote.get, path), "data", dict), "examples", list)
        rows = ((f"number {number} of {path}", row) for number, row in enumerate(found, 1))
        return list(report.read("rows of datasets", rows, _example))

    def listed(self, path: str, **query: Any) -> Iterator[tuple[str, Any]]:
        """Everything that pages of a list hold, with its place."""

        def ask(cursor: str | None) -> Any:
            return self._remote.get(path, **query, limit=_PAGE, cursor=cursor)

        return read_pages(ask, path, "data", "next_cursor")

    def _optional(self, path: str, query: Json) -> Iterable[tuple[str, Any]]:
        """The same for what older versions do not have."""
        try:
            yield from self.listed(path, **query)
        except Refused as error:
            if error.answered not in (404, 405):
                raise


def _dataset(row: Json) -> tuple[str, str]:
    """Name and id of a dataset."""
    return identify(row, "name"), quote(identify(row, "id"), safe="")


def _example(row: Json) -> Json:
    return {name: members(row).get(name) for name in ("input", "output", "metadata")}


def _read_span(span: Json) -> tuple[Json, str, str, str | None]:
    """A span with its id, its trace's, and its session's."""
    return span, identify(span, "span_id"), identify(span, "trace_id"), _session(span)


def _session(span: Json) -> str | None:
    for attribute in objects(span, "attributes"):
        if attribute.get("key") == "session.id":
            return take(take(attribute, "value", dict, {}), "string_value", str, "") or None
    return None

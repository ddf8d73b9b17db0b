"""A Phoenix project over its REST API: spans as they were exported, annotations as feedback, datasets."""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from heddle.remote import Refused, Remote
from heddle.transfer.target import Report, Score, Target, retry
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
        target.feedback(source.annotations(kind, key, ids, spans))
    for dataset in source.listed("/v1/datasets"):
        target.dataset(dataset["name"], source.examples(dataset["id"]))
        experiments = source.listed(f"/v1/datasets/{dataset['id']}/experiments")
        target.report.leave("experiments: their runs are projects of their own in Phoenix", len(list(experiments)))
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
            for span in self.listed(f"{self._path}/spans/otlpv1"):
                self.span_ids.append(span["span_id"])
                if not span.get("parent_span_id"):
                    roots[span["trace_id"]] = span["span_id"]
                session = _session(span)
                if session is not None:
                    self.sessions[session] = span["span_id"]
                yield span

        target.spans(spans(), {"service.name": "phoenix"})
        return roots

    def annotations(self, kind: str, key: str, ids: list[str], spans: dict[str, str]) -> Iterator[Score]:
        """The annotations of spans, traces or sessions, as feedback on spans."""
        for first in range(0, len(ids), _NAMED):
            for row in self._optional(f"{self._path}/{kind}", {f"{key}s": ids[first : first + _NAMED]}):
                result = row.get("result") or {}
                payload = {name: result.get(name) for name in ("label", "score", "explanation")}
                payload |= {name: row.get(name) for name in ("name", "annotator_kind", "metadata", "created_at")}
                about: str = spans.get(row[key]) or row[key]
                yield Score(row["id"], about, f"phoenix.{row['name']}", {**payload, "about": key[:-3]})

    def examples(self, dataset: str) -> list[Json]:
        """The rows of the newest version of a dataset."""
        answer = retry(self._remote.get, f"/v1/datasets/{dataset}/examples")
        return [{name: row.get(name) for name in ("input", "output", "metadata")} for row in answer["data"]["examples"]]

    def listed(self, path: str, **query: Any) -> Iterator[Json]:
        """Everything that pages of a list hold."""
        cursor: str | None = None
        while True:
            asked = {**query, "limit": _PAGE, "cursor": cursor}
            page = retry(self._remote.get, path, **asked)
            yield from page["data"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def _optional(self, path: str, query: Json) -> Iterable[Json]:
        """The same for what older versions do not have."""
        try:
            yield from self.listed(path, **query)
        except Refused as error:
            if error.answered not in (404, 405):
                raise


def _session(span: Json) -> str | None:
    for attribute in span.get("attributes") or ():
        if attribute["key"] == "session.id":
            found: str | None = attribute["value"].get("string_value")
            return found
    return None

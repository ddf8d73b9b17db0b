"""Where spans and scores of other products go: a running heddle server, over the interface that exporters use."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from heddle.moving.patience import patiently
from heddle.moving.report import Report
from heddle.remote import Remote
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json

T = TypeVar("T")
_SPANS, _ROWS = 200, 100
_NAMESPACE = uuid.UUID("7b1d7a52-6a1e-5f0c-9a55-6f1f3b0c9e11")


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
        for batch in batched(spans, _SPANS):
            scopes = [{"spans": batch}]
            body = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": scopes}]}
            answer = patiently(lambda body=body: self._remote.post("/otel/v1/traces", body))  # type: ignore[misc]
            partial = answer.get("partial_success") or {}
            rejected = int(partial.get("rejected_spans", 0))
            self.report.add("spans", len(batch) - rejected)
            self.report.leave(f"spans that were rejected: {partial.get('error_message', '')[:500]}", rejected)

    def feedback(self, rows: Iterable[tuple[str, str, str, Json]]) -> None:
        """Store scores: where each came from (its identity), the span it is about, its name, its payload."""
        for batch in batched(rows, _ROWS):
            items = [self._item(*row) for row in batch]
            patiently(lambda items=items: self._remote.post("/feedback/batch/create", {"batch": items}))  # type: ignore[misc]
            self.report.add("feedback", len(batch))

    def _item(self, identity: str, span_id: str, kind: str, payload: Json) -> Json:
        ref = f"weave:///{self._project.id}/call/{quote(span_id, safe='')}"
        found = str(uuid.uuid5(_NAMESPACE, f"{self._project.id}/{kind}/{identity}"))
        named = {"project_id": self._project.id, "id": found, "weave_ref": ref, "feedback_type": kind}
        return {**named, "payload": payload}

    def dataset(self, name: str, rows: Sequence[Json]) -> None:
        """Publish rows as a dataset."""
        table = {"project_id": self._project.id, "rows": list(rows)}
        made = patiently(lambda: self._remote.post("/table/create", {"table": table}))
        ref = f"weave:///{self._project.id}/table/{made['digest']}"
        value: Json = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"]}
        value |= {"name": name, "description": None, "rows": ref}
        body = {"obj": {"project_id": self._project.id, "object_id": object_id(name), "val": value}}
        patiently(lambda: self._remote.post("/obj/create", body))
        self.report.add("datasets", 1)
        self.report.add("rows of datasets", len(rows))


def object_id(name: str) -> str:
    """A name as the name of an object: letters, digits, `-`, `_` and `.`, at most 128."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)
    return kept[:128] or "dataset"


def attributes_of(values: Json) -> list[Json]:
    """Attributes in the JSON form of OTLP."""
    return [{"key": key, "value": any_value(value)} for key, value in values.items() if value is not None]


def any_value(value: Any) -> Json:
    """One value in the JSON form of OTLP."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes_of(value)}}
    return {"stringValue": str(value)}

"""The traces of an MLflow experiment over its REST API: spans as they are stored, assessments as feedback."""

import base64
from collections.abc import Iterator
from typing import Any

from heddle.errors import HeddleError
from heddle.remote import Refused, Remote
from heddle.transfer.target import Report, Score, Target, any_value, attributes_of, retry
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

_PAGE, _SPANS_PAGE = 100, 20
_SESSION = "mlflow.trace.session"
_PLACE, _IN_STORE = "mlflow.trace.spansLocation", "TRACKING_STORE"
_NO_SPANS = "traces whose spans the tracking server does not answer with"


def import_experiment(remote: Remote, experiment: str, target: Target) -> Report:
    """Send the traces of an experiment (by its name) to a target.

    Raises HeddleError, and what was sent until then stays.
    """
    source = Mlflow(remote)
    number = source.experiment(experiment)
    for infos in source.traces(number):
        scores: list[Score] = []
        spans: list[Json] = []
        for trace in source.with_spans(infos):
            found = [_span(span, trace["trace_info"]) for span in trace.get("spans") or ()]
            target.report.leave(_NO_SPANS, int(not found))
            spans += found
            if found:
                scores += _scores(trace["trace_info"], found)
        target.spans(spans, {"service.name": "mlflow"})
        target.feedback(scores)
    target.report.notes.append("runs with their metrics, models, prompts and evaluation datasets are not read")
    return target.report


class Mlflow:
    """A tracking server."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def experiment(self, name: str) -> str:
        """The id of an experiment; raises HeddleError naming those that there are."""
        known: dict[str, str] = {}
        for page in self._pages("/api/2.0/mlflow/experiments/search", {"max_results": 1000}):
            known |= {found["name"]: found["experiment_id"] for found in page.get("experiments") or ()}
        if name not in known:
            raise HeddleError(f"there is no experiment {name!r}; there are {', '.join(sorted(known)) or 'none'}")
        return known[name]

    def traces(self, experiment: str) -> Iterator[list[Json]]:
        """What is known of the traces of an experiment, without their spans, in pages."""
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
        body = {"locations": [place], "max_results": _PAGE, "order_by": ["timestamp ASC"]}
        for page in self._pages("/api/3.0/mlflow/traces/search", body):
            yield page.get("traces") or []

    def with_spans(self, infos: list[Json]) -> Iterator[Json]:
        """The same traces with their spans, which lie in the tracking store or in an artifact; none where neither."""
        stored = [info["trace_id"] for info in infos if (info.get("tags") or {}).get(_PLACE) == _IN_STORE]
        spans: dict[str, list[Json]] = {}
        for first in range(0, len(stored), _SPANS_PAGE):
            part = stored[first : first + _SPANS_PAGE]
            answer = retry(self._remote.get, "/api/3.0/mlflow/traces/batchGet", trace_ids=part)
            for found in answer.get("traces") or ():
                spans[found["trace_info"]["trace_id"]] = found.get("spans") or []
        for info in infos:
            name = info["trace_id"]
            yield {"trace_info": info, "spans": spans[name] if name in spans else self._in_artifact(name)}

    def _in_artifact(self, name: str) -> list[Json]:
        try:
            found = self._remote.get("/ajax-api/3.0/mlflow/get-trace-artifact", request_id=name)
        except Refused:
            return []
        return [_from_artifact(span) for span in found["spans"]]

    def _pages(self, path: str, body: Json) -> Iterator[Json]:
        token: str | None = None
        while True:
            asked = {**body, **({"page_token": token} if token else {})}
            page: Json = retry(self._remote.post, path, asked)
            yield page
            token = page.get("next_page_token")
            if not token:
                return


def _span(span: Json, info: Json) -> Json:
    """A span with ids as exporters write them, and with what MLflow keeps on its trace."""
    about = {_SESSION: (info.get("trace_metadata") or {}).get(_SESSION)}
    if not span.get("parent_span_id"):
        own = {name: value for name, value in (info.get("tags") or {}).items() if not name.startswith("mlflow.")}
        about |= {f"mlflow.trace.tag.{name}": value for name, value in own.items()}
    there = {attribute["key"] for attribute in span.get("attributes") or ()}
    added = [
        {"key": key, "value": any_value(value)}
        for key, value in about.items()
        if value is not None and key not in there
    ]
    ids = {name: _hexadecimal(span[name]) for name in ("trace_id", "span_id", "parent_span_id") if span.get(name)}
    return {**span, **ids, "attributes": [*(span.get("attributes") or ()), *added]}


def _from_artifact(span: Json) -> Json:
    """A span as artifacts hold it, in the form of the tracking store: there each attribute is a JSON text."""
    events = [{**event, "attributes": attributes_of(event.get("attributes") or {})} for event in span["events"]]
    return {**span, "attributes": attributes_of(span["attributes"]), "events": events, "links": []}


def _hexadecimal(text: str) -> str:
    return base64.b64decode(text).hex()


def _scores(info: Json, spans: list[Json]) -> Iterator[Score]:
    """The assessments of a trace, those of the whole trace on its root span."""
    root = next((span["span_id"] for span in spans if not span.get("parent_span_id")), spans[0]["span_id"])
    for found in info.get("assessments") or ():
        if found.get("valid") is False:
            continue
        kind = "expectation" if "expectation" in found else "feedback" if "feedback" in found else "issue"
        payload = {"name": found["assessment_name"], "kind": kind, "value": _value(found.get(kind) or {})}
        payload |= {name: found.get(name) for name in ("rationale", "source", "metadata", "create_time")}
        span = found.get("span_id") or root
        yield Score(found["assessment_id"], span, f"mlflow.{found['assessment_name']}", payload)


def _value(holder: Json) -> Any:
    serialized = holder.get("serialized_value")
    if isinstance(serialized, dict):
        return jsontext.loads(str(serialized.get("value")).encode())
    return holder.get("value", holder.get("issue_name"))

"""The traces of an MLflow experiment over its REST API: spans as they are stored, assessments as feedback."""

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

from heddle.errors import HeddleError
from heddle.remote import Refused, Remote
from heddle.transfer.rows import Misfit, identify, members, objects, take
from heddle.transfer.target import LATER, Report, Score, Target, any_value, attributes_of, read_pages, retry
from heddle.wire import jsontext
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json

_PAGE, _SPANS_PAGE = 100, 20
_SESSION = "mlflow.trace.session"
_PLACE, _IN_STORE = "mlflow.trace.spansLocation", "TRACKING_STORE"
_NO_SPANS = "traces whose spans the tracking server does not return"


def import_experiment(remote: Remote, experiment: str, target: Target) -> Report:
    """Send the traces of an experiment (by its name) to a target.

    Raises HeddleError, and what was sent until then stays.
    """
    source = Mlflow(remote)
    number = source.experiment(experiment)
    for infos in batched(target.report.read("traces", source.traces(number), _info), _PAGE):
        scores: list[Score] = []
        spans: list[Json] = []
        for name, info, there in source.with_spans(infos):
            places = ((f"number {n} of the trace {name}", span) for n, span in enumerate(there, 1))
            found = list(target.report.read("spans", places, partial(_span, info=info)))
            target.report.leave(_NO_SPANS, int(not there))
            spans += found
            if found:
                scores += _scores(target.report, name, info, found)
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
        path = "/api/2.0/mlflow/experiments/search"
        found = self._pages(path, {"max_results": 1000}, "experiments")
        known = {identify(each, "name"): identify(each, "experiment_id") for _, each in found}
        if name not in known:
            raise HeddleError(f"experiment {name!r} not found; available: {', '.join(sorted(known)) or 'none'}")
        return known[name]

    def traces(self, experiment: str) -> Iterator[tuple[str, Any]]:
        """What is known of the traces of an experiment, without their spans, each with its place."""
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
        body = {"locations": [place], "max_results": _PAGE, "order_by": ["timestamp ASC"]}
        return self._pages("/api/3.0/mlflow/traces/search", body, "traces")

    def with_spans(self, infos: list[tuple[str, Json]]) -> Iterator[tuple[str, Json, list[Any]]]:
        """The same traces with their spans, which lie in the tracking store or in an artifact; none where neither."""
        stored = [name for name, info in infos if take(info, "tags", dict, {}).get(_PLACE) == _IN_STORE]
        spans: dict[str, list[Any]] = {}
        for part in batched(stored, _SPANS_PAGE):
            answer = retry(self._remote.get, "/api/3.0/mlflow/traces/batchGet", trace_ids=part)
            for found in take(answer, "traces", list, []):
                spans[identify(take(found, "trace_info", dict), "trace_id")] = take(found, "spans", list, [])
        for name, info in infos:
            yield name, info, spans[name] if name in spans else self._in_artifact(name)

    def _in_artifact(self, name: str) -> list[Any]:
        try:
            found = retry(self._remote.get, "/ajax-api/3.0/mlflow/get-trace-artifact", request_id=name)
        except Refused as error:
            if error.answered in LATER:
                raise
            return []
        return take(found, "spans", list)

    def _pages(self, path: str, body: Json, items: str) -> Iterator[tuple[str, Any]]:
        def ask(token: str | None) -> Any:
            return self._remote.post(path, {**body, **({"page_token": token} if token else {})})

        return read_pages(ask, path, items, "next_page_token", is_optional=True)


def _info(row: Json) -> tuple[str, Json]:
    """A trace with its id; raises Misfit where something of it is no object."""
    for name in ("tags", "trace_metadata"):
        take(row, name, dict, {})
    return identify(row, "trace_id"), row


def _span(span: Json, info: Json) -> Json:
    """A span with ids as exporters write them, and with what MLflow keeps on its trace."""
    if isinstance(members(span).get("attributes"), dict):
        span = _from_artifact(span)
    about = {_SESSION: take(info, "trace_metadata", dict, {}).get(_SESSION)}
    if not span.get("parent_span_id"):
        own = {name: value for name, value in take(info, "tags", dict, {}).items() if not name.startswith("mlflow.")}
        about |= {f"mlflow.trace.tag.{name}": value for name, value in own.items()}
    attributes = objects(span, "attributes")
    there = {identify(attribute, "key") for attribute in attributes}
    added = [
        {"key": key, "value": any_value(value)}
        for key, value in about.items()
        if value is not None and key not in there
    ]
    ids = {name: _hexadecimal(span, name) for name in ("trace_id", "span_id")}
    if span.get("parent_span_id"):
        ids["parent_span_id"] = _hexadecimal(span, "parent_span_id")
    return {**span, **ids, "attributes": [*attributes, *added]}


def _from_artifact(span: Json) -> Json:
    """A span as artifacts hold it, in the form of the tracking store: there each attribute is a JSON text."""
    events = [
        {**each, "attributes": attributes_of(take(each, "attributes", dict, {}))} for each in objects(span, "events")
    ]
    return {**span, "attributes": attributes_of(span["attributes"]), "events": events, "links": []}


def _hexadecimal(span: Json, name: str) -> str:
    try:
        return base64.b64decode(identify(span, name)).hex()
    except ValueError:
        raise Misfit(f"whose {name} is not base64") from None


def _scores(report: Report, name: str, info: Json, spans: list[Json]) -> Iterator[Score]:
    """The assessments of a trace, those of the whole trace on its root span."""
    root = next((span["span_id"] for span in spans if not span.get("parent_span_id")), spans[0]["span_id"])
    found = info.get("assessments") or []
    rows = found if isinstance(found, list) else [found]
    places = ((f"number {number} of the trace {name}", row) for number, row in enumerate(rows, 1))
    read = report.read("assessments", places, partial(_score, root=root))
    return (score for score in read if score is not None)


def _score(row: Json, root: str) -> Score | None:
    """An assessment; None where another has taken its place."""
    if members(row).get("valid") is False:
        return None
    kind = "expectation" if "expectation" in row else "feedback" if "feedback" in row else "issue"
    name = identify(row, "assessment_name")
    payload = {"name": name, "kind": kind, "value": _value(take(row, kind, dict, {}))}
    payload |= {field: row.get(field) for field in ("rationale", "source", "metadata", "create_time")}
    span = take(row, "span_id", str, "") or root
    return Score(identify(row, "assessment_id"), span, f"mlflow.{name}", payload)


def _value(holder: Json) -> Any:
    serialized = holder.get("serialized_value")
    if isinstance(serialized, dict):
        try:
            return jsontext.loads_text(str(serialized.get("value")))
        except ValueError:
            raise Misfit("whose serialized_value is not JSON") from None
    return holder.get("value", holder.get("issue_name"))

"""Sends the recorded requests to a server in order and compares every answer with the recorded one."""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conformance import replay_recording as recording
from tests.conformance.replay_recording import DIGEST, UUID, Exchange, Missing
from tests.conformance.replay_tables import DEVIATIONS, describe, pending, time_place, user_place

Difference = tuple[str, str, str]
V2_OBJECT = re.compile(r"/v2/[^/]+/[^/]+/(ops|datasets|scorers|evaluations|models)")


@dataclass
class Outcome:
    """What became of one exchange: the issue it waits for, or the differences that no table entry explains."""

    exchange: Exchange
    pending: str | None = None
    unexplained: list[str] = field(default_factory=list)
    deviations: set[int] = field(default_factory=set)


class Replay:
    """One SDK's recorded sequence against one server that starts empty."""

    def __init__(self, url: str, sdk: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=60)
        self.exchanges = recording.load(sdk)
        self.missing = recording.missing(self.exchanges, lambda exchange: pending(exchange) is not None)
        self.internals: dict[str, str] = {}
        self.digests = self._digests()
        self.bound: dict[str, str] = {}
        self.sent: set[str] = set()

    def run(self) -> list[Outcome]:
        """All exchanges, each with what was unequal."""
        return [self._replay(exchange) for exchange in self.exchanges]

    # digests depend on the internal project id, which every server chooses: they are computed before anything is sent

    def _internal(self, project: str) -> str:
        if project not in self.internals:
            answer = self.client.post("/service/projects_info", json={"project_ids": [project]})
            assert answer.status_code == 200, answer.text
            self.internals[project] = answer.json()[0]["internal_project_id"]
        return self.internals[project]

    def _digests(self) -> dict[str, str]:
        """Recorded digest -> the digest that the same value has under this server's internal project ids."""
        made: list[tuple[Any, str, list[str]]] = [
            (exchange.body, exchange.path, recording.recorded_digests(exchange))
            for exchange in self.exchanges
            if recording.makes_digests(exchange)
        ]
        made += [(item.body, item.path, [item.digest]) for item in self.missing if item.digest]
        known: dict[str, str] = {}
        for _ in range(20):
            before = dict(known)
            for body, path, recorded in made:
                ours = recording.digests_of(_replace(body, known), path, self._internal)
                known.update(zip(recorded, ours, strict=True))
            if known == before:
                return {theirs: ours for theirs, ours in known.items() if theirs != ours}
        raise AssertionError("objects of the recording refer to each other in a circle")

    def _replay(self, exchange: Exchange) -> Outcome:
        outcome = Outcome(exchange)
        for item in self.missing:
            if item.before == exchange.index and (failure := self._restore(item)):
                outcome.unexplained.append(failure)
        if issue := pending(exchange):
            outcome.pending = issue
            return outcome
        self.sent |= set(UUID.findall(json.dumps([exchange.path, exchange.body])))
        for place, kind, text in self._differences(exchange, self._send(exchange)):
            known = [number for number, entry in enumerate(DEVIATIONS) if entry.covers(exchange, place, kind)]
            outcome.deviations |= set(known)
            if not known:
                line = f"#{exchange.index} {exchange.key} {place or '(answer)'}: {kind}: {text}"
                outcome.unexplained.append(line)
        return outcome

    def _restore(self, item: Missing) -> str | None:
        answer = self.client.request(item.method, item.path, json=self._ours(item.body))
        if answer.status_code != 200:
            return f"restoring {item.path}: {answer.status_code} {answer.text[:500]}"
        if item.digest and answer.json()["digest"] != self.digests.get(item.digest, item.digest):
            return f"restoring {item.path}: digest {answer.json()['digest']}"
        return None

    def _ours(self, value: Any) -> Any:
        return _replace(value, {**self.digests, **self.bound})

    def _send(self, exchange: Exchange) -> httpx.Response:
        kept = ("accept", "user-agent", "x-weave-client-capabilities", "x-weave-retry-id", "x-weave-trace-id")
        kept += ("openai-project",)
        headers = {name: value for name, value in exchange.headers.items() if name in kept}
        is_inference = exchange.path.startswith("/v1/")
        credentials = "k" * 40 if is_inference else base64.b64encode(b"api:" + b"k" * 40).decode()
        headers["authorization"] = f"{'Bearer' if is_inference else 'Basic'} {credentials}"
        path = self._ours(exchange.path)
        query = [(name, self._ours(value)) for name, value in exchange.query]
        if exchange.parts is not None:
            return self.client.request(
                exchange.method, path, params=query, headers=headers, files=self._parts(exchange.parts)
            )
        if exchange.spans is not None:
            return self._send_spans(exchange, headers)
        content = None if exchange.body is None else json.dumps(self._ours(exchange.body)).encode()
        if content is not None and "content-type" in exchange.headers:
            headers["content-type"] = exchange.headers["content-type"]
        return self.client.request(exchange.method, path, params=query, headers=headers, content=content)

    def _send_spans(self, exchange: Exchange, headers: dict[str, str]) -> httpx.Response:
        """Spans as the exporter encoded and compressed them."""
        content = ParseDict(self._ours(exchange.spans), ExportTraceServiceRequest()).SerializeToString()
        kept = ("project_id", "content-type", "content-encoding")
        headers |= {name: value for name, value in exchange.headers.items() if name in kept}
        packed = gzip.compress(content) if headers.get("content-encoding") == "gzip" else content
        return self.client.post(exchange.path, headers=headers, content=packed)

    def _parts(self, parts: list[dict[str, Any]]) -> list[tuple[str, Any]]:
        return [
            (part["name"], (part["filename"], base64.b64decode(part["content_b64"]), part["content_type"]))
            if "filename" in part
            else (part["name"], (None, self._ours(part["value"])))
            for part in parts
        ]

    def _bind_digest(self, exchange: Exchange, answer: httpx.Response) -> None:
        """Note which digest the object has here that a /v2 create made: its value holds refs of this server."""
        if exchange.method == "POST" and V2_OBJECT.fullmatch(exchange.path) and not exchange.has_source_alone:
            theirs, ours = exchange.answer.get("digest"), answer.json().get("digest")
            if theirs and ours and DIGEST.fullmatch(ours):
                self.bound[theirs] = ours

    def _differences(self, exchange: Exchange, answer: httpx.Response) -> Iterator[Difference]:
        if exchange.status == answer.status_code == 200:
            self._bind_digest(exchange, answer)
        if answer.status_code != exchange.status:
            yield "", "status", f"{answer.status_code} instead of {exchange.status}: {answer.text[:300]}"
            return
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if exchange.media_type and media_type != exchange.media_type.partition(";")[0]:
            yield "", "media type", f"{media_type} instead of {exchange.media_type}"
        if exchange.lines is not None:
            ours = [json.loads(line) for line in answer.text.splitlines()]
            theirs = exchange.lines
            yield from self._compare(theirs, ours[: len(theirs)] if exchange.cut else ours, "")
        elif isinstance(exchange.answer, str):
            if answer.text != exchange.answer:
                yield "", "value", f"{describe(answer.text)} instead of {describe(exchange.answer)}"
        elif exchange.answer is not None:
            yield from self._compare(exchange.answer, answer.json(), "")

    def _compare(self, theirs: Any, ours: Any, place: str) -> Iterator[Difference]:
        if type(theirs) is not type(ours):
            yield place, "type", f"{describe(ours)} instead of {describe(theirs)}"
        elif isinstance(theirs, dict):
            for name in theirs.keys() - ours.keys():
                yield _join(place, name), "lacks", f"recorded {describe(theirs[name])}"
            for name in ours.keys() - theirs.keys():
                yield _join(place, name), "extra", describe(ours[name])
            for name in theirs.keys() & ours.keys():
                yield from self._compare(theirs[name], ours[name], _join(place, name))
        elif isinstance(theirs, list):
            if len(theirs) != len(ours):
                yield place, "length", f"{len(ours)} instead of {len(theirs)}: {describe(ours)}"
            for index, (their, our) in enumerate(zip(theirs, ours, strict=False)):
                yield from self._compare(their, our, _join(place, str(index)))
        elif isinstance(theirs, str):
            yield from self._compare_text(theirs, ours, place)
        elif theirs != ours:
            yield place, "value", f"{describe(ours)} instead of {describe(theirs)}"

    def _compare_text(self, theirs: str, ours: str, place: str) -> Iterator[Difference]:
        if time_place(place):
            if datetime.fromisoformat(ours).tzinfo is None:
                yield place, "value", f"{ours} carries no offset"
        elif user_place(place):
            if not ours:
                yield place, "value", "no caller is named"
        elif UUID.fullmatch(theirs) and theirs not in self.sent | self.bound.keys():
            if not UUID.fullmatch(ours):
                yield place, "value", f"{ours} is no UUID"
            self.bound[theirs] = ours
        elif self._ours(theirs) != ours:
            yield place, "value", f"{describe(ours)} instead of {describe(self._ours(theirs))}"


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _replace(value: Any, table: dict[str, str]) -> Any:
    """The value with every digest and id of `table` in its texts replaced."""
    if isinstance(value, dict):
        return {key: _replace(item, table) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, table) for item in value]
    if isinstance(value, str):
        for pattern in (DIGEST, UUID):
            value = pattern.sub(lambda match: table.get(match[0], match[0]), value)
    return value

"""Concurrent writers that remember what was acknowledged, and the check that all of it reads back equal."""

import hashlib
import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

STARTED, ENDED = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
KINDS = ("single", "complete", "mixed", "object", "file", "table", "feedback")
START = ("id", "trace_id", "op_name", "attributes", "inputs")
SUMMARY = {"usage": {"gpt-4o": {"prompt_tokens": 3, "completion_tokens": 4, "requests": 1}}}


@dataclass(frozen=True)
class Item:
    """One acknowledged thing: `identity` is what it is read by, `value` what must come back."""

    kind: str
    project: str
    identity: str
    value: Any


class Load:
    """Writer threads of all kinds against one address; `acknowledged` grows only after a 200."""

    def __init__(self, url: str, seed: int, threads_per_kind: int = 2) -> None:
        self.url = url
        self.project = f"soak/load-{seed}"
        self.acknowledged: list[Item] = []
        self.refused: list[str] = []
        self.cut_off = 0
        self.changed = threading.Condition()
        self.stopping = threading.Event()
        self.threads = [
            threading.Thread(target=self._write, args=(kind, random.Random(f"{seed} {kind} {number}")))
            for kind in KINDS
            for number in range(threads_per_kind)
        ]

    def start(self) -> "Load":
        """Start all writers."""
        for thread in self.threads:
            thread.start()
        return self

    def wait_for(self, count: int, timeout: float = 60) -> None:
        """Return as soon as that many items are acknowledged; raises when that does not happen in time."""
        with self.changed:
            reached = self.changed.wait_for(lambda: len(self.acknowledged) >= count, timeout)
        assert reached, f"only {len(self.acknowledged)} of {count} items acknowledged; refused: {self.refused[:3]}"

    def stop(self, timeout: float = 60) -> None:
        """Let every writer finish its request, and wait for them."""
        self.stopping.set()
        for thread in self.threads:
            thread.join(timeout)
            assert not thread.is_alive(), "a request neither succeeded nor failed"

    def _write(self, kind: str, chance: random.Random) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            write: Callable[[], Iterator[Item]] = getattr(Writer(client, self.project, chance), kind)
            while not self.stopping.is_set():
                try:
                    for item in write():
                        self._acknowledge(item)
                except httpx.TransportError:
                    self.cut_off += 1
                    return
                except httpx.HTTPStatusError as refusal:
                    self.refused.append(f"{refusal.response.status_code} {refusal.response.text[:200]}")
                    return

    def _acknowledge(self, item: Item) -> None:
        with self.changed:
            self.acknowledged.append(item)
            self.changed.notify_all()


class Writer:
    """Makes requests of every kind; each method yields what is acknowledged as soon as it is."""

    def __init__(self, client: httpx.Client, project: str, chance: random.Random) -> None:
        self.client = client
        self.project = project
        self.chance = chance

    def _post(self, path: str, **request: Any) -> Any:
        return self.client.post(path, **request).raise_for_status().json()

    def _identity(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))

    def _start(self) -> dict[str, Any]:
        text = 'é"\\' * self.chance.randrange(1, 400)
        return {
            "project_id": self.project,
            "id": self._identity(),
            "trace_id": self._identity(),
            "op_name": f"op-{self.chance.randrange(5)}",
            "started_at": STARTED,
            "attributes": {"n": self.chance.random()},
            "inputs": {"text": text, "deep": [{"k": self.chance.getrandbits(60)}]},
        }

    def _end(self, call: dict[str, Any]) -> dict[str, Any]:
        output = {"answer": self.chance.choice([None, True, 1, 1.5, "text", [1, {"a": None}]])}
        return {"project_id": self.project, "id": call["id"], "ended_at": ENDED, "output": output, "summary": SUMMARY}

    def single(self) -> Iterator[Item]:
        """One start, then its end, each in a request of its own."""
        call = self._start()
        self._post("/call/start", json={"start": call})
        yield Item("start", self.project, call["id"], {name: call[name] for name in START})
        end = self._end(call)
        self._post("/call/end", json={"end": end})
        yield self._call(call, end)

    def complete(self) -> Iterator[Item]:
        """Finished calls in one request, as the newer SDK sends them."""
        pairs = [(call, self._end(call)) for call in (self._start() for _ in range(self.chance.randrange(1, 40)))]
        batch = [{**call, **end} for call, end in pairs]
        self._post(f"/v2/{self.project}/calls/complete", json={"batch": batch})
        yield from (self._call(call, end) for call, end in pairs)

    def mixed(self) -> Iterator[Item]:
        """Starts and ends in one request, some without their end, as the older SDKs send them."""
        calls = [self._start() for _ in range(self.chance.randrange(1, 20))]
        ends = [self._end(call) if self.chance.random() < 0.7 else None for call in calls]
        batch: list[dict[str, Any]] = [{"mode": "start", "req": {"start": call}} for call in calls]
        batch += [{"mode": "end", "req": {"end": end}} for end in ends if end]
        self.chance.shuffle(batch)
        self._post("/call/upsert_batch", json={"batch": batch})
        yield from (self._call(call, end) for call, end in zip(calls, ends, strict=True))

    def object(self) -> Iterator[Item]:
        """A version of one of a few objects."""
        name = f"object-{self.chance.randrange(4)}"
        value = {"n": self.chance.getrandbits(50), "text": "ü" * self.chance.randrange(200)}
        made = self._post("/obj/create", json={"obj": {"project_id": self.project, "object_id": name, "val": value}})
        yield Item("object", self.project, f"{name}:{made['digest']}", value)

    def file(self) -> Iterator[Item]:
        """A file of up to 200 kB."""
        content = self.chance.randbytes(self.chance.choice([0, 10, 3_000, 200_000]))
        made = self._post("/file/create", data={"project_id": self.project}, files={"file": ("blob", content)})
        yield Item("file", self.project, made["digest"], hashlib.sha256(content).hexdigest())

    def table(self) -> Iterator[Item]:
        """A table of a few rows."""
        count = self.chance.randrange(1, 60)
        rows = [{"row": self.chance.getrandbits(40), "text": "t" * self.chance.randrange(100)} for _ in range(count)]
        made = self._post("/table/create", json={"table": {"project_id": self.project, "rows": rows}})
        yield Item("table", self.project, made["digest"], rows)

    def feedback(self) -> Iterator[Item]:
        """A batch of feedback with ids of the client."""
        target = f"weave:///{self.project}/call/{self._identity()}"
        common = {"project_id": self.project, "weave_ref": target, "feedback_type": "custom"}
        payloads = [{"score": self.chance.random()} for _ in range(5)]
        batch = [{**common, "id": self._identity(), "payload": payload} for payload in payloads]
        self._post("/feedback/batch/create", json={"batch": batch})
        yield from (Item("feedback", self.project, item["id"], item["payload"]) for item in batch)

    def _call(self, call: dict[str, Any], end: dict[str, Any] | None) -> Item:
        value = {name: call[name] for name in START} | {"output": end and end["output"], "ended": end is not None}
        return Item("call", self.project, call["id"], value)


# --- reading back -----------------------------------------------------------------------------------------------------


def lost(url: str, items: list[Item]) -> list[Item]:
    """Those of the items that do not read back equal."""
    missing = []
    with httpx.Client(base_url=url, timeout=120) as client:
        for project in {item.project for item in items}:
            for kind, read in READERS.items():
                wanted = [item for item in items if (item.project, item.kind) == (project, kind)]
                found = read(client, project, [item.identity for item in wanted])
                missing += [item for item in wanted if found.get(item.identity) != item.value]
    return missing


Found = dict[str, Any]


def _post(client: httpx.Client, path: str, **body: Any) -> httpx.Response:
    return client.post(path, json=body).raise_for_status()


def _calls(client: httpx.Client, project: str, identities: list[str]) -> Found:
    found = {}
    for start in range(0, len(identities), 1000):
        wanted = {"call_ids": identities[start : start + 1000]}
        answer = _post(client, "/calls/stream_query", project_id=project, filter=wanted)
        for call in map(json.loads, answer.text.splitlines()):
            value = {name: call[name] for name in (*START, "output")}
            found[call["id"]] = value | {"ended": call["ended_at"] is not None}
    return found


def _starts(client: httpx.Client, project: str, identities: list[str]) -> Found:
    calls = _calls(client, project, identities)
    return {identity: {name: call[name] for name in START} for identity, call in calls.items()}


def _objects(client: httpx.Client, project: str, identities: list[str]) -> Found:
    objects = _post(client, "/objs/query", project_id=project).json()["objs"]
    return {f"{item['object_id']}:{item['digest']}": item["val"] for item in objects}


def _files(client: httpx.Client, project: str, identities: list[str]) -> Found:
    found = {}
    for digest in identities:
        answer = client.post("/file/content", json={"project_id": project, "digest": digest})
        if answer.status_code == 200:
            found[digest] = hashlib.sha256(answer.content).hexdigest()
    return found


def _tables(client: httpx.Client, project: str, identities: list[str]) -> Found:
    found = {}
    for digest in identities:
        rows = _post(client, "/table/query", project_id=project, digest=digest).json()["rows"]
        found[digest] = [row["val"] for row in rows]
    return found


def _feedback(client: httpx.Client, project: str, identities: list[str]) -> Found:
    rows = _post(client, "/feedback/query", project_id=project, fields=["id", "payload"]).json()["result"]
    return {row["id"]: row["payload"] for row in rows}


READERS: dict[str, Callable[[httpx.Client, str, list[str]], Found]] = {
    "start": _starts,
    "call": _calls,
    "object": _objects,
    "file": _files,
    "table": _tables,
    "feedback": _feedback,
}

"""The two sides of a session: the oracle process and a heddle server, asked the same things."""

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import emoji
import httpx
import sqlparse  # type: ignore[import-untyped]

from tests.conformance.differential.operations import Json, Operation

HERE = Path(__file__).parent
ENVIRONMENT = Path(__file__).parents[3] / ".clients" / "weave-0.53.0"
TOKEN = re.compile(r"⟦([^⟧]+)⟧")
Answer = tuple[int, Json]


class Oracle:
    """The oracle process; a script and its arguments after the package `emoji`."""

    def __init__(self, script: str = "oracle.py", *arguments: str) -> None:
        command = [str(ENVIRONMENT / "bin" / "python"), "-I", str(HERE / script), str(emoji.__file__), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self, verb: str, path: str, body: dict[str, Json], user: str = "local") -> Answer:
        """Status and body of one request of a user."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"verb": verb, "path": path, "body": body, "user": user}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the oracle ended")
        reply = json.loads(line)
        return reply["status"], reply["body"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class ClickhouseOracle(Oracle):
    """The oracle over a ClickHouse on a port of this machine; its database is made and migrated first."""

    def __init__(self, port: int, database: str = "weave") -> None:
        packages = str(Path(sqlparse.__file__).parents[1])
        super().__init__("clickhouse_oracle.py", packages, str(port), database)
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()).strip() != "ready":
            if not line:
                raise RuntimeError("the oracle over ClickHouse did not start")


class Heddle:
    """A heddle server over HTTP."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=60)

    def answer(self, verb: str, path: str, body: dict[str, Json]) -> Answer:
        """Status and body of one request; a stream's lines become a list."""
        if verb == "GET":
            reply = self.client.get(path, params=body)
        else:
            reply = self.client.request(verb, path, content=json.dumps(body))
        if reply.headers.get("content-type", "").startswith("application/jsonl"):
            return reply.status_code, [json.loads(line) for line in reply.text.split("\n") if line]
        return reply.status_code, reply.json() if reply.content else None

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


class Session:
    """One project on one side: replaces tokens, sends, and keeps the answers."""

    def __init__(self, side: Oracle | Heddle, project: str, now: datetime) -> None:
        self.side = side
        self.project = project
        self.now = now
        self.answers: list[Answer] = []
        self.made: dict[str, str] = {}

    def send(self, operation: Operation) -> Answer:
        """Send the next operation of the session."""
        step = len(self.answers)
        answer = self.side.answer(operation.verb, self.fill(operation.path), self.fill(operation.body))
        self.answers.append(answer)
        if answer[0] == 200:
            self.made |= dict(made_ids(operation, answer[1], step))
        return answer

    def skip(self) -> None:
        """Count an operation that is left out."""
        self.answers.append((0, None))

    def fill(self, value: Json) -> Json:
        """The value with its tokens replaced."""
        if isinstance(value, str):
            return TOKEN.sub(lambda found: self.token(found[1]), value)
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return value

    def token(self, text: str) -> str:
        """What one token stands for; a value that an answer lacks becomes a fixed word."""
        if text == "project":
            return self.project
        if text.startswith("now"):
            return (self.now + timedelta(seconds=int(text[3:]))).isoformat()
        step, *path = text.split(".")
        status, value = self.answers[int(step)]
        if status != 200:
            return "nothing"
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
        return str(value)


def made_ids(operation: Operation, body: Json, step: int) -> Iterator[tuple[str, str]]:
    """Ids that the server chose itself, with the name that stands for them on both sides."""
    if operation.path == "/cost/create":
        for index, (cost_id, _) in enumerate(body["ids"]):
            yield cost_id, f"cost {step}.{index}"
    if operation.path in ("/feedback/create", "/feedback/replace") and "id" not in operation.body:
        yield body["id"], f"feedback {step}"
    if operation.path == "/feedback/batch/create":
        for index, (asked, made) in enumerate(zip(operation.body["batch"], body["res"], strict=True)):
            if "id" not in asked:
                yield made["id"], f"feedback {step}.{index}"


def now() -> datetime:
    """The moment that `⟦now⟧` tokens of one run share."""
    return datetime.now(UTC)

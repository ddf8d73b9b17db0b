"""What a generated session is made of: operations, and the tokens in them that a run replaces.

A token stands in any string of a body or path: `⟦project⟧`, `⟦now-3600⟧` (ISO time), `⟦3.digest⟧` (a value out of the
answer to operation 3 on the same side). So a session is plain data that can be replayed, cut short, and sent elsewhere.
"""

import random
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Json = Any
EPOCH = datetime(2024, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Operation:
    """One request; `ordered` tells whether the contract fixes the order of the rows that come back."""

    verb: str
    path: str
    body: dict[str, Json]
    ordered: bool = True


@dataclass
class Version:
    """One published version of an object: how to name it, and what it holds."""

    name: str
    kind: str
    step: int
    rows: "Table | None" = None

    @property
    def digest(self) -> str:
        """The token of its digest."""
        return f"⟦{self.step}.digest⟧"

    @property
    def ref(self) -> str:
        """Its external ref."""
        return f"weave:///⟦project⟧/{self.kind}/{self.name}:{self.digest}"


@dataclass
class Call:
    """What the generator remembers of a call it made."""

    id: str
    trace_id: str
    op_name: str
    thread_id: str | None
    started_at: datetime
    ended: bool = False

    @property
    def ref(self) -> str:
        """Its external ref."""
        return f"weave:///⟦project⟧/call/{self.id}"


@dataclass
class Table:
    """A table made by operation `step` with `size` rows."""

    step: int
    size: int

    @property
    def digest(self) -> str:
        """The token of its digest."""
        return f"⟦{self.step}.digest⟧"

    def row_digest(self, index: int) -> str:
        """The token of the digest of a row."""
        return f"⟦{self.step}.row_digests.{index}⟧"


@dataclass
class World:
    """The random source, the operations so far, and what exists because of them."""

    rng: random.Random
    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    feedback_ids: list[str] = field(default_factory=list)
    names_feedback: bool = True
    cost_ids: list[str] = field(default_factory=list)

    def send(self, path: str, body: dict[str, Json], verb: str = "POST", ordered: bool = True) -> int:
        """Append an operation; its number."""
        self.operations.append(Operation(verb, path, body, ordered))
        return len(self.operations) - 1

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.rng.random() < probability

    def any_ref(self) -> str:
        """The ref of a version, or of a row of the table that a version holds."""
        version = self.pick(self.versions)
        if version.rows is None or version.rows.size == 0 or self.chance(0.3):
            return str(version.ref)
        row = version.rows.row_digest(self.rng.randrange(version.rows.size))
        return f"{version.ref}/attr/rows/id/{row}"

    def maybe(self, value: Json, probability: float = 0.5) -> Json:
        """The value, or None."""
        return value if self.chance(probability) else None

    def pick(self, items: list[Json]) -> Json:
        """One of them."""
        return self.rng.choice(items)

    def some(self, items: list[Json], most: int = 3) -> list[Json]:
        """Between one and `most` of them, perhaps repeated."""
        return [self.rng.choice(items) for _ in range(self.rng.randint(1, most))]

    def uuid(self) -> str:
        """A random call, trace or feedback id."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def moment(self, days: float = 20.0) -> datetime:
        """A time in the first days after the epoch of the session, in microseconds."""
        return EPOCH + timedelta(microseconds=self.rng.randrange(int(days * 86_400_000_000)))


def iso(moment: datetime) -> str:
    """ISO text with `Z`."""
    return moment.isoformat().replace("+00:00", "Z")


def without_nulls(body: dict[str, Json]) -> dict[str, Json]:
    """The body without its top-level nulls."""
    return {key: value for key, value in body.items() if value is not None}

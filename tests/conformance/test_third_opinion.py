"""The server of the reference on ClickHouse selects the same calls for random queries as heddle, in the same order."""

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.differential import third
from tests.conformance.differential.operations import Operation
from tests.conformance.differential.runner import Pair
from tests.conformance.differential.sides import ENVIRONMENT, Answer, ClickhouseOracle, Session
from tests.support.clickhouse import MISSING, ClickhouseProcess
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(1, 21)
CALLS, QUERIES = 60, 300

pytestmark = [
    pytest.mark.differential,
    pytest.mark.skipif(not SOAK, reason="sampled by make soak"),
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="weave 0.53.0 is not installed in .clients/weave-0.53.0"),
    pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed"),
]


class NumberedOracle(ClickhouseOracle):
    """The oracle with projects under the ids that it insists on."""

    _numbers = 0

    def answer(self, verb: str, path: str, body: dict[str, Any], user: str = "local") -> Answer:
        """Status and body of one request of a user."""
        if verb == "PROJECT":
            self._numbers += 1
            body = body | {"internal": base64.b64encode(f"ProjectInternalId:{self._numbers}".encode()).decode()}
        return super().answer(verb, path, body, user)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A heddle server and the oracle over ClickHouse."""
    folder = tmp_path_factory.mktemp("third")
    with ClickhouseProcess(folder / "clickhouse") as clickhouse, HeddleProcess(folder / "data") as server:
        both = Pair(server.url, "third", NumberedOracle(clickhouse.port))
        yield both
        both.close()


def ids(session: Session, operation: Operation) -> Any:
    """The ids of the calls that a query selects; a write must succeed."""
    status, body = session.send(operation)
    assert status == 200, (operation, body)
    return [row["id"] for row in body] if operation.path == "/calls/stream_query" else None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_calls_are_selected(pair: Pair, seed: int) -> None:
    """A session of random queries is answered alike."""
    left, right = pair.sessions()
    filled = 0
    for operation in third.generate(seed, CALLS, QUERIES):
        expected, found = ids(left, operation), ids(right, operation)
        assert found == expected, json.dumps(operation.body, ensure_ascii=False)
        filled += bool(expected)
    assert filled > QUERIES / 2


def test_every_dispute_says_who_is_right() -> None:
    """What is left out is explained."""
    assert all(len(reason) > 20 for reason in third.DISPUTED.values())

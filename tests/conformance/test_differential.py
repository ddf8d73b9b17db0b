"""The same random operations, sent to the reference's in-memory server and to a real heddle, get the same answers."""

import os
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.conformance.differential.deviations import CORRECTIONS, DEVIATIONS
from tests.conformance.differential.generator import generate
from tests.conformance.differential.operations import Operation
from tests.conformance.differential.runner import Pair
from tests.conformance.differential.sides import ENVIRONMENT
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(1, 101) if SOAK else range(1, 5)
OPERATIONS = 400

pytestmark = [
    pytest.mark.differential,
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="weave 0.53.0 is not installed in .clients/weave-0.53.0"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A heddle server and the oracle."""
    with HeddleProcess(tmp_path_factory.mktemp("differential") / "data") as server:
        both = Pair(server.url, "session")
        yield both
        both.close()


def report(pair: Pair, operations: list[Operation], seed: int) -> str:
    """The first differences of a session, with the operations that lead to the very first; empty without any."""
    found = list(islice(pair.mismatches([*operations]), 5))
    if not found:
        return ""
    leading = [item for item in pair.shortened(operations, found[0].step)[:-1] if item is not None]
    steps = "\n".join(f"{item.verb} {item.path} {item.body}"[:800] for item in leading)
    return f"seed {seed}:\n{steps}\n\n" + "\n\n".join(item.describe() for item in found)


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_same_answers(pair: Pair, seed: int) -> None:
    """A session of random operations is answered alike."""
    problem = report(pair, generate(seed, OPERATIONS), seed)
    assert not problem, problem


def test_every_deviation_says_why() -> None:
    """Each entry of the list names a section of the contract and a reason."""
    assert all(item.section[0].isdigit() and len(item.reason) > 20 for item in [*CORRECTIONS, *DEVIATIONS])


def test_the_generator_reaches_every_operator() -> None:
    """The sessions of the normal run hold every operator of the query language, and every route of the groups."""
    sessions = [generate(seed, OPERATIONS) for seed in range(1, 5)]
    bodies = "".join(str(item.body) for session in sessions for item in session)
    operators = [
        "$and",
        "$or",
        "$not",
        "$eq",
        "$gt",
        "$gte",
        "$lt",
        "$lte",
        "$in",
        "$contains",
        "$convert",
        "$getField",
    ]
    assert [name for name in operators if f"'{name}'" not in bodies] == []
    paths = {item.path for session in sessions for item in session}
    missing = {
        "/calls/stream_query",
        "/calls/usage",
        "/trace/usage",
        "/threads/stream_query",
        "/tags",
        "/aliases",
    } - paths
    assert missing == set()


def test_the_comparer_sees_a_difference(pair: Pair) -> None:
    """A defect put into one side's answers is reported."""
    operations = generate(1, 40)
    answer = pair.heddle.answer
    pair.heddle.answer = lambda verb, path, body: (
        (200, [{"id": "x"}]) if "stream_query" in path else answer(verb, path, body)
    )  # type: ignore[method-assign]
    try:
        assert next(pair.mismatches([*operations]), None) is not None
    finally:
        pair.heddle.answer = answer  # type: ignore[method-assign]

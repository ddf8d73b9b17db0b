"""Trials of evaluations are the same on ClickHouse as on SQLite, while they are written."""

import os
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import HeddleError
from heddle.store.clickhouse.store import TableRows
from heddle.store.clickhouse.trials import Trials
from heddle.store.control.table_rows import ControlRowTexts
from heddle.wire import jsontext, refs
from heddle.wire.calls import CallRow, End, Start, Usage
from heddle.wire.query import parse_query
from heddle.wire.trials import Trial, TrialFilter, TrialSort, TrialsQuery, TrialStats
from tests.support.clickhouse import MISSING
from tests.support.selection import examples, with_breadth
from tests.support.two_stores import TwoStores, in_both

Json = Any
SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(20 if SOAK else 2)
PROJECT = refs.internal_project("team/trials")
MODEL = f"{refs.INTERNAL}{PROJECT}/object/m:v"
SCORE_REF = f"{refs.INTERNAL}{PROJECT}/object/score:v"
DIGESTS = [f"row{number}" for number in range(4)]
RUNS = ("run-0", "run-1", "run-2")
PATHS = ["scores.s", "scores.deep.x", "scores.flag", "inputs.n", "inputs.t", "output.k", "output", "row_digest"]

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")


def start(call_id: str, parent: str | None, op: str, at: int, inputs: Json, attributes: Json = None) -> Start:
    """The first half of a call."""
    texts = jsontext.dumps(inputs), jsontext.dumps(attributes or {})
    return Start(PROJECT, call_id, "run", op, at, *texts, "ada", parent_id=parent)


def end(chance: random.Random, call: Start, output: Json) -> End:
    """The second half."""
    usage = [
        Usage(model, 1, chance.randrange(99), 3, chance.choice([None, 7]), 0, 0)
        for model in chance.sample(["gpt", "ünpriced"], chance.randrange(3))
    ]
    took = chance.randrange(10**7)
    return End(PROJECT, call.id, call.started_at + took, jsontext.dumps(output), "{}", 0, usage=usage)


def value(chance: random.Random) -> Json:
    """What scores, examples and outputs hold."""
    kinds: list[Json] = [None, True, False, 0, 1, -2.5, 1.0, 2**70, "", "text", "ü\n'\\", "7", [1], {"x": 3}, SCORE_REF]
    return chance.choice(kinds)


def trial(chance: random.Random, number: int) -> tuple[list[Start], list[End]]:
    """The halves of a trial with its steps, some of them missing; each time that it comes it may have moved."""
    name, at = f"trial-{number}", number * 10**6 + chance.randrange(10**5)
    row = f"{refs.INTERNAL}{PROJECT}/object/d:v/attr/rows/id/{chance.choice(DIGESTS)}"
    example = chance.choice([row, {"n": chance.randrange(3), "t": value(chance)}, value(chance)])
    op = chance.choice(["Evaluation.predict_and_score", f"{refs.INTERNAL}{PROJECT}/op/Evaluation.predictAndScore:v"])
    model = chance.choice([MODEL, {"plain": 1.5}, "call_it"])
    whole = start(name, chance.choice(RUNS), op, at, {"model": model, "example": example})
    steps = [
        start(
            f"{name}-p", name, chance.choice(["call_it", "predict", "x"]), at + 5, {"self": model, "example": example}
        ),
        start(f"{name}-s", name, "predict_score", at + chance.randrange(9), {"self": "scorer"}, _marks(chance)),
    ]
    scores = {"s": value(chance), "deep": {"x": value(chance)}, "flag": chance.random() < 0.5}
    outputs = {
        "scores": chance.choice([scores, scores, {}, 7]),
        chance.choice(["output", "model_output"]): value(chance),
    }
    halves = [half for half in (whole, *steps) if chance.random() < 0.8]
    latency: Json = {"model_latency": chance.choice([1, 0.25, {"mean": 2}, "no"])}
    ends = [end(chance, half, outputs | latency if half is whole else value(chance)) for half in halves]
    return halves, [half for half in ends if chance.random() < 0.85]


def _marks(chance: random.Random) -> Json:
    return chance.choice([{"_weave_eval_meta": {"score": True}}, {"weave": {"score": "true"}}, {}])


def compared(folder: Path, work: Callable[[TwoStores, Trials], Awaitable[None]]) -> None:
    """Run with both stores and the trials of ClickHouse."""

    async def run(stores: TwoStores) -> None:
        await work(stores, Trials(stores.clickhouse, lambda key: stores.sqlite.blobs.read(key).decode()))

    in_both(folder, run)


def asked(chance: random.Random) -> TrialsQuery:
    """A random query."""
    runs = tuple(chance.sample(RUNS, chance.randrange(1, 4)))
    return TrialsQuery(
        PROJECT,
        runs,
        intersection=chance.random() < 0.3,
        filters=tuple(_filter(chance, runs) for _ in range(chance.randrange(3))),
        any_filter=chance.random() < 0.5,
        sort=tuple(_sort(chance, runs) for _ in range(chance.randrange(3))),
        limit=chance.choice([None, 3, 50]),
        offset=chance.choice([0, 0, 2]),
        values={SCORE_REF: "0.75"},
    )


def _filter(chance: random.Random, runs: tuple[str, ...]) -> TrialFilter:
    literal = chance.choice([1, 0, 1.5, "text", "7", True, "ü\n'\\"])
    condition = {chance.choice(["$eq", "$gt", "$gte"]): [{"$getField": chance.choice(PATHS)}, {"$literal": literal}]}
    query = parse_query({"$expr": {"$not": [condition]} if chance.random() < 0.2 else condition})
    return TrialFilter(query, chance.choice([None, chance.choice(runs)]))


def _sort(chance: random.Random, runs: tuple[str, ...]) -> TrialSort:
    mode = "difference" if chance.random() < 0.2 else "value"
    path = chance.choice(PATHS[:-1])
    return TrialSort(path, chance.random() < 0.5, chance.choice([None, chance.choice(runs)]), mode)  # type: ignore[arg-type]


def facts(found: Trial) -> Json:
    """A trial without the numbers of rows, which are each store's own."""
    calls = [_call(call) for call in (found.call, *found.children)]
    predict = found.predict and found.predict.id
    return found.row_digest, found.evaluation, calls, predict, found.total_tokens, sorted(map(repr, found.usage))


def _call(row: CallRow) -> Json:
    return {name: getattr(row, name) for name in CallRow.__dataclass_fields__ if name != "rid"}


def figures(found: Iterable[TrialStats]) -> Json:
    """All that a sum over trials is given."""
    return sorted(repr(row._replace(usage=sorted(map(repr, row.usage)))) for row in found)


async def answers(trials: Any, query: TrialsQuery) -> Json:
    """What all verbs answer."""
    try:
        page = await trials.page(query)
    except HeddleError as error:
        return type(error)
    rows = [await trials.of_rows(PROJECT, query.evaluations, page.row_digests, kids) for kids in (True, False)]
    sums = [await trials.fold(query, *how, figures, how[0]) for how in ((True, True), (False, False), (False, True))]
    return page, [[facts(item) for item in found] for found in rows], sums


async def assert_equal(stores: TwoStores, trials: Trials, chance: random.Random, queries: int) -> int:
    """Ask both stores the same; returns how many rows there were."""
    total = 0
    for _ in range(queries):
        query = asked(chance)
        expected = await answers(stores.sqlite.trials, query)
        assert await answers(trials, query) == expected, query
        total += 0 if isinstance(expected, type) else len(expected[0].row_digests)
    expected_refs = await stores.sqlite.trials.refs_in_scores(PROJECT, RUNS)
    assert await trials.refs_in_scores(PROJECT, RUNS) == expected_refs
    return total


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_random_trials_are_found_alike_while_they_come(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def work(stores: TwoStores, trials: Trials) -> None:
        texts = {digest: jsontext.dumps({"n": place, "t": value(chance)}) for place, digest in enumerate(DIGESTS)}
        embedded = ControlRowTexts(stores.control)
        done = await embedded.put(PROJECT, texts)
        await stores.control.write(done)
        await TableRows(stores.clickhouse).put(PROJECT, texts)
        assert await answers(trials, TrialsQuery(PROJECT, RUNS)) == await answers(
            stores.sqlite.trials, TrialsQuery(PROJECT, RUNS)
        )
        found = 0
        for step in range(4):
            parts = [trial(chance, chance.randrange(25)) for _ in range(12)]
            await stores.write([half for halves, _ in parts for half in halves], [])
            await stores.write([], [half for _, ends in parts for half in ends])
            if step == 2:
                await stores.delete(PROJECT, ["trial-3", "trial-4-p", "trial-5-s"])
            found += await assert_equal(stores, trials, chance, 2 + examples(2))
        assert found > 10
        await stores.purge_older(PROJECT, 12 * 10**6)
        await assert_equal(stores, trials, chance, 2)

    compared(tmp_path, work)


def test_texts_in_files_count_whole(tmp_path: Path) -> None:
    long = "ü" * 5000
    chance = random.Random(0)

    async def work(stores: TwoStores, trials: Trials) -> None:
        example, output = {"n": long}, {"output": {"k": long}, "scores": {"s": 0.5, "why": long}}
        call = start("trial", RUNS[0], "Evaluation.predict_and_score", 1, {"model": MODEL, "example": {"n": "ü"}})
        ended = end(chance, call, {"output": {"k": "ü"}, "scores": {"s": 0.5, "why": "ü"}})
        whole = {"inputs": {"model": MODEL, "example": example}, "output": output}
        blobs = {name: stores.sqlite.blobs.put_bytes(jsontext.dumps_bytes(text)) for name, text in whole.items()}
        call.files, ended.files = {"inputs": blobs["inputs"]}, {"output": blobs["output"]}
        await stores.write([call], [ended])
        for path in ("output.k", "inputs.n", "scores.why"):
            query = {"$expr": {"$eq": [{"$getField": path}, {"$literal": long}]}}
            asking = TrialsQuery(PROJECT, RUNS, filters=(TrialFilter(parse_query(query)),))
            found = await answers(trials, asking)
            assert found == await answers(stores.sqlite.trials, asking)
            assert found[0].total == 1 and found[1][0][0][2][0]["output"] == jsontext.dumps(output)

    compared(tmp_path, work)

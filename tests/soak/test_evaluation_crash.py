"""`kill -9` in the middle of an evaluation that the server runs: each row is scored exactly once all the same."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
ROWS = 200 if SOAK else 60
KILLS = 6 if SOAK else 1
PATIENCE = 600.0
SCORERS = {"ExactMatchScorer": {"ignore_case": True}, "RegexMatchScorer": {"pattern": "[a-z]+"}}

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


@pytest.fixture
def heddle(tmp_path: Path) -> Iterator[HeddleProcess]:
    """A server of the test's own that the test may kill; killed at the end whatever happened."""
    process = HeddleProcess(tmp_path / "data", evaluation_parallel=4)
    yield process
    process.kill()


def done(lab: Lab, call_id: str) -> int:
    """Rows that are stored."""
    status = lab.status(call_id)
    return ROWS if status["code"] == "complete" else int(status["completed_rows"])


def killed_at(heddle: HeddleProcess, lab: Lab, call_id: str, count: int) -> int:
    """Wait for so many rows, kill the server without warning and start it again; the rows that it had then."""
    deadline = time.monotonic() + PATIENCE
    while done(lab, call_id) < count:
        assert time.monotonic() < deadline, heddle.log()[-2000:]
        time.sleep(0.01)
    heddle.kill()
    heddle.start()
    return done(lab, call_id)


def test_every_row_is_scored_once_through_kills(heddle: HeddleProcess, project: str) -> None:
    """The tiny model over a dataset with two scorers; what was stored before a kill is what is there at the end."""
    heddle.start()
    lab = Lab(Wire(heddle.url, project))
    rows = [{"number": n, "target": str(n)} for n in range(ROWS)]
    dataset = lab.dataset(rows)
    template = [{"role": "user", "content": "Say {number}"}]
    model = lab.model("heddle-tiny", messages_template=template, max_tokens=6, temperature=0)
    scorers = [lab.scorer(name, **fields) for name, fields in SCORERS.items()]
    call_id = lab.evaluate(lab.evaluation(dataset, scorers), model)
    seen: dict[str, Any] = {}
    points = sorted(random.Random(7).sample(range(2, ROWS - 10), KILLS))
    left = [killed_at(heddle, lab, call_id, count) for count in points]
    assert left[0] < ROWS, "the first kill came in the middle"
    seen = {row["id"]: row for row in lab.children(call_id, "Evaluation.predict_and_score")}
    status = lab.ended(call_id, PATIENCE)
    assert status["code"] == "complete", status
    check(lab, call_id, seen, dataset)
    for name in SCORERS:
        (score,) = status["output"][name].values()
        assert 0 <= score["true_count"] <= ROWS and score["true_fraction"] == score["true_count"] / ROWS
    (job,) = lab.jobs_done()
    assert job["state"] == "succeeded" and job["result"]["cases"] == ROWS and job["result"]["failed"] == 0
    if SOAK:
        print(f"{KILLS} kills, rows stored at each restart: {left}")
    assert "Traceback" not in heddle.log()
    lab.wire.client.close()


def check(lab: Lab, call_id: str, seen: dict[str, Any], dataset: str) -> None:
    """Each row has one call, one answer, one score and one feedback per scorer; none of the trace is anything else."""
    calls = lab.wire.calls(filter={"trace_ids": [call_id]})
    names = Counter(call["op_name"].partition("/op/")[2].partition(":")[0] for call in calls)
    assert names == {
        "Evaluation.evaluate": 1,
        "Evaluation.predict_and_score": ROWS,
        "LLMStructuredCompletionModel.predict": ROWS,
        **{f"{name}.score": ROWS for name in SCORERS},
        "Evaluation.summarize": 1,
    }
    rows = {call["id"]: call for call in calls if "predict_and_score" in call["op_name"]}
    assert all(rows[row_id] == row for row_id, row in seen.items()), "what was stored is not done again"
    examples = Counter(row["inputs"]["example"] for row in rows.values())
    assert len(examples) == ROWS and set(examples.values()) == {1}
    assert all(example.startswith(dataset) for example in examples)
    predicted = {call["id"] for call in calls if ".predict:" in call["op_name"]}
    scored = {call["id"]: call for call in calls if ".score:" in call["op_name"]}
    found = lab.wire.post("/feedback/query", limit=10 * ROWS)["result"]
    pairs = Counter((item["weave_ref"].rpartition("/")[2], item["feedback_type"]) for item in found)
    assert set(pairs.values()) == {1} and len(pairs) == len(SCORERS) * ROWS
    assert {call for call, _ in pairs} == predicted
    for item in found:
        assert item["payload"]["output"] == scored[item["call_ref"].rpartition("/")[2]]["output"]


def test_a_stopping_server_puts_its_evaluation_back(heddle: HeddleProcess, project: str) -> None:
    """SIGTERM does not wait for the rest of the rows; the next server goes on at once."""
    heddle.start()
    lab = Lab(Wire(heddle.url, project))
    template = [{"role": "user", "content": "Say {number}"}]
    model = lab.model("heddle-tiny", messages_template=template, max_tokens=6, temperature=0)
    dataset = lab.dataset([{"number": n, "target": str(n)} for n in range(ROWS)])
    call_id = lab.evaluate(lab.evaluation(dataset, [lab.scorer("ExactMatchScorer")]), model)
    deadline = time.monotonic() + PATIENCE
    while done(lab, call_id) < 2:
        assert time.monotonic() < deadline, heddle.log()[-2000:]
        time.sleep(0.01)
    assert heddle.terminate() == 0
    with pytest.raises(httpx.TransportError):
        lab.status(call_id)
    heddle.start()
    (job,) = lab.jobs()
    assert job["state"] in ("queued", "running")
    assert lab.ended(call_id, PATIENCE)["code"] == "complete"
    assert len(lab.children(call_id, "Evaluation.predict_and_score")) == ROWS
    assert "Traceback" not in heddle.log()
    lab.wire.client.close()

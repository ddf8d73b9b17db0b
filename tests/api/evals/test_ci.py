"""`heddle eval run` and `heddle eval compare` as a CI job runs them, against a real server."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from heddle.inference.served_model import TINY
from tests.conftest import ROOT
from tests.support.chat import until
from tests.support.cli import heddle, make_key
from tests.support.gated import GatedProvider
from tests.support.provider import FakeProvider
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess
from tests.support.stored_runs import Writer

PROJECT = "team/gate"
ROWS = [{"prompt": f"word number {n}", "target": f"WORD NUMBER {n}"} for n in range(12)]
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Bench:
    """A server with the tiny model and a provider that answers in capitals, and an evaluation that wants capitals."""

    process: HeddleProcess
    key: str
    writer: Writer
    evaluation: str

    def run(self, *words: object, project: str | None = PROJECT, key: str | None = None) -> Done:
        """The finished command."""
        where = ["--project", project] if project else []
        return heddle("eval", *words, *where, "--server", self.process.url, "--key", key or self.key)

    def stored_run(self, right: int, at: int) -> str:
        """A run by hand that got so many rows right."""
        value = self.writer.post("/obj/read", project_id=PROJECT, object_id="capitals", digest="latest")["obj"]["val"]
        dataset = value["dataset"]
        table = self.writer.post("/obj/read", project_id=PROJECT, object_id="words", digest="latest")["obj"]["val"]
        rows = self.writer.post("/table/query", project_id=PROJECT, digest=table["rows"].rpartition("/")[2])["rows"]
        answers = [{"output": "x", "scores": {"ExactMatchScorer": {"exact_match": n < right}}} for n in range(12)]
        return self.writer.run(self.evaluation, dataset, [row["digest"] for row in rows], "by-hand", answers, at)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The evaluation `capitals`, whose scorer wants the prompt in capitals."""
    data = tmp_path_factory.mktemp("gate") / "data"
    key = make_key(data, "ci", "--project", PROJECT)
    with (
        FakeProvider() as provider,
        HeddleProcess(data, auth="on", providers=f"fake={provider.url}") as process,
        httpx.Client(base_url=process.url, auth=("api", key), timeout=60) as client,
    ):

        def post(path: str, **body: Any) -> Any:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, f"{path}: {answer.text}"
            return answer.json()

        writer = Writer(post, PROJECT)
        dataset, _ = writer.dataset("words", ROWS)
        evaluation = writer.evaluation("capitals", dataset, [writer.scorer("ExactMatchScorer")])
        yield Bench(process, key, writer, evaluation)


def test_a_worse_model_is_refused(bench: Bench, tmp_path: Path) -> None:
    done = bench.run(
        "run", "capitals", "--model", TINY, "--max-tokens", 8, "--baseline", "fake/swift",
        "--fail-if", "score < -0.02", "--fail-if", "error_share > 0",
        "--junit", tmp_path / "gate.xml", "--json", tmp_path / "gate.json",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "12 rows in both" in done.stdout and "failed  score < -0.02: it is -1" in done.stdout
    assert "passed  error_share > 0: it is 0" in done.stdout and "Traceback" not in done.stderr
    report = json.loads((tmp_path / "gate.json").read_text())
    assert report["regression"] is True and report["measures"]["ExactMatchScorer.exact_match"]["rows"] == 12
    assert report["measures"]["score"] == {
        "baseline": 1.0, "run": 0.0, "difference": -1.0, "interval": [-1.0, -1.0], "rows": 12,
    }  # fmt: skip
    assert {"latency", "tokens", "error_share"} <= report["measures"].keys()
    (suite,) = ET.parse(tmp_path / "gate.xml").getroot()
    assert suite.get("name") == "capitals" and suite.get("failures") == "1"
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["score < -0.02"]
    for call_id in (report["run"], report["baseline"]):
        status = bench.writer.post("/evaluations/status", project_id=PROJECT, call_id=call_id)["status"]
        assert status["code"] == "complete"


def test_a_model_as_good_as_the_newest_run_passes(bench: Bench) -> None:
    first = bench.run("run", "capitals:latest", "--model", "fake/swift", "--baseline", "fake/swift")
    assert first.returncode == 0, first.stdout + first.stderr
    again = bench.run(
        "run", bench.evaluation, "--model", "fake/swift", "--baseline", "latest",
        "--fail-if", "score < 0", "--fail-if", "mean(score) < 0.99", project=None,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    newest = first.stdout.split("run ", 1)[1].split(",", 1)[0]
    assert f"baseline {newest}" in again.stdout and again.stdout.count("passed") == 2


def test_the_first_run_becomes_the_baseline(bench: Bench, tmp_path: Path) -> None:
    bench.writer.evaluation("fresh", bench.writer.dataset("words", ROWS)[0], [bench.writer.scorer("ExactMatchScorer")])
    words = ("run", "fresh", "--model", "fake/swift", "--fail-if", "score < 0", "--fail-if", "mean(score) < 2")
    files = ("--markdown", tmp_path / "gate.md", "--sarif", tmp_path / "gate.sarif", "--json", tmp_path / "gate.json")
    first = bench.run(*words, *files)
    assert first.returncode == 0 and "the baseline from now on" in first.stdout, first.stdout + first.stderr
    report = json.loads((tmp_path / "gate.json").read_text())
    assert report["baseline"] is None and report["measures"]["score"]["run"] == 1.0
    assert "it is the baseline from now on" in (tmp_path / "gate.md").read_text()
    again = bench.run(*words, *files)
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"baseline {report['run']}" in again.stdout
    assert "- ✅ passed: score \\< 0: it is 0" in (tmp_path / "gate.md").read_text()
    (found,) = json.loads((tmp_path / "gate.sarif").read_text())["runs"][0]["results"]
    assert found["ruleId"] == "mean(score) < 2" and found["message"]["text"].startswith(
        "mean(score) < 2: it is 1 (run "
    )


def test_a_run_in_which_every_answer_failed_is_no_baseline(bench: Bench) -> None:
    bench.writer.evaluation("wordy", bench.writer.dataset("words", ROWS)[0], [bench.writer.scorer("ExactMatchScorer")])
    first = bench.run("run", "wordy", "--model", "fake/swift")
    made = first.stdout.split("run ", 1)[1].split(":", 1)[0]
    failed = bench.run("run", "wordy", "--model", "fake/model-deeply-wrong")
    assert failed.returncode == 2 and "every answer of run" in failed.stderr, failed.stdout + failed.stderr
    again = bench.run("run", "wordy", "--model", "fake/swift", "--fail-if", "score < 0")
    assert again.returncode == 0 and f"baseline {made}" in again.stdout, again.stdout + again.stderr


def test_answers_that_a_judge_gave_no_score_are_told(bench: Bench, tmp_path: Path) -> None:
    settings = {"llm_model_id": "fake/model-deeply-wrong", "default_params": {"response_format": "text"}}
    model_class = "LLMStructuredCompletionModel"
    value = {"_type": model_class, "_class_name": model_class, "_bases": ["Model", "Object", "BaseModel"], **settings}
    model = bench.writer.object("refuser", value)
    judge = bench.writer.scorer("LLMAsAJudgeScorer", model=model, scoring_prompt="Rate {output}")
    bench.writer.evaluation("judged", bench.writer.dataset("words", ROWS)[0], [judge])
    done = bench.run("run", "judged", "--model", "fake/swift", "--json", tmp_path / "gate.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gate.json").read_text())
    (warning,) = report["warnings"]
    assert warning.startswith(
        f"12 answers of run {report['run']} have no score of LLMAsAJudgeScorer: fake returned 400"
    )


def test_the_job_of_the_manual_runs(bench: Bench, tmp_path: Path) -> None:
    """The step of the GitHub Actions example, with its variables; what it writes is where its other steps look."""
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(# \.github/workflows.*?)```", page, re.DOTALL)
    (tmp_path / "quality.yml").write_text(block, encoding="utf-8")
    checker = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.github-workflows"]
    checked = subprocess.run([*checker, str(tmp_path / "quality.yml")], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    steps = yaml.safe_load(block)["jobs"]["quality"]["steps"]
    (step,) = (step for step in steps if "HEDDLE_SERVER" in step.get("env", {}))
    (upload,) = (step["with"] for step in steps if "upload-sarif" in step.get("uses", ""))
    names = {"support-quality": "capitals", "wandb-artifact:///acme/support/writer": "fake/swift"}
    line = step["run"].replace("heddle eval", f"{sys.executable} -m heddle eval")
    for old, new in names.items():
        assert old in line
        line = line.replace(old, new)
    variables = {"HEDDLE_SERVER": bench.process.url, "HEDDLE_API_KEY": bench.key, "HEDDLE_PROJECT": PROJECT}
    assert set(step["env"]) == set(variables)
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    done = subprocess.run(
        ["bash", "-e", "-c", line], env=own | variables | summary, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in (tmp_path / "summary.md").read_text() or "baseline" in (tmp_path / "summary.md").read_text()
    assert json.loads((tmp_path / upload["sarif_file"]).read_text())["runs"][0]["results"] == []
    assert ET.fromstring((tmp_path / "gate.xml").read_text()).get("failures") == "0"


@pytest.mark.thorough
def test_a_stored_model_is_named_by_name_version_or_ref(bench: Bench) -> None:
    value = {"llm_model_id": "fake/swift", "name": "swift", "default_params": {"response_format": "text"}}
    body = {"project_id": PROJECT, "object_id": "swift", "val": value}
    made = bench.writer.post("/obj/create", obj={**body, "builtin_object_class": "LLMStructuredCompletionModel"})
    baseline = bench.stored_run(12, 0)
    for named in ("swift", "swift:v0", f"weave:///{PROJECT}/object/swift:{made['digest']}"):
        done = bench.run("run", "capitals", "--model", named, "--baseline", baseline, "--fail-if", "score < 0")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"baseline {baseline}" in done.stdout


@pytest.mark.thorough
def test_parameters_are_those_of_the_served_model_each_time(bench: Bench) -> None:
    baseline = bench.stored_run(12, 4)
    for most in (1, 2):
        done = bench.run("run", "capitals", "--model", TINY, "--max-tokens", most, "--baseline", baseline)
        assert done.returncode == 0, done.stdout + done.stderr
        run_id = done.stdout.split("run ", 1)[1].split(",", 1)[0]
        chosen = {"project_id": PROJECT, "filter": {"trace_ids": [run_id]}}
        answer = httpx.post(bench.process.url + "/calls/stream_query", json=chosen, auth=("api", bench.key))
        calls = [json.loads(line) for line in answer.text.splitlines()]
        used = [call["summary"]["usage"][TINY] for call in calls if TINY in call["summary"].get("usage", {})]
        assert {usage["completion_tokens"] for usage in used} == {most}
    refused = bench.run("run", "capitals", "--model", f"served-{TINY}", "--max-tokens", 1, "--baseline", baseline)
    assert refused.returncode == 2 and "has its own parameters" in refused.stderr


def test_stored_runs_are_compared(bench: Bench, tmp_path: Path) -> None:
    good, bad = bench.stored_run(10, 1), bench.stored_run(7, 2)
    report = tmp_path / "r.json"
    done = bench.run("compare", bad, good, "--fail-if", "ExactMatchScorer.exact_match < -20%", "--json", report)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(report.read_text())["measures"]["ExactMatchScorer"]
    assert found["baseline"] == pytest.approx(10 / 12) and found["difference"] == pytest.approx(-3 / 12)
    low, high = found["interval"]
    assert -0.6 < low < -0.25 < high <= 0.0
    assert bench.run("compare", good, bad, "--fail-if", "score < -0.02").returncode == 0
    assert bench.run("compare", bad, good, "--fail-if", "high(score) < -0.1").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "nothing", "--model", "fake/swift", "--baseline", "fake/swift"), "evaluation 'nothing' not found"),
        (("run", "words", "--model", "fake/swift", "--baseline", "fake/swift"), "is not an Evaluation but Dataset"),
        (("run", "capitals", "--model", "no-such-model", "--baseline", "fake/swift"), "neither an object of team/gate"),
        (("run", "capitals", "--model", "words", "--baseline", "fake/swift"), "words"),
        (("run", "capitals", "--model", "fake/model-missing", "--baseline", "fake/swift"), "no such model"),
        (("run", "capitals", "--model", "x", "--fail-if", "score"), "is not valid; expected a condition"),
        (("compare", "00000000-0000-4000-8000-000000000000", "0" * 16), "call 00000000-0000"),
        (("compare", "a", "b", "--fail-if", "<"), "is not valid; expected a condition"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_ends_with_2_and_a_line(
    bench: Bench, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = bench.run(*words, "--junit", tmp_path / "gate.xml")
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    (suite,) = ET.parse(tmp_path / "gate.xml").getroot()
    assert suite.get("errors") == "1" and suite.get("tests") == "1"


def test_an_unknown_measure_and_a_run_of_something_else_are_told(bench: Bench) -> None:
    good = bench.stored_run(10, 3)
    done = bench.run("compare", good, good, "--fail-if", "acuracy < 0")
    assert done.returncode == 2 and "the runs have: score, ExactMatchScorer" in done.stderr
    answer = httpx.post(
        bench.process.url + "/calls/stream_query",
        json={"project_id": PROJECT, "filter": {"parent_ids": [good]}, "limit": 1},
        auth=("api", bench.key),
    )
    row = json.loads(answer.text)["id"]
    done = bench.run("compare", row, good)
    assert done.returncode == 2 and "is not an evaluation run but Evaluation.predict_and_score" in done.stderr


def test_no_project_no_key_and_no_server_are_told(bench: Bench) -> None:
    assert "set the project" in bench.run("compare", "a", "b", project=None).stderr
    done = bench.run("compare", "a", "b", key="heddle-wrong")
    assert done.returncode == 2 and "returned 401" in done.stderr
    done = bench.run("compare", "a", "b", project="team/other")
    assert done.returncode == 2 and "returned 403" in done.stderr and "cannot access 'team/other'" in done.stderr
    done = heddle("eval", "compare", "a", "b", "--project", "a/b", "--server", "127.0.0.1:1")
    assert done.returncode == 2 and "must be like http://" in done.stderr


@pytest.mark.thorough
def test_a_restart_of_the_server_is_waited_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with GatedProvider(5) as provider:
        process = HeddleProcess(data, providers=f"fake={provider.url}", model="none", evaluation_parallel=4).start()
        try:
            writer = Writer(_poster(process), PROJECT)
            dataset, _ = writer.dataset("words", ROWS)
            writer.evaluation("capitals", dataset, [writer.scorer("ExactMatchScorer")])
            words = ["eval", "run", "capitals", "--model", "fake/swift", "--baseline", "fake/swift"]
            words += ["--project", PROJECT, "--server", process.url, "--fail-if", "score < 0"]
            command = [sys.executable, "-m", "heddle", *words]
            gate = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until(lambda: len(provider.requests) >= 5, "five answers")
            process.kill()
            provider.opened.set()
            process.start()
            said, told = gate.communicate(timeout=120)
            assert gate.returncode == 0, said + told
            assert "12 rows in both" in said and "passed  score < 0: it is 0" in said
        finally:
            process.kill()


def _poster(process: HeddleProcess) -> Any:
    def post(path: str, **body: Any) -> Any:
        answer = httpx.post(process.url + path, json=body, timeout=60)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    return post


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_run(bench: Bench, number: signal.Signals) -> None:
    before = _jobs(bench, "cancelled")
    words = ["eval", "run", "capitals", "--model", "fake/model-hangs", "--baseline", bench.stored_run(1, 9)]
    words += ["--project", PROJECT, "--server", bench.process.url, "--key", bench.key]
    started = subprocess.Popen([sys.executable, "-m", "heddle", *words], stderr=subprocess.PIPE, text=True)
    until(lambda: bool(_jobs(bench, "running")), "the run has begun")
    running = _jobs(bench, "running")
    started.send_signal(number)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 130 and "Traceback" not in told
    until(lambda: _jobs(bench, "cancelled") == before | running, "the run is cancelled")


def _jobs(bench: Bench, state: str) -> set[str]:
    """The ids of the jobs in a state."""
    found = bench.writer.post("/evaluations/jobs/query", project_id=PROJECT, states=[state])["jobs"]
    return {job["id"] for job in found}


@pytest.mark.parametrize("reader", with_breadth(["gone", "full", "closed"]))
def test_what_becomes_of_standard_output_is_no_regression(bench: Bench, tmp_path: Path, reader: str) -> None:
    good, bad = bench.stored_run(10, 3), bench.stored_run(2, 4)
    place = ["--project", PROJECT, "--server", bench.process.url, "--key", bench.key]
    codes = []
    for ours, theirs in ((good, bad), (bad, good)):
        words = ["eval", "compare", ours, theirs, "--fail-if", "score < 0", "--junit", str(tmp_path / ours), *place]
        script = 'exec "$@" >&-' if reader == "closed" else 'exec "$@"'
        if reader == "full":
            writing = os.open("/dev/full", os.O_WRONLY)
        else:
            reading, writing = os.pipe()
            os.close(reading)
        command = ["sh", "-c", script, "sh", sys.executable, "-m", "heddle", *words]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        os.close(writing)
        codes.append(done.returncode)
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
        assert len(ET.parse(tmp_path / ours).getroot()) == 1
    assert codes == ([2, 2] if reader == "full" else [0, 1])


def test_a_report_that_cannot_be_written_is_no_regression(bench: Bench, tmp_path: Path) -> None:
    for words in (("run", "nothing", "--model", "m"), ("compare", *[bench.stored_run(10, 3)] * 2)):
        done = bench.run(*words, "--junit", tmp_path / "none" / "gate.xml")
        assert done.returncode == 2 and "gate.xml cannot be written: " in done.stderr, done.stderr

"""What Phoenix and MLflow answered (recorded from the real products) and what Langfuse exports, in a heddle server."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.errors import HeddleError
from heddle.remote import Refused, Remote
from heddle.transfer import langfuse, mlflow, phoenix
from heddle.transfer.target import Target, any_value, explain_mismatch, object_id
from tests.support.replayed import replay, served
from tests.support.server import HeddleProcess

RECORDED = Path(__file__).parent.parent.parent / "data" / "imports"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with HeddleProcess(tmp_path_factory.mktemp("imports"), model="none") as process:
        yield process


def recorded(name: str) -> list[Json]:
    exchanges: list[Json] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return exchanges


def calls_of(server: HeddleProcess, project: str) -> list[Json]:
    asked = {"project_id": project, "include_feedback": True}
    answer = httpx.post(f"{server.url}/calls/stream_query", json=asked)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.split("\n") if line]


def by_name(calls: list[Json]) -> dict[str, Json]:
    """By the name of the op, whatever a call is called."""
    return {call["op_name"].rpartition("/")[2].partition(":")[0]: call for call in calls}


def scores(call: Json) -> dict[str, Json]:
    return {row["feedback_type"]: row["payload"] for row in call["summary"]["weave"]["feedback"]}


def test_phoenix_spans_annotations_and_datasets(server: HeddleProcess) -> None:
    with served(replay(recorded("phoenix"))) as address:
        for _ in range(2):
            source = Remote(address, from_environment=False)
            report = phoenix.import_project(source, "shop", Target(server.url, None, "team/phoenix"))
    # The second import finds all of it there.
    assert report.known == {"spans": 3, "feedback": 3, "datasets": 1, "rows of datasets": 2}
    assert not any(report.new.values())
    assert list(report.left_out.values()) == [1] and "experiments" in next(iter(report.left_out))
    calls = by_name(calls_of(server, "team/phoenix"))
    assert set(calls) == {"assistant", "chatcompletion", "broken"}
    root, chat = calls["assistant"], calls["chatcompletion"]
    assert chat["parent_id"] == root["id"] and root["thread_id"] == "session-1"
    assert chat["summary"]["usage"]["gpt-5-mini"]["prompt_tokens"] == 12
    assert scores(root)["phoenix.helpful"]["score"] == 1.0 and scores(root)["phoenix.whole"]["label"] == "good"
    length = scores(chat)["phoenix.length"]
    assert (length["score"], length["label"], length["annotator_kind"], length["about"]) == (0.25, None, "CODE", "span")
    asked = {"project_id": "team/phoenix", "object_id": "questions", "digest": "latest"}
    value = httpx.post(f"{server.url}/obj/read", json=asked).json()["obj"]["val"]
    table = {"project_id": "team/phoenix", "digest": value["rows"].rsplit("/", 1)[1]}
    rows = httpx.post(f"{server.url}/table/query", json=table).json()["rows"]
    assert [row["val"]["input"]["question"] for row in rows] == ["Paris?", "Rome?"]


def test_mlflow_traces_and_assessments(server: HeddleProcess) -> None:
    with served(replay(recorded("mlflow"))) as address:
        for _ in range(2):
            source = Remote(address, from_environment=False)
            report = mlflow.import_experiment(source, "shop", Target(server.url, None, "team/mlflow"))
        with pytest.raises(HeddleError, match="there is no experiment 'none'; there are Default, shop"):
            mlflow.import_experiment(source, "none", Target(server.url, None, "team/mlflow"))
    assert report.known == {"spans": 3, "feedback": 3} and not any(report.new.values()) and not report.left_out
    calls = by_name(calls_of(server, "team/mlflow"))
    root, chat = calls["assistant"], calls["chat"]
    assert root["inputs"]["mlflow.spanInputs"] == {"question": "How warm is it in Paris?"}
    assert root["thread_id"] == "session-1" and chat["parent_id"] == root["id"]
    assert chat["summary"]["usage"]["gpt-5-mini"]["total_tokens"] == 19
    assert scores(root)["mlflow.answer"]["value"] == {"degrees": 18}
    assert scores(root)["mlflow.helpful"]["value"] is True and scores(chat)["mlflow.length"]["value"] == 0.25
    assert calls["broken"]["summary"]["weave"]["status"] == "error"


def test_traces_whose_spans_are_elsewhere_are_said_to_be_left(server: HeddleProcess) -> None:
    exchanges = recorded("mlflow")
    exchanges = [one for one in exchanges if "artifact" not in one["target"] and "batchGet" not in one["target"]]
    for one in exchanges:
        for trace in one["answer"].get("traces") or ():
            trace["tags"].pop("mlflow.trace.spansLocation", None)
    with served(replay(exchanges)) as address:
        target = Target(server.url, None, "team/empty")
        report = mlflow.import_experiment(Remote(address, from_environment=False), "shop", target)
    assert sum(report.left_out.values()) == 2 and not report.new


def test_spans_in_artifacts_come_over_like_those_in_the_store(server: HeddleProcess) -> None:
    about = {"trace_id": "tr-1", "tags": {"team": "weather"}, "trace_metadata": {}}
    span = {"trace_id": "WFNy9DDQgd5c/rvW+rfOdA==", "span_id": "kXdmf/d26Hc=", "parent_span_id": None, "name": "asked"}
    span |= {"start_time_unix_nano": 1795313445925454889, "end_time_unix_nano": 1795313446890772508, "links": []}
    span |= {"events": [{"name": "note", "time_unix_nano": 1795313445925454999, "attributes": {"n": 1}}]}
    span |= {"status": {"code": "STATUS_CODE_OK", "message": ""}}
    span |= {"attributes": {"mlflow.spanInputs": '{"question": "Paris?"}', "mlflow.spanOutputs": '"18"'}}
    answers: dict[str, Json] = {
        "/api/2.0/mlflow/experiments/search": {"experiments": [{"name": "shop", "experiment_id": "1"}]},
        "/api/3.0/mlflow/traces/search": {"traces": [about]},
        "/ajax-api/3.0/mlflow/get-trace-artifact": {"spans": [span]},
    }
    with served(lambda method, target, body: (200, answers[target.partition("?")[0]])) as address:
        source = Remote(address, from_environment=False)
        report = mlflow.import_experiment(source, "shop", Target(server.url, None, "team/artifact"))
    assert report.new == {"spans": 1} and not report.left_out
    call = calls_of(server, "team/artifact")[0]
    assert call["id"] == "9177667ff776e877" and call["inputs"]["mlflow.spanInputs"] == {"question": "Paris?"}
    assert call["output"]["mlflow.spanOutputs"] == "18"


def test_what_is_no_phoenix_is_refused(server: HeddleProcess) -> None:
    target = Target(server.url, None, "team/wrong")
    refused = pytest.raises(HeddleError, match="is it the right one")
    with served(lambda *_: (200, {"other": 1})) as address, refused, explain_mismatch(address):
        phoenix.import_project(Remote(address, from_environment=False), "shop", target)
    with served(lambda *_: (404, {"detail": "no"})) as address, pytest.raises(Refused, match="404"):
        phoenix.import_project(Remote(address, from_environment=False), "shop", target)


TRACE, ROOT, CHILD = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def exported(name: str) -> list[Json]:
    """Rows as the reference of Langfuse's exports describes them."""
    text = (RECORDED / f"langfuse-{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def write(path: Path, rows: list[Json]) -> None:
    """A file of an export, of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".parquet" in path.name:
        import pyarrow
        from pyarrow import parquet

        fields = dict.fromkeys(key for row in rows for key in row)
        columns = [{key: row.get(key) or None for key in fields} for row in rows]
        parquet.write_table(pyarrow.Table.from_pylist(columns), path)
    elif ".csv" in path.name:
        fields = list(dict.fromkeys(key for row in rows for key in row))
        with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()})
    elif ".jsonl" in path.name:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv.gz", "parquet"])
def test_langfuse_exports_of_every_kind(server: HeddleProcess, tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"p/observations_v2/2026.{ending}", exported("observations"))
    write(tmp_path / f"p/scores/2026.{ending}", exported("scores"))
    write(tmp_path / f"p/traces/2026.{ending}", [{"id": "not read beside the enriched ones"}])
    project = f"team/langfuse-{ending.replace('.', '-')}"
    report = langfuse.import_files(tmp_path, Target(server.url, None, project))
    assert report.new == {"spans": 3, "feedback": 2} and sum(report.left_out.values()) == 1
    calls = by_name(calls_of(server, project))
    root, chat = calls["assistant"], calls["chat"]
    assert (root["id"], root["trace_id"], chat["id"], chat["parent_id"]) == (ROOT, TRACE, CHILD, ROOT)
    assert root["started_at"] == "2026-05-29T13:46:19.963000Z" and root["thread_id"] == "talk"
    assert "Paris?" in str(root["inputs"]) and chat["exception"] == "cut off"
    assert chat["summary"]["usage"]["gpt-5-mini"]["input_tokens"] == 12
    assert scores(root)["langfuse.helpful"]["value"] in (1, "1", 1.0)
    assert set(scores(chat)) == {"langfuse.length"}
    assert calls["ping"]["trace_id"] == langfuse.trace_id("trace-old") and len(calls["ping"]["trace_id"]) == 32


def test_older_langfuse_exports_are_joined_with_their_traces(server: HeddleProcess, tmp_path: Path) -> None:
    left = {"session_id", "user_id", "trace_name", "tags"}
    write(tmp_path / "observations/1.jsonl", [{k: v for k, v in exported("observations")[0].items() if k not in left}])
    head = {"timestamp": "2026-05-29 13:46:19.963000", "user_id": "ada", "metadata": {}, "tags": []}
    traces = [{"id": TRACE, "name": "forecast", "session_id": "talk", "input": "in", "output": "out", **head}]
    traces.append({"id": "bare", "name": "alone", "session_id": None, "input": "x", "output": None, **head})
    write(tmp_path / "traces/1.jsonl", traces)
    report = langfuse.import_files(tmp_path, Target(server.url, None, "team/langfuse-old"))
    assert report.new == {"spans": 2} and not report.left_out
    calls = by_name(calls_of(server, "team/langfuse-old"))
    assert calls["assistant"]["display_name"] == "forecast", "the name of the trace"
    assert calls["assistant"]["thread_id"] == "talk" and calls["alone"]["id"] == langfuse.span_id("bare")


def test_langfuse_folders_that_cannot_be_read_are_named(server: HeddleProcess, tmp_path: Path) -> None:
    target = Target(server.url, None, "team/langfuse-wrong")
    with pytest.raises(HeddleError, match="holds no observations"):
        langfuse.import_files(tmp_path, target)
    place = tmp_path / "observations" / "1.jsonl"
    write(place, [])
    for content, problem in (
        ("{", "cannot be read"),
        ('{"id": "a"}', "something else than expected"),
        ('{"id":"a","trace_id":"b","start_time":"never","type":"SPAN"}', "where a time should be"),
    ):
        place.write_text(content)
        with pytest.raises(HeddleError, match=problem), explain_mismatch(tmp_path):
            langfuse.import_files(tmp_path, target)
    place.rename(place.with_name("1.xlsx"))
    with pytest.raises(HeddleError, match="none of the files"):
        langfuse.import_files(tmp_path, target)


def test_rejected_spans_are_reported(server: HeddleProcess) -> None:
    target = Target(server.url, None, "team/rejected")
    good = {"traceId": TRACE, "spanId": ROOT, "name": "a", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    target.spans([good, {**good, "spanId": "0" * 16}], {})
    assert target.report.new == {"spans": 1} and sum(target.report.left_out.values()) == 1
    assert "must not be all zeros" in next(iter(target.report.left_out))


def test_values_keep_their_types_on_the_wire() -> None:
    assert any_value(True) == {"boolValue": True} and any_value(2**60) == {"intValue": str(2**60)}
    assert any_value({"a": [1.5, None]})["kvlistValue"]["values"][0]["key"] == "a"
    assert object_id("questions / é?") == "questions-----" and object_id("") == "dataset"

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
from heddle.transfer.target import Score, Target, any_value, explain_mismatch, object_id
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
        with pytest.raises(HeddleError, match="experiment 'none' not found; available: Default, shop"):
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
    refused = pytest.raises(HeddleError, match="check that it is the right one")
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
    with pytest.raises(HeddleError, match="it has no observations"):
        langfuse.import_files(tmp_path, target)
    place = tmp_path / "observations" / "1.jsonl"
    write(place, [])
    for name, content, problem in (
        ("1.jsonl", b"\xff", "1.jsonl cannot be read: it is not UTF-8"),
        ("1.json", b'{"id": "a"}', "1.json cannot be read: it does not contain a list of rows"),
        ("1.csv.gz", gzip.compress(b"id\n" * 99)[:-9], "1.csv.gz cannot be read"),
        ("1.csv.gz", gzip.compress(b"id\n")[:10] + b"\xff" * 9, "1.csv.gz cannot be read"),
    ):
        place = place.rename(place.with_name(name))
        place.write_bytes(content)
        with pytest.raises(HeddleError, match=problem):
            langfuse.import_files(tmp_path, target)
    place.rename(place.with_name("1.xlsx"))
    with pytest.raises(HeddleError, match="not a file of a Langfuse export"):
        langfuse.import_files(tmp_path, target)


def test_odd_rows_of_langfuse_are_counted_with_their_field_and_the_others_stored_once(
    server: HeddleProcess, tmp_path: Path
) -> None:
    good = exported("observations")[0] | {"id": ROOT, "parent_observation_id": None}
    odd: list[Any] = ["text", None, [], 3]
    odd += [{name: value for name, value in good.items() if name != left} for left in ("id", "trace_id", "start_time")]
    odd += [good | {"id": 5}, good | {"trace_id": {}}, good | {"parent_observation_id": [1]}, good | {"name": 2.5}]
    odd += [good | {"start_time": time} for time in (17, "never", "0001-01-01T00:00:00+14:00", "9999-12-31")]
    whole = [good, good | {"id": CHILD, "parent_observation_id": CHILD, "metadata": {"n": 10**300, "text": "\ud800"}}]
    lines = [json.dumps(row) for row in [whole[0], *odd, *whole]]
    place = tmp_path / "observations_v2" / "1.jsonl"
    place.parent.mkdir()
    place.write_text("\n".join(["{", *lines, '{"id": NaN}']))
    score = {"id": "s", "trace_id": good["trace_id"], "name": "fits", "value": float("nan")}
    write(tmp_path / "scores/1.jsonl", [score, score | {"id": 1}, score | {"name": None}, score | {"trace_id": 4}])
    project = "team/langfuse-odd"
    report = langfuse.import_files(tmp_path, Target(server.url, None, project))
    assert (report.new, report.known) == ({"spans": 2, "feedback": 1}, {"spans": 1, "feedback": 0})
    left = {why.partition(" (the first: row ")[0]: count for why, count in report.left_out.items()}
    assert left == {
        "observations that are not objects": 5,
        "observations whose id is missing": 1,
        "observations whose trace_id is missing": 2,
        "observations whose start_time is missing": 1,
        "observations whose id is not a string": 1,
        "observations whose trace_id is not a string": 1,
        "observations whose parent_observation_id is not a string": 1,
        "observations whose name is not a string": 1,
        "observations whose start_time is not a string": 1,
        "observations whose start_time is not a valid time": 3,
        "scores whose id is not a string": 1,
        "scores whose name is missing": 1,
        "scores whose trace_id is not a string": 1,
    }
    assert f"observations that are not objects (the first: row 1 of {place})" in report.left_out
    assert {call["id"] for call in calls_of(server, project)} == {ROOT, CHILD}


def test_a_record_that_the_server_refuses_holds_no_other_up(server: HeddleProcess) -> None:
    target = Target(server.url, None, "team/refused")
    good = {"traceId": TRACE, "spanId": ROOT, "name": "a", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    bad = good | {"spanId": CHILD, "attributes": [{"key": "n", "value": {"intValue": "many"}}]}
    target.spans([bad, good, good | {"spanId": "0" * 15 + "1"}, good], {})
    kept = Score("1", ROOT, "phoenix.a", {"score": 1})
    target.feedback([kept, Score("2", ROOT, "wandb.note.1", {"note": 5}), Score("3", ROOT, "phoenix.b", {"score": 2})])
    assert target.report.new == {"spans": 2, "feedback": 2} and target.report.known == {"spans": 1, "feedback": 0}
    assert list(target.report.left_out.values()) == [1, 1]
    assert next(iter(target.report.left_out)).startswith(f"spans that the server rejected (the first: {CHILD}: ")


def damaged(exchanges: list[Json], path: str, items: str, odd: list[Any]) -> list[Json]:
    """A recording whose lists at a path hold rows of another form too."""
    found = json.loads(json.dumps(exchanges))
    for one in found:
        if path in one["target"] and items in one["answer"]:
            one["answer"][items] += odd
    return list(found)


ODD: list[Any] = ["text", None, {}, {"span_id": 7, "trace_id": [], "id": {}, "name": 1, "assessment_id": 2}]


@pytest.mark.parametrize("path", ["/spans/otlpv1", "/span_annotations", "/trace_annotations", "/v1/datasets?"])
def test_odd_rows_of_phoenix_are_counted(server: HeddleProcess, path: str) -> None:
    with served(replay(damaged(recorded("phoenix"), path, "data", ODD))) as address:
        target = Target(server.url, None, f"team/odd-{path.strip('/?').replace('/', '-')}")
        report = phoenix.import_project(Remote(address, from_environment=False), "shop", target)
    assert report.new == {"spans": 3, "feedback": 3, "datasets": 1, "rows of datasets": 2}
    counted = {why: count for why, count in report.left_out.items() if "(the first: number " in why}
    assert sum(counted.values()) == len(ODD), report.left_out


def test_odd_traces_spans_and_assessments_of_mlflow_are_counted(server: HeddleProcess) -> None:
    exchanges = damaged(recorded("mlflow"), "traces/search", "traces", [*ODD, {"trace_id": "a", "tags": 1}])
    for one in exchanges:
        for trace in one["answer"].get("traces") or ():
            if isinstance(trace, dict) and trace.get("assessments"):
                trace["assessments"] += [
                    *ODD,
                    {"assessment_name": "a", "feedback": {"serialized_value": {"value": "{"}}},
                ]
        if one["answer"].get("spans"):
            one["answer"]["spans"] += [*ODD, {"trace_id": "a", "span_id": "b"}]
    with served(replay(exchanges)) as address:
        target = Target(server.url, None, "team/mlflow-odd")
        report = mlflow.import_experiment(Remote(address, from_environment=False), "shop", target)
    assert report.new == {"spans": 3, "feedback": 3}
    kinds = {why.partition(" (the first: number ")[0] for why in report.left_out}
    assert {
        "traces that are not objects",
        "traces whose tags is not an object",
        "spans whose trace_id is not base64",
    } <= kinds
    assert {"assessments that are not objects", "assessments whose serialized_value is not JSON"} <= kinds


@pytest.mark.parametrize("given", [{"data": [], "next_cursor": "a"}, {"data": [], "next_cursor": 1}, {"data": {}}, []])
def test_pages_without_an_end_or_of_another_form_end_in_a_line(server: HeddleProcess, given: Any) -> None:
    target = Target(server.url, None, "team/endless")
    with served(lambda *_: (200, given)) as address, pytest.raises(HeddleError) as raised, explain_mismatch(address):
        phoenix.import_project(Remote(address, from_environment=False), "shop", target)
    assert "Error" not in raised.value.reason and "\n" not in raised.value.reason
    is_endless = isinstance(given, dict) and given.get("next_cursor") == "a"
    assert ("'a' was returned twice" if is_endless else "check that it is the right one") in raised.value.reason


def test_an_artifact_is_asked_for_again_while_its_server_is_busy(
    server: HeddleProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.transfer.target._WAITS", (0.0,))
    statuses = [503, 200]
    answers: dict[str, Json] = {
        "/api/2.0/mlflow/experiments/search": {"experiments": [{"name": "shop", "experiment_id": "1"}]},
        "/api/3.0/mlflow/traces/search": {"traces": [{"trace_id": "tr-1"}]},
        "/ajax-api/3.0/mlflow/get-trace-artifact": {"spans": []},
    }

    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        path = target.partition("?")[0]
        return statuses.pop(0) if "artifact" in path else 200, answers[path]

    with served(answer) as address:
        source = Remote(address, from_environment=False)
        mlflow.import_experiment(source, "shop", Target(server.url, None, "team/busy"))
        assert not statuses
        statuses += [503, 503]
        with pytest.raises(Refused, match="503"):
            mlflow.import_experiment(source, "shop", Target(server.url, None, "team/busy"))


def test_rejected_spans_are_reported(server: HeddleProcess) -> None:
    target = Target(server.url, None, "team/rejected")
    good = {"traceId": TRACE, "spanId": ROOT, "name": "a", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    target.spans([good, {**good, "spanId": "0" * 16}], {})
    assert target.report.new == {"spans": 1} and sum(target.report.left_out.values()) == 1
    assert "must not be all zeros" in next(iter(target.report.left_out))


def test_values_keep_their_types_on_the_wire() -> None:
    assert any_value(True) == {"boolValue": True} and any_value(2**60) == {"intValue": str(2**60)}
    assert any_value({"a": [1.5, None]})["kvlistValue"]["values"][0]["key"] == "a"
    assert object_id("questions / é?") == "questions-----" and object_id("") == object_id("..") == "dataset"

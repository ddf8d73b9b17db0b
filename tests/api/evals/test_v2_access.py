"""Keys and the /v2 resources: writers need not read, readers cannot write, bound keys stay in their project."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.cli import make_key
from tests.support.server import HeddleProcess

BASE = "/v2/team/one"


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Client]]:
    """A caller for each sort of key."""
    data = tmp_path_factory.mktemp("v2") / "data"
    scopes = {"writer": ("--role", "write+delete"), "reader": ("--scope", "read"), "other": ("--project", "team/two")}
    keys = {who: make_key(data, who, *words) for who, words in scopes.items()}
    with HeddleProcess(data, auth="on") as process:
        clients = {who: httpx.Client(base_url=process.url, auth=("api", key), timeout=60) for who, key in keys.items()}
        yield clients
        for client in clients.values():
            client.close()


def test_a_key_that_only_writes_makes_a_whole_run(callers: dict[str, httpx.Client]) -> None:
    """What it builds on is read for it, refs to other projects included; answers with content stay closed to it."""
    writer, reader = callers["writer"], callers["reader"]

    def post(path: str, **body: object) -> dict[str, str]:
        answer = writer.post(f"{BASE}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    dataset = post("datasets", name="d", rows=[{"image": "weave:///team/two/object/x:y"}])
    scorer = post("scorers", name="s", op_source_code="x = 1\n")["scorer"]
    model = post("models", name="m", source_code="x = 1\n")["model_ref"]
    ref = f"weave:///team/one/object/d:{dataset['digest']}"
    evaluation = post("evaluations", name="e", dataset=ref, scorers=[scorer])["evaluation_ref"]
    run = post("evaluation_runs", evaluation=evaluation, model=model)["evaluation_run_id"]
    inputs = {"image": "weave:///team/two/object/x:y"}
    prediction = post("predictions", model=model, inputs=inputs, output=1, evaluation_run_id=run)["prediction_id"]
    score = post("scores", prediction_id=prediction, scorer=scorer, value=1, evaluation_run_id=run)["score_id"]
    post(f"predictions/{prediction}/finish")
    post(f"evaluation_runs/{run}/finish")
    assert reader.get(f"{BASE}/evaluations/e/versions/latest").json()["dataset"] == ref
    assert reader.get(f"{BASE}/predictions/{prediction}").json()["inputs"] == inputs
    call = reader.post("/call/read", json={"project_id": "team/one", "id": score}).json()["call"]
    assert call["inputs"] == {"self": scorer, "inputs": inputs, "output": 1}
    call = reader.post("/call/read", json={"project_id": "team/one", "id": run}).json()["call"]
    assert call["output"] == {"s": {"mean": 1.0}, "output": {"mean": 1.0}}
    for path in ("ops", "evaluation_runs", f"predictions/{prediction}", "models/m/versions/latest"):
        assert writer.get(f"{BASE}/{path}").status_code == 403
    assert writer.delete(f"{BASE}/scores", params={"score_ids": score}).json() == {"num_deleted": 1}


def test_readers_do_not_write_and_bound_keys_stay(callers: dict[str, httpx.Client]) -> None:
    reader, other = callers["reader"], callers["other"]
    for method, path in (("POST", "ops"), ("DELETE", "ops/x"), ("POST", "predictions/x/finish")):
        assert reader.request(method, f"{BASE}/{path}", json={}).status_code == 403
    for path in ("ops", "datasets", "evaluation_runs", "scores", "models/m/versions/latest"):
        assert other.get(f"{BASE}/{path}").status_code == 403
    assert other.post(f"{BASE}/ops", json={}).status_code == 403
    assert other.post("/v2/team/two/ops", json={}).status_code == 200

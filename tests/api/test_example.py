"""The example project: rows as programs write them, figures that add up, and nothing left when it is deleted."""

from tests.conftest import Wire


def test_an_example_is_loaded_once_and_deleted(wire: Wire) -> None:
    wire.post("/_ui/api/projects/example")
    roots = [call for call in wire.calls() if call["parent_id"] is None]
    traces = [call for call in roots if "answer_question" in call["op_name"]]
    assert len(traces) == 30 and sum(bool(call["exception"]) for call in traces) == 4
    [run] = [call for call in roots if "Evaluation.evaluate" in call["op_name"]]
    assert run["output"]["exact"] == {"exact_match": {"true_count": 4, "true_fraction": 4 / 6}}
    assert len(wire.post("/feedback/query")["result"]) > 6
    classes = {entry["base_object_class"] for entry in wire.objects(filter={"is_op": False})}
    assert {"Dataset", "Evaluation", "Scorer"} <= classes
    again = wire.client.post("/_ui/api/projects/example", json={"project_id": wire.project})
    assert again.status_code == 409 and "already has calls" in again.text
    wire.post("/_ui/api/projects/example/delete")
    assert wire.calls() == [] and wire.objects() == []
    known = wire.client.get("/_ui/api/projects").json()["projects"]
    assert wire.project not in {entry["id"] for entry in known}
    gone = wire.client.post("/_ui/api/projects/example/delete", json={"project_id": wire.project})
    assert gone.status_code == 404

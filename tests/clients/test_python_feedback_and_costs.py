"""Feedback, prices and evaluations through the Python SDK."""

from collections import Counter
from typing import Any

import pytest

from tests.conftest import Client, Wire
from tests.support.selection import with_breadth


def test_feedback(sdk: Client, wire: Wire) -> None:
    """Reactions, notes, custom kinds and scores: added, listed, searched, purged, and used in call queries."""
    seen = sdk.run("feedback.py")
    reaction, note, custom, keyword, thumbs = seen["ids"]
    kinds = [(row["id"], row["type"]) for row in seen["listed"]]
    assert kinds == [
        (reaction, "wandb.reaction.1"),
        (note, "wandb.note.1"),
        (custom, "correctness"),
        (keyword, "style"),
    ]
    payloads = {row["id"]: row["payload"] for row in seen["listed"]}
    assert payloads[reaction] == {
        "emoji": "👍",
        "alias": ":thumbs_up:",
        "detoned": "👍",
        "detoned_alias": ":thumbs_up:",
    }
    assert payloads[note] == {"note": "well done"}
    assert payloads[custom] == {"score": 0.75, "by": {"name": "Ada"}}
    assert payloads[keyword] == {"value": 3}
    assert [row["id"] for row in seen["by_id"]] == [row["id"] for row in seen["by_query"]] == [custom]
    assert [row["id"] for row in seen["by_reaction"]] == [thumbs]
    assert (seen["paged"], seen["everything"]) == (2, 6)
    assert [row["id"] for row in seen["after_purge"]] == [reaction, custom, keyword]
    assert seen["creators"]["style"] == "reviewer"
    assert seen["included"] == ["correctness", "style", "wandb.reaction.1"]
    assert seen["by_emoji"] == seen["by_payload"] == ["abc"]
    assert seen["by_score"] == seen["scored_by"] == ["defgh"]
    assert sorted(seen["scored"]) == ["wandb.reaction.1", "wandb.runnable.length_score"]
    assert seen["score"] == {"length": 5}

    answer = wire.post("/feedback/query")
    rows = {row["id"]: row for row in answer["result"]}
    assert answer["total_count"] == len(rows) == 5 and note not in rows
    assert {rows[key]["weave_ref"] for key in (reaction, custom, keyword)} == {
        f"weave:///{wire.project}/call/{seen['first']}"
    }
    score = next(row for row in rows.values() if row["feedback_type"] == "wandb.runnable.length_score")
    assert score["payload"] == {"output": {"length": 5}}
    assert score["runnable_ref"].startswith(f"weave:///{wire.project}/op/length_score:")
    scorer_call = wire.call(score["call_ref"].rsplit("/", 1)[1])
    assert (scorer_call["inputs"]["output"], scorer_call["output"]) == ("hgfed", {"length": 5})


def test_costs(sdk: Client, wire: Wire) -> None:
    """A project's own prices, default prices, cached tokens apart, unpriced models left out, sums over children."""
    seen = sdk.run("costs.py")
    assert sorted(seen["before"]) == ["cached-model", "house-model", "house-model", "purged-model"]
    assert seen["after"] == ["cached-model", "house-model", "house-model"]
    assert (seen["by_model"], seen["by_id"], seen["limited"]) == ([[0.01, 0.1]], ["purged-model"], 2)
    stored = wire.post("/cost/query", sort_by=[{"field": "llm_id", "direction": "asc"}])["results"]
    assert [row["llm_id"] for row in stored] == seen["after"]

    house = seen["house"]["house-model"]
    assert (house["prompt_tokens"], house["completion_tokens"], house["requests"]) == (10, 5, 1)
    assert (house["prompt_token_cost"], house["completion_token_cost"]) == (0.001, 0.002)
    assert house["prompt_tokens_total_cost"] == pytest.approx(0.01)
    assert house["completion_tokens_total_cost"] == pytest.approx(0.01)
    assert (house["pricing_level"], house["provider_id"]) == ("project", "default")
    check_cached(seen["cached"]["cached-model"])
    check_default(seen["default"]["gpt-4o-2024-08-06"])
    assert seen["unpriced"] == {}
    team = seen["team"]["house-model"]
    assert (team["prompt_tokens"], team["completion_tokens"], team["requests"]) == (300, 30, 2)
    assert team["prompt_tokens_total_cost"] == pytest.approx(0.3)
    assert seen["team_usage"]["house-model"]["prompt_tokens"] == 300
    assert not seen["without"]

    calls = seen["calls"]
    assert {calls[name]: seen[name] for name in calls} == seen["listed"]
    raw = wire.call(calls["house"], include_costs=True)["summary"]["weave"]["costs"]
    assert raw == seen["house"]
    usage = wire.post("/calls/usage", call_ids=[calls["team"]], include_costs=True)["call_usage"][calls["team"]]
    # Both the children and the parent report: the roll-up adds what each call says of itself.
    assert usage["house-model"]["prompt_tokens"] == 600
    assert usage["house-model"]["prompt_tokens_total_cost"] == pytest.approx(0.6)


def check_cached(cost: dict[str, Any]) -> None:
    """Cached reads and writes are priced apart from the rest of the prompt."""
    assert (cost["prompt_tokens"], cost["cache_read_input_tokens"], cost["cache_creation_input_tokens"]) == (
        1000,
        600,
        100,
    )
    assert cost["prompt_tokens_total_cost"] == pytest.approx(300 * 0.01)
    assert cost["cache_read_input_tokens_total_cost"] == pytest.approx(600 * 0.001)
    assert cost["cache_creation_input_tokens_total_cost"] == pytest.approx(100 * 0.02)
    assert cost["completion_tokens_total_cost"] == pytest.approx(10 * 0.1)
    assert cost["provider_id"] == "house"


def check_default(cost: dict[str, Any]) -> None:
    """A well-known model has a default price."""
    assert (cost["pricing_level"], cost["pricing_level_id"]) == ("default", "default")
    assert cost["prompt_tokens_total_cost"] == pytest.approx(1000 * 2.5e-06)
    assert cost["completion_tokens_total_cost"] == pytest.approx(100 * 1e-05)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", with_breadth(["true", "false"]), ids=["complete writes", "legacy writes"])
def test_evaluations(sdk: Client, wire: Wire, mode: str) -> None:
    """An evaluation that runs and one logged by hand: structure, scores and summary."""
    seen = sdk.run("evaluations.py", WEAVE_USE_CALLS_COMPLETE=mode)
    correct = {"true_count": 4, "true_fraction": pytest.approx(2 / 3)}
    assert seen["summary"]["exact"] == {"correct": correct}
    assert seen["summary"]["Distance"] == {"mean": pytest.approx(8 * 0.5 * 2 / 6)}
    assert seen["summary"]["output"] == {"mean": pytest.approx((2 + 5 + 8) / 3)}
    assert seen["output"] == seen["summary"]
    assert Counter(seen["children"]) == {"Evaluation.predict_and_score": 6, "Evaluation.summarize": 1}
    assert Counter(seen["logged_children"]) == {"Evaluation.predict_and_score": 2, "Evaluation.summarize": 1}
    logged = seen["logged_output"]
    assert logged["correct"] == {"true_count": 1, "true_fraction": 0.5}
    assert (logged["length"], logged["output"]) == ({"mean": 1.0}, {"note": "by hand"})
    assert seen["evaluations"] == ["hand-data-evaluation"]

    calls = wire.calls()
    assert len(calls) == seen["count"]
    assert {call["summary"]["weave"]["status"] for call in calls} == {"success"}
    roots = [call["id"] for call in calls if call["parent_id"] is None]
    assert sorted(roots) == sorted([seen["run"], seen["logged"]])
    by_op = Counter(call["op_name"].rsplit("/", 1)[-1].split(":")[0] for call in calls)
    assert (by_op["Evaluation.evaluate"], by_op["Evaluation.predict_and_score"]) == (2, 8)
    assert (by_op["Calculator.predict"], by_op["exact"], by_op["Distance.score"]) == (6, 6, 6)
    run = wire.call(seen["run"])
    assert run["inputs"]["self"].startswith(f"weave:///{wire.project}/object/arithmetic:")
    assert run["inputs"]["model"].startswith(f"weave:///{wire.project}/object/calculator:")
    assert run["output"] == seen["output"]
    kinds = {item["object_id"]: item["base_object_class"] for item in wire.objects(filter={"is_op": False})}
    assert (kinds["arithmetic"], kinds["sums"], kinds["calculator"]) == ("Evaluation", "Dataset", "Model")

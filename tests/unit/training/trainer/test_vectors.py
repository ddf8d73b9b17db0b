"""`heddle check vectors`: our numbers for recorded cases whose expected values are missing."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from heddle.errors import InvalidRequest
from heddle.training.trainer.vectors import compute_vectors
from tests.support.cli import heddle
from tests.support.vectors import VECTORS, needs_vectors

Json = dict[str, Any]
COMPUTED = {"advantage", "weight", "prompt_length"}


def answers(tmp_path: Path, content: Any) -> Json:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(content))
    found: Json = json.loads(json.dumps(compute_vectors(path), allow_nan=False))
    return found


def without_expected(how: str) -> Json:
    """The recorded cases without their expected values, in one of the ways in which they can be missing."""
    content: Json = json.loads(json.dumps(VECTORS))
    for case in content["loss"]:
        match how:
            case "absent":
                del case["expected"]
            case "null":
                case["expected"] = None
            case "null inside":
                case["expected"] = dict.fromkeys(case["expected"])
            case "wrong":
                case["expected"] = {"policy_loss": 1e9, "grad_new_logprobs": [[1e9]]}
    for case in content["advantages"]:
        for item in case["results"]:
            for name in COMPUTED:
                if how == "absent":
                    del item[name]
                else:
                    item[name] = 77 if how == "wrong" else None
    return content


@needs_vectors
@pytest.mark.parametrize("how", ["absent", "null", "null inside", "wrong"])
def test_every_recorded_value_is_computed(how: str, tmp_path: Path) -> None:
    found = answers(tmp_path, without_expected(how))
    assert set(found) == {"loss", "advantages"}
    assert [case["name"] for case in found["loss"]] == [case["name"] for case in VECTORS["loss"]]
    for case, recorded in zip(found["loss"], VECTORS["loss"], strict=True):
        gradient, wanted = case["expected"].pop("grad_new_logprobs"), dict(recorded["expected"])
        for row, wanted_row in zip(gradient, wanted.pop("grad_new_logprobs"), strict=True):
            assert row == pytest.approx(wanted_row, abs=1e-9), case["name"]
        assert case["expected"] == pytest.approx(wanted, abs=1e-9), case["name"]
    assert [case["name"] for case in found["advantages"]] == [case["name"] for case in VECTORS["advantages"]]
    for case, recorded in zip(found["advantages"], VECTORS["advantages"], strict=True):
        assert len(case["results"]) == len(recorded["results"])
        for item, wanted in zip(case["results"], recorded["results"], strict=True):
            assert item == pytest.approx({name: wanted[name] for name in COMPUTED}, abs=1e-9), case["name"]


@needs_vectors
def test_without_results_there_is_one_for_each_trajectory_that_is_trained(tmp_path: Path) -> None:
    content = {
        "advantages": [
            {key: value for key, value in case.items() if key != "results"} for case in VECTORS["advantages"]
        ]
    }
    found = answers(tmp_path, content)
    assert found["loss"] == []
    for case, recorded in zip(found["advantages"], VECTORS["advantages"], strict=True):
        wanted = [
            {"advantage": item["advantage"], "weight": None, "prompt_length": None} for item in recorded["results"]
        ]
        assert case["results"] == [pytest.approx(item) for item in wanted]


def test_histories_of_a_trajectory_share_its_weight(tmp_path: Path) -> None:
    items = [{"token_ids": [1, 2, 3, n], "assistant_mask": [0, 0, 0, 1]} for n in range(4)]
    items[1]["assistant_mask"] = [0, 0, 1, 1]
    case = {"name": "two each", "scale_rewards": False, "rewards": [[3.0, 1.0]], "results": items}
    (found,) = answers(tmp_path, {"advantages": [case]})["advantages"]
    assert [item["advantage"] for item in found["results"]] == [1.0, 1.0, -1.0, -1.0]
    assert [item["weight"] for item in found["results"]] == pytest.approx([1 / 3, 1 / 3, 1 / 2, 1 / 2], abs=1e-6)
    assert {item["prompt_length"] for item in found["results"]} == {1}


def one_case() -> Json:
    inputs = {
        "logprobs": [[None, -1.0, -2.0]],
        "new_logprobs": [[-1.0, -1.0, 0.0]],
        "advantages": [[0.0, 2.0, 2.0]],
        "assistant_mask": [[0, 1, 1]],
        "weights": [[0.0, 1.0, 1.0]],
        "group_ids": [[1, 1, 1]],
    }
    return {"name": "mine", "inputs": inputs}


def test_a_case_by_hand(tmp_path: Path) -> None:
    """Ratios 1 and e, both within [0, 5]; loss = -(1 * 2 * -1 + e * 2 * -1) / 2."""
    (found,) = answers(tmp_path, {"loss": [one_case()]})["loss"]
    values = found["expected"]
    assert values["policy_loss"] == pytest.approx(1 + math.e, abs=1e-5)
    assert values["policy_loss_sum"] == pytest.approx(2 + 2 * math.e)
    assert values["grad_new_logprobs"] == [pytest.approx([-1.0, -math.e, 0.0], abs=1e-5)]
    assert (values["entropy"], values["kl_policy_ref"], values["probs_corr"]) == (None, None, None)


def test_a_segment_ends_with_its_row(tmp_path: Path) -> None:
    """Two rows whose segments have the same number, at the level of sequences: each row has its own ratio."""
    one = one_case()
    one["config"] = {"importance_sampling_level": "sequence"}
    other = {**one, "inputs": {**one["inputs"], "new_logprobs": [[-2.0, -3.0, 0.0]]}}
    inputs = {name: [*one["inputs"][name], *other["inputs"][name]] for name in one["inputs"]}
    both = {**one, "inputs": inputs, "reduction": "sum"}
    found = [case["expected"]["policy_loss_sum"] for case in answers(tmp_path, {"loss": [one, other, both]})["loss"]]
    assert found[2] == pytest.approx(found[0] + found[1])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "does not contain a JSON object"),
        ({"loss": [{"name": "a"}]}, "loss case a: 'inputs' is missing"),
        ({"loss": [{**one_case(), "config": {"no such": 1}}]}, "loss case mine: .*no such"),
        ({"loss": [{**one_case(), "inputs": {**one_case()["inputs"], "weights": [[1.0]]}}]}, "loss case mine: weights"),
        ({"advantages": [{"name": "b"}]}, "advantages case b: 'rewards' is missing"),
        ({"advantages": ["x"]}, "advantages case 0: "),
        (
            {"advantages": [{"rewards": [[0.0, 1.0]], "results": [{"token_ids": [1], "assistant_mask": []}, {}]}]},
            "advantages case 0: 1 token_ids and a mask of 0",
        ),
    ],
)
def test_a_bad_file_is_refused_by_name(content: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        answers(tmp_path, content)


@pytest.mark.thorough
def test_the_command_prints_one_object(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"loss": [one_case()], "advantages": []}))
    done = heddle("check", "vectors", path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == compute_vectors(path)
    missing = heddle("check", "vectors", tmp_path / "none.json")
    assert missing.returncode == 1 and "none.json cannot be read" in missing.stderr and not missing.stdout
    flagged = heddle("check", "--data", tmp_path, "vectors", path)
    assert flagged.returncode == 2 and "takes no settings" in flagged.stderr

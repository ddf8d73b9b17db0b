"""What a job's body may hold: every field's type and range, refused at its exact place."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from heddle.errors import ValidationFailed
from heddle.training.config import AUTO_BATCH, RlConfig, SftConfig
from heddle.training.intake import check
from heddle.training.schemas.requests import CreateSftJob, ExperimentalConfig, JobHead, resolve_config
from tests.support.trajectories import choice, group, trajectory, user

MODEL = "11111111-2222-4333-8444-555555555555"
FIRST = ["body", "trajectory_groups", 0, "trajectories", 0]
CONFIG = ["body", "experimental_config"]
HUGE = 10**400


def checked(**fields: Any) -> dict[str, Any]:
    """The head of a body that is right."""
    value = {"model_id": MODEL, "trajectory_groups": [group(trajectory(user("a"), choice("b", [5])))], **fields}
    return check("job", json.dumps(value).encode())[0].head


def places(**fields: Any) -> list[tuple[list[Any], str]]:
    """Where a body is wrong, and of which kind."""
    with pytest.raises(ValidationFailed) as raised:
        checked(**fields)
    return [(item["loc"], item["type"]) for item in raised.value.detail]


BAD_CONFIG = [
    ("advantage_balance", [-1.01, 1.01, math.nan, "0", True]),
    ("allow_training_without_logprobs", [1, "true"]),
    ("epsilon", [-0.1, math.inf, HUGE, "x", []]),
    ("epsilon_high", [-1]),
    ("importance_sampling_level", ["word", 1]),
    ("kimi_k2_tau", [-0.5, math.nan]),
    ("kl_penalty_coef", [-1, "a"]),
    ("kl_penalty_reference_step", [-1, 1.5, "1"]),
    ("kl_penalty_source", ["learner"]),
    ("kl_penalty_step_lag", [0, -1, 0.5]),
    ("kl_ref_adapter_path", [5]),
    ("learning_rate", [0, -1e-5, math.nan, -math.inf, "1e-5", []]),
    ("logprob_calculation_chunk_size", [0, 1.5]),
    ("importance_correction", ["tis", 1]),
    ("importance_correction_max", [0, -1]),
    ("importance_correction_min", [-0.1, "x"]),
    ("kl_estimator", ["k4"]),
    ("kl_loss_coef", [-0.1, "x"]),
    ("loss_fn", ["reinforce", 1]),
    ("loss_fn_config", [1, [], "beta"]),
    ("max_steps_off_policy", [-1, 0.5, "1"]),
    ("off_policy_mask_threshold", [math.inf, "x"]),
    ("mask_prob_ratio", [0]),
    ("max_negative_advantage_importance_sampling_weight", [0, -1, math.inf]),
    ("normalize_advantages", ["yes"]),
    ("num_trajectories_learning_rate_multiplier_power", [math.nan, "1"]),
    ("packed_sequence_length", [0, 0.5]),
    ("plot_tensors", [1]),
    ("ppo", ["true"]),
    ("precalculate_logprobs", [1]),
    ("scale_learning_rate_by_reward_std_dev", [0]),
    ("scale_rewards", [1]),
    ("truncated_importance_sampling", [0, -2]),
]


def test_the_table_names_every_setting() -> None:
    names = {name for name, _ in BAD_CONFIG} - {"loss_fn", "ppo"}
    assert names == set(RlConfig.__slots__) - {"ignored", "loss"}


def test_jobs_of_earlier_versions_keep_their_loss() -> None:
    stored = RlConfig().as_json()
    del stored["loss"]
    assert [RlConfig.of_json(stored | {"ppo": ppo}).loss for ppo in (False, True)] == ["cispo", "ppo"]
    assert RlConfig.of_json(RlConfig(loss="ppo").as_json()) == RlConfig(loss="ppo")


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_CONFIG for value in values])
def test_a_setting_out_of_its_range(name: str, value: Any) -> None:
    found = places(experimental_config={name: value})
    assert {tuple(loc) for loc, _ in found} == {(*CONFIG, name)}, found


@pytest.mark.parametrize("name", [name for name, _ in BAD_CONFIG])
def test_null_is_the_default_of_every_setting(name: str) -> None:
    head = JobHead.model_validate(checked(experimental_config={name: None}))
    assert resolve_config(head.experimental_config) == RlConfig()


@pytest.mark.parametrize("names", [[f"future_{n}" for n in range(101)], ["x" * 201]])
def test_unknown_names_are_few_and_short(names: list[str]) -> None:
    """They become the keys of an event."""
    unknown = dict.fromkeys(names, 1)
    assert places(experimental_config=unknown) == [(CONFIG, "value_error")]
    for field in ("config", "experimental_config"):
        with pytest.raises(ValidationError, match="at most 100 unknown fields"):
            CreateSftJob.model_validate({"model_id": MODEL, "training_data_url": "x", field: unknown})


def test_other_names_and_unknown_ones() -> None:
    given = {"alt_k2_tau": 0.5, "future_option": [1], "another": None}
    head = JobHead.model_validate(checked(experimental_config=given))
    settings = resolve_config(head.experimental_config)
    assert (settings.kimi_k2_tau, settings.ignored) == (0.5, ["another", "future_option"])


@pytest.mark.parametrize("first", ["kimi_k2_tau", "alt_k2_tau"])
def test_a_null_under_one_name_hides_no_value_under_the_other(first: str) -> None:
    given = {"kimi_k2_tau": 0.5, "alt_k2_tau": 0.5, first: None}
    settings = resolve_config(JobHead.model_validate(checked(experimental_config=given)).experimental_config)
    assert settings == RlConfig(kimi_k2_tau=0.5)
    assert ExperimentalConfig._known_keys() >= {"kimi_k2_tau", "alt_k2_tau"}, "nothing is logged as ignored that acts"


@pytest.mark.parametrize(
    "name",
    ["kl_penalty_reference_step", "kl_penalty_step_lag", "logprob_calculation_chunk_size", "packed_sequence_length"],
)
def test_integers_beyond_what_json_readers_keep(name: str) -> None:
    assert [loc for loc, _ in places(experimental_config={name: HUGE})] == [[*CONFIG, name]]
    assert [loc for loc, _ in places(experimental_config={name: 2**53 + 1})] == [[*CONFIG, name]]


def test_two_references_are_refused() -> None:
    both = {"kl_penalty_reference_step": 0, "kl_penalty_step_lag": 1}
    assert [loc for loc, _ in places(experimental_config=both)] == [CONFIG]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ("cispo", 1.0, 4.0)),
        ({"epsilon": 0.3}, ("cispo", 0.3, 4.0)),
        ({"epsilon_high": None, "epsilon": None, "ppo": None}, ("cispo", 1.0, 4.0)),
        ({"ppo": True}, ("ppo", 0.2, 0.2)),
        ({"ppo": True, "epsilon": 0.1}, ("ppo", 0.1, 0.1)),
        ({"loss_fn": "ppo", "epsilon_high": 0.4}, ("ppo", 0.2, 0.4)),
        ({"loss_fn": "cispo", "ppo": True}, ("cispo", 1.0, 4.0)),
    ],
)
def test_the_bounds_depend_on_the_loss(values: dict[str, Any], expected: tuple[str, float, float]) -> None:
    settings = resolve_config(JobHead.model_validate(checked(experimental_config=values)).experimental_config)
    assert (settings.loss, settings.epsilon, settings.epsilon_high) == expected


@pytest.mark.parametrize(
    ("fields", "loc", "kind"),
    [
        ({"reward": math.nan}, ["reward"], "finite_number"),
        ({"reward": -math.inf}, ["reward"], "finite_number"),
        ({"reward": HUGE}, ["reward"], None),
        ({"reward": "1"}, ["reward"], "float_type"),
        ({"reward": None}, ["reward"], "float_type"),
        ({"reward": True}, ["reward"], "float_type"),
        ({"metrics": {"m": math.nan}}, ["metrics", "m"], "finite_number"),
        ({"metrics": {"m": HUGE}}, ["metrics", "m"], "finite_number"),
        ({"metrics": {"m": None}}, ["metrics", "m"], "float_type"),
        ({"metrics": {"m": "1"}}, ["metrics", "m"], "float_type"),
        ({"metadata": {"m": -math.inf}}, ["metadata", "m"], "finite_number"),
        ({"logs": [1]}, ["logs", 0], "string_type"),
        ({"tools": [{"type": "function"}]}, ["tools", 0, "function"], "missing"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, ["tools", 0, "function", "name"], "string_type"),
        ({"tools": {}}, ["tools"], "list_type"),
        ({"initial_policy_version": 1.5}, ["initial_policy_version"], "int_type"),
        ({"final_policy_version": "1"}, ["final_policy_version"], "int_type"),
        ({"additional_histories": [{}]}, ["additional_histories", 0, "messages_and_choices"], "missing"),
        ({"messages_and_choices": {}}, ["messages_and_choices"], "list_type"),
        ({"messages_and_choices": None}, ["messages_and_choices"], "list_type"),
    ],
)
def test_a_wrong_field_of_a_trajectory(fields: dict[str, Any], loc: list[Any], kind: str | None) -> None:
    found = places(trajectory_groups=[{"trajectories": [fields]}])
    assert [place for place, _ in found] == [FIRST + loc]
    assert kind is None or found[0][1] == kind


def entry(**fields: Any) -> dict[str, Any]:
    """A choice with one log-probability that has these fields."""
    made = choice("b", [5])
    made["logprobs"]["content"][0] |= fields
    return made


@pytest.mark.parametrize(
    ("item", "loc"),
    [
        (5, []),
        ("text", []),
        (None, []),
        ({}, []),
        ({"content": "no role"}, []),
        ({"finish_reason": "stop"}, []),
        ({"role": 5, "content": "a"}, ["role"]),
        ({"role": "", "content": "a"}, ["role"]),
        ({"role": "user", "content": 5}, ["content"]),
        ({"role": "user", "content": [5]}, ["content", 0]),
        ({"role": "assistant", "content": None, "tool_calls": {}}, ["tool_calls"]),
        ({"role": "assistant", "content": None, "tool_calls": [5]}, ["tool_calls", 0]),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}, ["tool_calls", 0, "function"]),
        ({**choice("b", [5]), "message": "b"}, ["message"]),
        ({**choice("b", [5]), "message": {"content": 5}}, ["message", "content"]),
        ({**choice("b", [5]), "finish_reason": 1}, ["finish_reason"]),
        ({**choice("b", [5]), "logprobs": []}, ["logprobs"]),
        ({**choice("b", [5]), "logprobs": {"content": "x"}}, ["logprobs", "content"]),
        ({**choice("b", [5]), "logprobs": {"content": None, "refusal": [7]}}, ["logprobs", "refusal", 0]),
        (entry(token=5), ["logprobs", "content", 0, "token"]),
        (entry(logprob="x"), ["logprobs", "content", 0, "logprob"]),
        (entry(logprob=True), ["logprobs", "content", 0, "logprob"]),
        (entry(logprob=math.nan), ["logprobs", "content", 0, "logprob"]),
        (entry(logprob=-math.inf), ["logprobs", "content", 0, "logprob"]),
        (entry(logprob=-HUGE), ["logprobs", "content", 0, "logprob"]),
        ({**choice("b", [5]), "token_ids": "5"}, ["token_ids"]),
        ({**choice("b", [5]), "token_ids": [5, -1]}, ["token_ids", 1]),
        ({**choice("b", [5]), "token_ids": [10**400]}, ["token_ids", 0]),
        ({**choice("b", [5]), "prompt_token_ids": [1.5]}, ["prompt_token_ids", 0]),
    ],
)
def test_a_wrong_item(item: Any, loc: list[Any]) -> None:
    """In the main conversation as in an additional one."""
    found = places(trajectory_groups=[group(trajectory(user("a"), item))])
    assert [place for place, _ in found] == [[*FIRST, "messages_and_choices", 1, *loc]]
    history = {"messages_and_choices": [item]}
    found = places(trajectory_groups=[group(trajectory(additional_histories=[history]))])
    assert [place for place, _ in found] == [[*FIRST, "additional_histories", 0, "messages_and_choices", 0, *loc]]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "developer"},
        {**choice("b", [5]), "logprobs": None, "stop_reason": None, "extra": {"a": 1}},
        choice("b", [5], [None]),
        {**choice("b", [5]), "message": {"content": "no role"}},
        {"finish_reason": None, "message": {"role": "assistant", "content": "b"}},
    ],
)
def test_what_the_peer_tolerates_passes(item: Any) -> None:
    checked(trajectory_groups=[group(trajectory(user("a"), item)), group(), group(trajectory(reward=3))])


def test_several_places_at_once() -> None:
    bad = [group(trajectory(reward="high"), {"reward": 1}), {"trajectory": []}]
    assert [loc for loc, _ in places(model_id="nope", trajectory_groups=bad)] == [
        ["body", "model_id"],
        [*FIRST, "reward"],
        ["body", "trajectory_groups", 1, "trajectories"],
    ]


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"trajectory_groups": None}, ["body", "trajectory_groups"]),
        ({"trajectory_groups": {}}, ["body", "trajectory_groups"]),
        ({"source": {"project_id": "a/b", "reward": {"path": "output.r"}}}, ["body", "trajectory_groups"]),
        ({"source": {"project_id": "a/b"}, "trajectory_groups": None}, ["body", "source", "reward"]),
        ({"source": 5, "trajectory_groups": None}, ["body", "source"]),
        ({"promotion": {}}, ["body", "promotion", "evaluation"]),
        ({"promotion": {"evaluation": "x", "minimum_gain": math.nan}}, ["body", "promotion", "minimum_gain"]),
        ({"promotion": {"evaluation": "x", "other": 1}}, ["body", "promotion", "other"]),
        ({"experimental_config": []}, ["body", "experimental_config"]),
        ({"model_id": None}, ["body", "model_id"]),
    ],
)
def test_the_outer_fields(fields: dict[str, Any], loc: list[Any]) -> None:
    assert loc in [place for place, _ in places(**fields)]


def supervised(**config: Any) -> SftConfig:
    """The settings of a supervised job."""
    value = {"model_id": MODEL, "training_data_url": "x", "config": config}
    return CreateSftJob.model_validate(value).settings()


def test_the_settings_of_supervised_jobs() -> None:
    assert supervised() == supervised(batch_size=None, learning_rate=None, metric_logging=None) == SftConfig()
    assert supervised(batch_size="auto").batch_size == AUTO_BATCH
    assert supervised(batch_size=3, learning_rate=[0.1, 0.2]) == SftConfig(3, [0.1, 0.2])
    assert supervised(metric_logging={"a": 1}, epochs=3).ignored == ["epochs", "metric_logging"]
    assert CreateSftJob.model_validate({"model_id": MODEL, "training_data_url": "x"}).settings() == SftConfig()


@pytest.mark.parametrize(
    "config",
    [
        {"batch_size": 0},
        {"batch_size": "all"},
        {"batch_size": 2**64},
        {"batch_size": 1.5},
        {"learning_rate": 0},
        {"learning_rate": []},
        {"learning_rate": [0.1, math.nan]},
        {"learning_rate": "1e-5"},
        {"assistant_turns": "first"},
        {"metric_logging": 5},
    ],
)
def test_wrong_settings_of_supervised_jobs(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        supervised(**config)

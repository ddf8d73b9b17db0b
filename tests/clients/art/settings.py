"""Jobs with every setting that the client can send, jobs with nothing to learn, and jobs that fail or are cancelled."""

import asyncio
import json
import random
from typing import Any

import art
import httpx
import tasks
from art.serverless.backend import ServerlessBackend
from common import KEY, SERVER, Model, backend, failure, groups_of, listed_steps, mean_reward, report, trainable

EVERY_FIELD: dict[str, Any] = {
    "learning_rate": 1e-3,
    "ppo": True,
    "epsilon": 0.3,
    "epsilon_high": 0.4,
    "advantage_balance": 0.25,
    "scale_rewards": False,
    "importance_sampling_level": "sequence",
    "max_negative_advantage_importance_sampling_weight": 3.0,
    "mask_prob_ratio": True,
    "kimi_k2_tau": 0.05,
    "precalculate_logprobs": True,
}
"""The eleven keys that `train` sends."""
NEWER_FIELDS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "allow_training_without_logprobs": True,
    "importance_sampling_level": "geometric_average",
    "kl_penalty_coef": 0.1,
    "kl_penalty_reference_step": 0,
    "kl_penalty_source": "sample",
    "logprob_calculation_chunk_size": 64,
    "loss_fn": "cispo",
    "normalize_advantages": False,
    "num_trajectories_learning_rate_multiplier_power": 0.5,
    "packed_sequence_length": 48,
    "plot_tensors": True,
    "scale_learning_rate_by_reward_std_dev": True,
    "truncated_importance_sampling": 2.0,
    "never_heard_of": {"by": "anybody"},
}
"""What the vendor's newer description lists and this client version does not send; the last one is unknown to all."""


async def sampled(model: Model, groups: int = 4, size: int = 4) -> list[art.TrajectoryGroup]:
    """Groups with different rewards in them, whatever was sampled."""
    chance = random.Random(1)
    found = await groups_of(model, [tasks.choice(chance) for _ in range(groups)], size)
    for group in found:
        for number, trajectory in enumerate(group):
            trajectory.reward = float(number % 2)
    return found


async def events_of(client: ServerlessBackend, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """All events of a job from the first one, once it has ended; read page by page."""
    while True:
        listing = client._client.training_jobs.events.list(training_job_id=job_id, limit=3)
        events = [(event.type, event.data) async for event in listing]
        if events and events[-1][0] in ("training_ended", "training_failed"):
            return events
        await asyncio.sleep(0.2)


async def every_setting(client: ServerlessBackend, model: Model) -> dict[str, Any]:
    """The client's own settings through `train`, the newer ones through its training-job call."""
    groups = await sampled(model)
    result = await client.train(model, groups, **EVERY_FIELD)
    job = await client._client.training_jobs.create(
        model_id=model.id, trajectory_groups=groups, experimental_config=NEWER_FIELDS
    )
    newer = await events_of(client, job.id)
    return {"own": {"step": result.step, "metrics": result.metrics}, "newer": newer}


async def nothing_to_learn(client: ServerlessBackend, model: Model) -> dict[str, Any]:
    """Equal rewards, a group of exceptions only, an empty group: each job still makes its step."""
    equal = await sampled(model, groups=2)
    for group in equal:
        for trajectory in group:
            trajectory.reward = 0.1
    broken = art.TrajectoryGroup([ValueError("the rollout broke")])
    jobs = {
        "equal": equal,
        "exceptions": [broken],
        "empty": [art.TrajectoryGroup([], metadata={"note": "nothing came"})],
        "none": [],
    }
    seen: dict[str, Any] = {}
    for name, groups in jobs.items():
        result = await client.train(model, groups)
        seen[name] = {"step": result.step, "metrics": result.metrics}
    return seen


async def failing(client: ServerlessBackend, model: Model) -> dict[str, Any]:
    """A token that is not the one of the answer's ids; and without those, one of no model, and one that is no id."""
    seen: dict[str, Any] = {}
    for name, token in (("other", "token_id:99999"), ("outside", "token_id:99999"), ("unreadable", "no such token")):
        groups = await sampled(model, groups=2, size=2)
        choice = groups[1].trajectories[1].messages_and_choices[1]
        choice.logprobs.content[0].token = token
        if name != "other":
            del choice.token_ids
        seen[name] = await failure(client.train(model, groups))
    seen["steps"] = await listed_steps(client, model)
    return seen


async def cancelled(client: ServerlessBackend, model: Model) -> dict[str, Any]:
    """A running job of many small steps and one that waits behind it, both cancelled while the client polls."""
    groups = await sampled(model, groups=8, size=8)
    slow = await client._client.training_jobs.create(
        model_id=model.id, trajectory_groups=groups * 8, experimental_config={"packed_sequence_length": 48}
    )
    waiting = asyncio.create_task(failure(client.train(model, groups)))
    async with httpx.AsyncClient(base_url=SERVER, headers={"authorization": f"Bearer {KEY}"}, trust_env=False) as http:
        while len(jobs := (await listed_jobs(http, model)) or []) < 2:
            await asyncio.sleep(0.02)
        for job_id in sorted(jobs, key=lambda job_id: job_id == slow.id):
            answer = await http.post(f"/v1/preview/training-jobs/{job_id}/cancel")
            answer.raise_for_status()
    last = (await events_of(client, slow.id))[-1]
    return {"running": last, "waiting": await waiting, "steps": await listed_steps(client, model)}


async def listed_jobs(http: httpx.AsyncClient, model: Model) -> list[str]:
    """The ids of the model's jobs that have not ended."""
    answer = await http.get("/v1/preview/training-jobs", params={"model_id": str(model.id), "limit": 100})
    answer.raise_for_status()
    return [job["id"] for job in answer.json()["data"] if job["ended_at"] is None]


async def afterwards(client: ServerlessBackend, model: Model) -> dict[str, Any]:
    """The model goes on learning after all that."""
    groups = await sampled(model, groups=2)
    result = await client.train(model, groups, learning_rate=1e-3)
    return {"step": result.step, "reward": mean_reward(groups), "steps": await listed_steps(client, model)}


async def main() -> None:
    """Each part with a model of its own."""
    client = backend()
    seen: dict[str, Any] = {}
    for part in (every_setting, nothing_to_learn, failing, cancelled):
        model = trainable(part.__name__)
        await model.register(client)
        seen[part.__name__] = await part(client, model)
    seen["afterwards"] = await afterwards(client, model)
    report(**json.loads(json.dumps(seen)))
    await client.close()


asyncio.run(main())

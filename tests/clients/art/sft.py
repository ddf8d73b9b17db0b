"""Supervised training by the client's own calls, on rows that heddle keeps as a file; and what `train_sft` gets."""

import asyncio
import json
from typing import Any

import art
import httpx
from art.serverless.backend import ServerlessBackend
from art.types import TrainSFTConfig
from common import ENTITY, KEY, PROJECT, SERVER, Model, ask, backend, failure, listed_steps, report, trainable

QUESTION = [{"role": "user", "content": "What is your name?"}]
LESSON = "red lamp"
ROWS = [{"messages": [*QUESTION, {"role": "assistant", "content": LESSON}]}] * 24
CONFIG: Any = {"batch_size": 8, "learning_rate": [5e-3, 4e-3, 3e-3]}
"""Three batches, each with its own rate."""


async def stored(rows: list[dict[str, Any]]) -> str:
    """The digest of a JSON-lines file with these rows in the project."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    async with httpx.AsyncClient(base_url=SERVER, auth=("api", KEY), trust_env=False) as http:
        files, data = {"file": ("rows.jsonl", text)}, {"project_id": f"{ENTITY}/{PROJECT}"}
        answer = await http.post("/file/create", files=files, data=data)
        return str(answer.raise_for_status().json()["digest"])


async def taught(client: ServerlessBackend, model: Model, url: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a job on the rows at that address, once it has ended."""
    jobs = client._client.sft_training_jobs
    job = await jobs.create(model_id=model.id, training_data_url=url, config=CONFIG)
    while True:
        events = [(event.type, event.data) async for event in jobs.events.list(training_job_id=job.id)]
        if events and events[-1][0] in ("training_ended", "training_failed"):
            return events
        await asyncio.sleep(0.2)


async def main() -> None:
    """The answer before and after; and `train_sft`, which leaves its rows with the vendor and sends their address."""
    client = backend()
    model = trainable("taught")
    await model.register(client)
    before = await ask(model, QUESTION, temperature=0.0)
    events = []
    digest = await stored(ROWS)
    for _ in range(3):
        events.append(await taught(client, model, digest))
    after = await ask(model, QUESTION, temperature=0.0)
    trajectory = art.Trajectory(messages_and_choices=ROWS[0]["messages"])
    report(
        before=before.message.content,
        after=after.message.content,
        lesson=LESSON,
        events=events,
        steps=await listed_steps(client, model),
        elsewhere=await failure(model.train_sft([trajectory], TrainSFTConfig(learning_rate=1e-4, batch_size=2))),
    )
    await client.close()


asyncio.run(main())

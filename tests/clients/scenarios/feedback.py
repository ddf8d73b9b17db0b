"""Feedback on calls: reactions, notes, custom kinds, scorers; query and purge."""

import asyncio

import weave
from common import plain, report, start

client = start()


@weave.op
def answer(question: str) -> str:
    """What gets feedback."""
    return question[::-1]


@weave.op
def length_score(output: str) -> dict:
    """A scorer."""
    return {"length": len(output)}


def rows(items: object) -> list[dict]:
    """The parts of feedback rows that do not change between runs."""
    return [{"id": row.id, "type": row.feedback_type, "payload": plain(row.payload)} for row in items]


_, first = answer.call("abc")
_, second = answer.call("defgh")
score = asyncio.run(second.apply_scorer(length_score))
client.flush()

reaction = first.feedback.add_reaction("👍")
note = first.feedback.add_note("well done")
custom = first.feedback.add("correctness", {"score": 0.75, "by": {"name": "Ada"}})
keyword = first.feedback.add("style", value=3, creator="reviewer")
thumbs = second.feedback.add_reaction("👎")
client.flush()

listed = rows(first.feedback.refresh())
by_id = rows(client.get_feedback(custom))
by_reaction = rows(client.get_feedback(reaction="👎"))
by_query = rows(
    client.get_feedback(
        {"$expr": {"$gt": [{"$getField": "payload.score"}, {"$literal": 0.5}]}},
    )
)
paged = rows(client.get_feedback(limit=2, offset=1))
everything = rows(client.get_feedback())
first.feedback.purge(note)
client.flush()
after_purge = rows(first.feedback.refresh())

with_feedback = next(iter(client.get_calls(filter={"call_ids": [first.id]}, include_feedback=True)))
by_emoji = [
    call.inputs["question"]
    for call in client.get_calls(
        query={
            "$expr": {
                "$eq": [{"$getField": "feedback.[wandb.reaction.1].payload.emoji"}, {"$literal": "👍"}],
            }
        }
    )
]
by_payload = [
    call.inputs["question"]
    for call in client.get_calls(
        query={"$expr": {"$gt": [{"$getField": "feedback.[correctness].payload.score"}, {"$literal": 0.5}]}}
    )
]
by_score = [
    call.inputs["question"]
    for call in client.get_calls(
        query={
            "$expr": {
                "$eq": [
                    {"$getField": "feedback.[wandb.runnable.length_score].payload.output.length"},
                    {"$literal": 5},
                ]
            }
        }
    )
]
scored_by = [call.inputs["question"] for call in client.get_calls(scored_by="length_score")]
scored = rows(client.get_call(second.id).feedback.refresh())

report(
    first=first.id,
    second=second.id,
    ids=[reaction, note, custom, keyword, thumbs],
    listed=listed,
    by_id=by_id,
    by_reaction=by_reaction,
    by_query=by_query,
    paged=len(paged),
    everything=len(everything),
    after_purge=after_purge,
    creators={row.feedback_type: row.creator for row in client.get_feedback()},
    included=sorted(row["feedback_type"] for row in with_feedback.summary["weave"]["feedback"]),
    by_emoji=by_emoji,
    by_payload=by_payload,
    by_score=by_score,
    scored_by=scored_by,
    scored=[row["type"] for row in scored],
    score=plain(score.result),
)

"""An example project: traces of a small assistant, a dataset, an evaluation and feedback, as programs write them."""

import random
import uuid
from typing import Annotated, Any

from fastapi import Depends, Response

from heddle.auth import Caller, Scope
from heddle.errors import Conflict, NotFound
from heddle.evals.service import Evaluations
from heddle.http.routing import Deleter, Empty, ProjectReq, RecordsDep, Service, StoreDep, Writer, answer, group
from heddle.store.base import Store
from heddle.store.control.objects import ObjectFilter
from heddle.wire import refs, times
from heddle.wire.calls import CallsQuery
from heddle.wire.jsontypes import Json
from heddle.wire.records import CallEnd, CallStart, NewFeedback, Records, object_value, publish_dataset

router = group("Pages")
_FACTS = (
    ("How long can I return shoes?", "60 days", "Unworn shoes can be returned within 60 days."),
    ("When does my parcel ship?", "The same day", "Parcels leave the same day when ordered before 14:00."),
    ("Which size should I take?", "The larger one", "Between two sizes, take the larger one."),
    ("Do you ship abroad?", "Yes", "We ship to 30 countries."),
    ("Can I pay by invoice?", "Yes", "Invoices are payable within 14 days."),
    ("Is there a shop in Porto?", "No", "Our only shop is in Lisbon."),
)
_WRONG = {"Which size should I take?": "The smaller one", "Is there a shop in Porto?": "Yes"}
_DATASET, _EVALUATION, _MODEL = "example-questions", "example-answers", "gpt-4o-mini"
_TRACES = 30
EvaluationsDep = Annotated[Evaluations, Depends(Service("evaluations"))]


@router.post("/_ui/api/projects/example", include_in_schema=False)
async def load_example(
    body: ProjectReq, caller: Writer, store: StoreDep, records: RecordsDep, evaluations: EvaluationsDep
) -> Response:
    """Fill an empty project; raises Conflict for one that holds calls."""
    caller = caller.require(Scope.READ)
    if await store.calls.count(CallsQuery(caller.open(body.project_id), limit=1)):
        raise Conflict(f"The project {body.project_id} already has calls")
    await _trace(records, caller, body.project_id)
    evaluation = await _publish(records, caller, body.project_id)
    answers = {row[0]: _WRONG.get(row[0], row[1]) for row in _FACTS}
    await evaluations.score_answers(caller, body.project_id, evaluation, _MODEL, lambda row: answers[row["question"]])
    store.call_aggregates.forget_projects()
    return answer({"project_id": body.project_id})


@router.post("/_ui/api/projects/example/delete", include_in_schema=False, response_model=Empty)
async def delete_example(body: ProjectReq, caller: Deleter, store: StoreDep) -> Response:
    """Remove the example and everything else that its project holds; raises NotFound for a project without it."""
    project = caller.open(body.project_id)
    found = await store.objects.read(project, _EVALUATION, "latest")
    if found is None or found.deleted_at is not None:
        raise NotFound(f"The project {body.project_id} is not an example")
    await store.calls.purge_older(project, times.now() + times.DAY)
    await _delete_objects(store, project, caller.user)
    store.call_aggregates.forget_projects()
    return answer({})


async def _delete_objects(store: Store, project: str, user: str) -> None:
    """The versions of all names; the evaluation, by which an example is known, goes last."""
    names = {version.object_id async for page in store.objects.pages(project, ObjectFilter()) for version in page}
    for name in sorted(names, key=lambda one: one == _EVALUATION):
        await store.objects.delete(project, name, [], user)


async def _publish(records: Records, caller: Caller, project_id: str) -> str:
    """The dataset and the evaluation; the internal ref of the evaluation."""
    rows = [{"question": question, "target": target} for question, target, _ in _FACTS]
    dataset, _ = await publish_dataset(records, caller, project_id, _DATASET, rows, name=_DATASET, description=None)
    scorer = object_value("ExactMatchScorer", "Scorer", name="exact", description=None)
    listed = [(await records.publish(caller, project_id, "exact", scorer)).ref]
    named = {"name": _EVALUATION, "description": None}
    value = object_value("Evaluation", **named, dataset=dataset.ref, scorers=listed, trials=1)
    return (await records.publish(caller, project_id, _EVALUATION, value)).ref


async def _trace(records: Records, caller: Caller, project_id: str) -> None:
    """Traces of the last day: a question, a search, an answer of a model; some fail, some have feedback."""
    ops = {name: (await records.placeholder_op(caller, project_id, name)).ref for name in ("answer_question", "search")}
    chance, now, project = random.Random(7), times.now(), caller.open(project_id)
    starts: list[CallStart] = []
    ends: list[CallEnd] = []
    said: list[NewFeedback] = []
    for number in range(_TRACES):
        question, target, fact = _FACTS[number % len(_FACTS)]
        ids = [str(uuid.uuid4()) for _ in range(3)]
        at = now - int((number + chance.random()) * times.DAY / _TRACES)
        took = int(chance.uniform(0.4, 2.5) * times.SECOND)
        problem = f"TimeoutError: no answer within {chance.randint(5, 9)} s" if number % 8 == 5 else None
        messages = [{"role": "system", "content": f"Answer from this: {fact}"}, {"role": "user", "content": question}]
        reply = {"choices": [{"message": {"role": "assistant", "content": target}, "finish_reason": "stop"}]}
        counts = {"requests": 1, "prompt_tokens": 40 + 5 * len(question), "completion_tokens": 12 + len(target)}
        usage = {} if problem else {"usage": {_MODEL: counts}}
        calls: tuple[tuple[str, str, Json, Any, Json], ...] = (
            (ops["answer_question"], "agent", {"question": question}, None if problem else target, usage),
            (ops["search"], "tool", {"query": question}, [fact], {}),
            ("openai.chat.completions.create", "llm", {"model": _MODEL, "messages": messages}, reply, usage),
        )
        for place, (op, kind, inputs, output, summary) in enumerate(calls):
            is_failed = problem is not None and place != 1
            start = at + place * took // 4
            starts.append(
                CallStart(
                    id=ids[place],
                    trace_id=ids[0],
                    parent_id=ids[0] if place else None,
                    op_name=op,
                    started_at=start,
                    attributes={"weave": {"kind": kind}},
                    inputs=inputs,
                )
            )
            end = at + took if place == 0 else start + (took // 8 if place == 1 else took // 3)
            ends.append(
                CallEnd(
                    id=ids[place],
                    ended_at=end,
                    output=None if is_failed else output,
                    exception=problem if is_failed else None,
                    summary=summary,
                )
            )
        if number % 5 == 0:
            emoji = "👎" if problem or question in _WRONG else "👍"
            call = refs.call_ref(project, ids[0])
            said.append(NewFeedback(weave_ref=call, feedback_type="wandb.reaction.1", payload={"emoji": emoji}))
        if number % 9 == 2:
            note = {"note": "Right, and short enough."}
            call = refs.call_ref(project, ids[0])
            said.append(NewFeedback(weave_ref=call, feedback_type="wandb.note.1", payload=note))
    await records.write_calls(caller, project_id, starts, ends)
    await records.add_feedback(caller, project_id, said)

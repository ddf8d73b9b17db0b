"""A project as a shop's assistant leaves it after a month: something of every kind that a page shows."""

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from heddle.inference.served_model import TINY
from tests.conftest import Wire
from tests.support.agents import Trace, value_of
from tests.support.chats import Chats
from tests.support.rl import Trainer
from tests.support.stored_runs import Writer

Json = dict[str, Any]

MODELS = ("gpt-4o", "gpt-4o-mini", "claude-sonnet-4-20250514", "acme-router-7b")
QUESTIONS = (
    "Where is order 1007? It should have come on Monday, and nobody answers the telephone.",
    "Can I change the delivery address of order 1277 to another country?",
    "رقم الطلب 1256؟ أريد استرداد المال",
    "注文番号1438はどこですか？",
    "The app crashes when I open `settings/profile?tab=delivery` on my phone",
    "Is the parcel damaged?",
)
FAILURES = (
    'Traceback (most recent call last):\n  File "router.py", line 20, in predict\nRuntimeError: model overloaded (529)',
    "ValueError: order 1007 is not known",
)
NAMES = {
    "objects": "answer-prompt",
    "datasets": "tickets",
    "leaderboards": "models-by-quality",
    "ops": "answer_question",
    "models": "router",
    "dashboards": "shop",
}
"""What `:name` of an address stands for, by the part of the path before it."""
OPS = ("answer_question", "support_agent", "plan_step", "research", "search_web")
_DIGEST = "digest-of-an-op"
_DAYS = 20
_CALLS = 160


@dataclass(frozen=True)
class Shop:
    """What was written: the project, and a value for each part of an address that names something."""

    project: str
    parts: dict[str, str]


def write(wire: Wire) -> Shop:
    """Write it all; takes a few seconds, most of them for two training jobs."""
    rng = random.Random(17)
    writer = Writer(wire.post, wire.project)
    (digest,) = {writer.object(name, _value("Op", files={})).rpartition(":")[2] for name in OPS}
    calls = list(_traffic(wire.project, rng))
    for call in calls:
        call["op_name"] = call["op_name"].replace(_DIGEST, digest)
    wire.post(f"/v2/{wire.project}/calls/complete", batch=calls)
    prices = {model: {"prompt_token_cost": 2.5e-6, "completion_token_cost": 1e-5} for model in MODELS}
    wire.post("/cost/create", costs=prices)
    chats = Chats(wire)
    for number in range(12):
        chats.answered("visit-of-a-customer", QUESTIONS[number % len(QUESTIONS)], f"Order {number} is on its way.")
    chats.rich("visit-with-a-photo")
    chats.send()
    _agents(wire)
    _metrics(wire)
    found = {
        "op version": digest,
        **_objects(writer),
        **_evaluations(writer, rng),
        **_work(wire, calls),
        **_training(wire),
    }
    roots = [call for call in calls if call["parent_id"] is None]
    tree = roots[-1]
    _feedback(wire, [call["id"] for call in roots[-20:]])
    found |= {"call": tree["id"], "trace": tree["trace_id"], "thread": "visit-of-a-customer", "replay": _replay(wire)}
    found["improvement"] = "nothing"
    return Shop(wire.project, found)


def _traffic(project: str, rng: random.Random) -> Iterator[Json]:
    """Questions with a model's call each, more of them lately; some fail, and the last is a deep trace."""
    now = datetime.now(UTC) - timedelta(minutes=20)
    for number in range(_CALLS):
        at = now - timedelta(days=_DAYS) * (1 - number / _CALLS) ** 2
        yield from _asked(project, rng, at, number)
    trace = str(uuid.uuid4())
    above: list[str] = []
    for number in range(60):
        depth = min(len(above), number % 9)
        call_id = str(uuid.uuid4())
        yield _call(project, call_id, trace, above[depth - 1] if depth else above[0] if above else None,
                    "support_agent" if not above else ("plan_step", "research", "search_web")[number % 3],
                    now + timedelta(seconds=number), 90 - number, {"goal": "resolve 300 tickets", "depth": depth},
                    {"done": True})  # fmt: skip
        above[depth:] = [call_id]


def _asked(project: str, rng: random.Random, at: datetime, number: int) -> Iterator[Json]:
    trace, root = str(uuid.uuid4()), str(uuid.uuid4())
    seconds = rng.lognormvariate(0, 0.8)
    question, failed = QUESTIONS[number % len(QUESTIONS)], number % 11 == 3
    answer = f"Hello! About your question **{number}**: it is on its way."
    error = FAILURES[number % 2] if failed else None
    yield _call(project, root, trace, None, "answer_question", at, seconds, {"question": question},
                None if failed else answer, error)  # fmt: skip
    model = MODELS[number % len(MODELS)]
    usage = {
        model: {"requests": 1, "prompt_tokens": 180 + number, "completion_tokens": 30, "total_tokens": 210 + number}
    }
    yield _call(project, str(uuid.uuid4()), trace, root, "openai.chat.completions.create", at, seconds * 0.9,
                {"model": model, "messages": [{"role": "user", "content": question}]},
                None if failed else {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]},
                error, {"usage": usage}, {"kind": "llm"})  # fmt: skip


def _call(
    project: str, call_id: str, trace: str, parent: str | None, op: str, at: datetime, seconds: float, inputs: Json,
    output: Any, error: str | None = None, summary: Json | None = None, attributes: Json | None = None,
) -> Json:  # fmt: skip
    return {
        "project_id": project,
        "id": call_id,
        "trace_id": trace,
        "parent_id": parent,
        "op_name": op if "." in op else f"weave:///{project}/op/{op}:{_DIGEST}",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(seconds=seconds)).isoformat(),
        "attributes": attributes or {},
        "inputs": inputs,
        "output": output,
        "exception": error,
        "summary": summary or {},
        "wb_user_id": "maria.fernanda.oliveira@example.com",
    }


def _agents(wire: Wire) -> None:
    trace = Trace("conversation-about-a-parcel")
    agent = trace.agent("support-agent", user="Where is my parcel?", gen_ai__agent__version="2.1")
    trace.tool("find_order", '{"order": 1007}', '{"state": "lost"}', agent)
    trace.chat(agent, user="Where is my parcel?", answer="It was lost; a new one is on its way.")
    trace.agent("photo-agent", parent=agent, user="Look at the photo")
    attributes = [{"key": "service.name", "value": value_of("shop")}]
    spans = {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": trace.spans}]}
    answer = wire.client.post(
        "/agents/otel/v1/traces", json={"resourceSpans": [spans]}, headers={"project_id": wire.project}
    )
    assert answer.status_code == 200, answer.text


def _metrics(wire: Wire) -> None:
    now = time.time_ns()
    points = [
        {
            "startTimeUnixNano": str(now - (hour + 1) * 3600 * 10**9),
            "timeUnixNano": str(now - hour * 3600 * 10**9),
            "attributes": [{"key": "model", "value": value_of(model)}],
            "asDouble": float(hour * 100 + index),
        }
        for index, model in enumerate(MODELS)
        for hour in range(12)
    ]
    metrics = [
        {"name": name, "unit": unit, "sum": {"dataPoints": points, "aggregationTemporality": 1, "isMonotonic": True}}
        for name, unit in (("gen_ai.client.token.usage", "{token}"), ("shop.orders.answered", "1"))
    ]
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    answer = wire.client.post("/v1/metrics", json=body, headers={"project_id": wire.project})
    assert answer.status_code == 200, answer.text


def _objects(writer: Writer) -> dict[str, str]:
    messages = [
        {"role": "system", "content": "You answer for a shop. Be short, and never promise a date."},
        {"role": "user", "content": "{question}"},
    ]
    prompt = ""
    for said in ("First wording.", "Second, far longer wording, as prompts have it after a year of small changes."):
        prompt = writer.object("answer-prompt", _value("MessagesPrompt", "Prompt", messages=messages, description=said))
    writer.object("router", _value("Router", "Model", temperature=0.2, models=list(MODELS)))
    return {"version": prompt.rpartition(":")[2]}


def _value(class_name: str, *bases: str, **fields: Any) -> Json:
    return {"_type": class_name, "_class_name": class_name, "_bases": [*bases, "Object", "BaseModel"], **fields}


def _evaluations(writer: Writer, rng: random.Random) -> dict[str, str]:
    rows = [
        {
            "id": number,
            "question": QUESTIONS[number % len(QUESTIONS)],
            "answer": f"Order {number}",
            "tags": ["late", "eu"],
        }
        for number in range(40)
    ]
    dataset, digests = writer.dataset("tickets", rows)
    scorers = [writer.scorer("ValidJSONScorer"), writer.scorer("RegexMatchScorer", pattern="[a-z]")]
    evaluation = writer.evaluation("support-quality", dataset, scorers)
    runs = []
    for at, model in enumerate(MODELS[:2]):
        answers: list[Json] = [
            {
                "output": f"Order {number} is on its way, and will be with you soon." if rng.random() < 0.95 else None,
                "scores": {"exact": {"correct": rng.random() < 0.6 + at / 5}, "tone": {"score": rng.randint(1, 5)}},
                "seconds": rng.lognormvariate(0, 0.5),
            }
            for number in range(len(rows))
        ]
        ref = writer.object(f"{model}-router", _value("Router", "Model", model=model))
        runs.append(writer.run(evaluation, dataset, digests, ref, answers, at))
    columns = [
        {"evaluation_object_ref": evaluation, "scorer_name": "exact", "summary_metric_path": "correct.true_fraction"},
        {"evaluation_object_ref": evaluation, "scorer_name": "tone", "summary_metric_path": "score.mean"},
    ]
    board = {"name": "Models by quality", "description": "The routers on real tickets.", "columns": columns}
    writer.object("models-by-quality", _value("Leaderboard", **board))
    _dashboard(writer)
    return {"run": runs[0], "runs": ",".join(runs)}


def _dashboard(writer: Writer) -> None:
    charts = [
        {"id": field, "title": title, "kind": kind, "measures": [{"field": field}], "group_by": group}
        for field, title, kind, group in (
            ("calls", "Calls by model", "stacked", "model"),
            ("errors", "Errors by op", "bar", "op_name"),
            ("cost", "Cost by op", "table", "op_name"),
        )
    ]
    value = {"name": "shop", "period": "30d", "charts": charts}
    stored = {"project_id": writer.project, "object_id": "shop", "val": value, "builtin_object_class": "Dashboard"}
    writer.post("/obj/create", obj=stored)


def _work(wire: Wire, calls: list[Json]) -> dict[str, str]:
    """A queue with items and an alert."""
    refs = []
    for name, schema in (("correct", {"type": "boolean"}), ("quality", {"type": "integer", "minimum": 1, "maximum": 5}),
                         ("tone", {"type": "string", "enum": ["friendly", "neutral", "rude"]})):  # fmt: skip
        spec = {"_type": "AnnotationSpec", "_class_name": "AnnotationSpec", "_bases": ["BaseObject", "BaseModel"],
                "name": name, "field_schema": schema}  # fmt: skip
        made = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": name, "val": spec})
        refs.append(f"weave:///{wire.project}/object/{name}:{made['digest']}")
    guide = "Read the question first.\nChoose rude only where a customer would complain."
    queue = wire.post("/annotation_queues", name="Answers to check", description=guide, scorer_refs=refs)["id"]
    items = [call["id"] for call in calls if call["parent_id"] is None][:12]
    wire.post(f"/annotation_queues/{queue}/items", call_ids=items, display_fields=["inputs.question", "output"])
    rule = {"metric": "error_share", "operator": ">", "threshold": 0.05, "name": "Too many errors", "enabled": True,
            "webhook_url": "http://127.0.0.1:9/hook"}  # fmt: skip
    wire.post("/alerts/create", **rule)
    return {"queue": queue}


def _feedback(wire: Wire, calls: list[str]) -> None:
    for number, call in enumerate(calls):
        ref = f"weave:///{wire.project}/call/{call}"
        payload: Json = {"note": "Well said, but far too long."} if number % 3 else {"emoji": "👍"}
        kind = "wandb.note.1" if number % 3 else "wandb.reaction.1"
        wire.post("/feedback/create", weave_ref=ref, feedback_type=kind, payload=payload)


class _Asked:
    """One question with three answers of different worth."""

    question = "respond with yes, no or maybe"

    def reward(self, text: str) -> float:
        return {"yes": 0.5, "no": 0.75, "maybe": 1.0}.get(text, 0.0)


def _training(wire: Wire) -> dict[str, str]:
    """A model of two steps; its page is that of the model."""
    with Trainer(wire.url, wire.project, "preference") as trainer:
        for _ in range(2):
            trainer.train(trainer.rollouts([_Asked(), _Asked()], 4), learning_rate=2e-3)
        return {"job": trainer.model["id"]}


def _replay(wire: Wire) -> str:
    messages = [{"role": "user", "content": "How are you?"}]
    wire.post("/completions/create", inputs={"model": TINY, "messages": messages, "max_tokens": 8, "temperature": 0})
    asked = {"filter": {"op_names": ["weave.completions_create"]}, "model": TINY, "name": "the small model again"}
    replay = str(wire.post("/replays/create", **asked)["id"])
    deadline = time.monotonic() + 60
    while wire.post("/replays/read", id=replay)["replay"]["ended_at"] is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return replay

"""A project in which every text tries to be more than text, written as clients write."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conftest import Wire
from tests.support.stored_runs import Writer

Json = dict[str, Any]

MARK = "<b>markup</b>"
HOSTILE = (
    f"{MARK}<img src=x onerror=globalThis.struck=1><script>globalThis.struck=2</script></script>"
    "<svg onload=globalThis.struck=3></svg>\"'><iframe srcdoc='<script>parent.struck=4</script>'></iframe>"
    "\u202egnp.exe [link](javascript:globalThis.struck=5) ![picture](http://picture.invalid/x.png) "
    "<a href='javascript:globalThis.struck=6'>x</a> {{constructor.constructor('globalThis.struck=7')()}} مرحبا 🎉"
)
SHORT = f"{MARK}<img src=x onerror=globalThis.struck=9>"
LINK = "javascript:globalThis.struck=8"
HUGE = HOSTILE + "x" * 300_000


@dataclass(frozen=True)
class Hostile:
    """What was written: the project, and a value for each part of an address that names something."""

    project: str
    parts: dict[str, str] = field(default_factory=dict)


def write(wire: Wire) -> Hostile:
    """Write it, and say where it is."""
    writer = Writer(wire.post, wire.project)
    prompt = writer.object("prompt", _value("MessagesPrompt", ["Prompt"], messages=_messages(), description=HOSTILE))
    writer.object("hostile", {"text": HOSTILE, "link": LINK, HOSTILE: [HOSTILE, {"deep": HOSTILE}]})
    dataset, rows = writer.dataset(
        "data", [{"input": HOSTILE, HOSTILE: LINK}, {"input": LINK, HOSTILE: {"a": HOSTILE}}]
    )
    scorer = writer.scorer("ValidJSONScorer", description=HOSTILE)
    evaluation = writer.evaluation("exam", dataset, [scorer], description=HOSTILE)
    model = writer.object("model", _value("Model", ["Model"], prompt=HOSTILE))
    answers = [{"output": HOSTILE, "scores": {"score": {"reason": HOSTILE, "ok": True}}}, {"scores": {"score": 1}}]
    runs = [writer.run(evaluation, dataset, rows, model, answers, at) for at in (0, 1)]
    op = writer.object("op", _value("Op", [], files={}))
    _leaderboard(writer, evaluation)
    calls = list(_calls(wire.project))
    wire.post(f"/v2/{wire.project}/calls/complete", batch=calls)
    call_ref = f"weave:///{wire.project}/call/root"
    for kind, payload in (("wandb.note.1", {"note": HOSTILE}), ("custom", {"value": HOSTILE, HOSTILE: LINK})):
        wire.post("/feedback/create", weave_ref=call_ref, feedback_type=kind, payload=payload, creator=HOSTILE)
    queue = wire.post("/annotation_queues", name=HOSTILE, description=HOSTILE, scorer_refs=[])["id"]
    wire.post(f"/annotation_queues/{queue}/items", call_ids=["root", "chat"], display_fields=["inputs.question"])
    wire.post("/cost/create", costs={HOSTILE: {"prompt_token_cost": 1.0, "completion_token_cost": 1.0}})
    return Hostile(
        wire.project,
        {
            "call": "root", "trace": "trace", "thread": "thread/<b>x</b>", "run": runs[0], "queue": queue,
            "version": prompt.rpartition(":")[2], "op version": op.rpartition(":")[2],
            "runs": ",".join(runs), "job": "nothing", "replay": "nothing",
            "improvement": "nothing",
        },
    )  # fmt: skip


def _value(class_name: str, bases: list[str], **fields: Any) -> Json:
    return {"_type": class_name, "_class_name": class_name, "_bases": [*bases, "Object", "BaseModel"], **fields}


def _messages() -> list[Json]:
    return [{"role": "system", "content": HOSTILE}, {"role": "user", "content": "{question}"}]


def _leaderboard(writer: Writer, evaluation: str) -> None:
    columns = [{"evaluation_object_ref": evaluation, "scorer_name": "score", "summary_metric_path": "ok.true_fraction"}]
    value = {"name": HOSTILE, "description": HOSTILE, "columns": columns}
    writer.object("board", _value("Leaderboard", [], **value))


def _calls(project: str) -> Iterator[Json]:
    now = datetime.now(UTC) - timedelta(minutes=10)

    def call(call_id: str, parent: str | None, op: str, at: float, **fields: Any) -> Json:
        head = {"project_id": project, "id": call_id, "trace_id": "trace", "parent_id": parent, "op_name": op}
        times = {
            "started_at": (now + timedelta(seconds=at)).isoformat(),
            "ended_at": (now + timedelta(seconds=9)).isoformat(),
        }
        rest = {
            "attributes": {HOSTILE: HOSTILE, "link": LINK},
            "inputs": {"question": HOSTILE, HOSTILE: LINK},
            "output": HOSTILE,
        }
        return {**head, **times, **rest, "summary": {}, "wb_user_id": HOSTILE, **fields}

    thread = {"thread_id": "thread/<b>x</b>", "turn_id": "root"}
    yield call("root", None, SHORT, 0, display_name=HOSTILE, **thread)
    chat = {
        "model": HOSTILE,
        "messages": [*_messages(), {"role": "user", "content": [_image(), {"type": "text", "text": HOSTILE}]}],
    }
    tool = {"id": "t1", "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    message = {"role": "assistant", "content": f"# {HOSTILE}\n```html\n{HOSTILE}\n```\n<{LINK}>", "tool_calls": [tool]}
    usage = {HOSTILE: {"requests": 1, "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
    output = {"id": "x", "object": "chat.completion", "model": HOSTILE, "choices": [{"index": 0, "message": message}]}
    yield call(
        "chat", "root", "openai.chat.completions.create", 1, inputs=chat, output=output, summary={"usage": usage}
    )
    yield call("failed", "root", "<script>", 2, exception=f"Traceback\n{HOSTILE}", output=None)
    yield call("huge", "root", "huge", 3, inputs={"text": HUGE}, output={"text": HUGE, "list": [HOSTILE] * 500})


def _image() -> Json:
    return {"type": "image_url", "image_url": {"url": "http://picture.invalid/remote.png"}}

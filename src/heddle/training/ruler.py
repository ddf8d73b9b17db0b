"""RULER: a model reads the trajectories of a group beside each other and scores them; the scores are the rewards.

The request and what is read of its answer are those of `art.rewards.ruler` (openpipe-art 0.5.23): a rubric and the ids
wanted as the system's message; the common beginning, the tools and what is left of each trajectory as the user's; an
answer by JSON schema, asked for anew where ids are missing or twice. Trajectories that say the same are shown once, so
that they have one score.
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest, NotFound
from heddle.jobs.runner import TaskGroup
from heddle.paths import sync
from heddle.store.blobs.base import Blobs
from heddle.store.control.training import JobRow, RulerRule
from heddle.store.control.training_models import ModelRow
from heddle.training import files
from heddle.training.intake import GROUPS
from heddle.training.schemas.requests import RulerRequest
from heddle.training.sequences import GroupData, TrajectoryData, is_choice
from heddle.wire import times
from heddle.wire.inference import InferenceCall
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel
from heddle.wire.training import call_id_of

DEFAULT_RUBRIC = """\
- An attempt that reaches the goal scores clearly higher than any that misses it.
- Of attempts that reach the goal, those with fewer detours score higher.
- A small difference in quality is a small difference in score, a large one a large difference.
- Progress towards a goal that is missed earns a part of the score."""
ATTEMPTS = 3
"""How often a judge is asked for the scores of one group before the job fails."""
SHOWN_NAMES = 20
"""How many ids an answer is told of that it missed or made up."""
OP_NAME = "heddle.ruler"
SCORES_FILE = "ruler.jsonl"
"""In the folder of the job: a line for each group that is scored."""
TokenCounts = dict[str, dict[str, int]]
"""Counts of requests and tokens by model."""


class Judge(Protocol):
    """Asks a model, patiently, and counts its tokens."""

    usage: TokenCounts

    async def __call__(self, inputs: Json, /) -> Json:
        """The `chat.completion` to the inputs of a completion; raises HeddleError."""
        ...


class TrajectoryScore(LazyModel):
    """What the judge says of one trajectory."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    trajectory_id: str
    explanation: str = ""
    score: FiniteFloat = Field(ge=0, le=1)


class Scores(LazyModel):
    """The judge's answer."""

    scores: list[TrajectoryScore]


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The scores of a group in the order of its trajectories, and the tokens that they took."""

    group: int
    scores: list[float]
    explanations: list[str]
    usage: TokenCounts


def read_messages(trajectory: TrajectoryData) -> list[Json]:
    """What the judge reads of a trajectory: its messages and answers, those of further histories behind them."""
    histories = [trajectory, *(trajectory.get("additional_histories") or ())]
    items = [item for history in histories for item in history.get("messages_and_choices") or ()]
    messages = ({"role": "assistant", **item["message"]} if is_choice(item) else item for item in items)
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def write_request(conversations: Sequence[list[Json]], tools: Any, rubric: str) -> list[Json]:
    """The messages that ask for the scores of different conversations, whose ids are 1, 2, ..."""
    shared = 0
    if len(conversations) > 1:
        shared = next(
            (place for place, items in enumerate(zip(*conversations, strict=False)) if _differ(items)),
            min(map(len, conversations)),
        )
    ids = ", ".join(_ids(len(conversations)))
    system = (
        "Below are attempts of an agent at one task; what the task is follows from their messages. Compare the "
        f"attempts and give each a score from 0 to 1.\n\nRubric:\n{rubric}\n\nAnswer with exactly one score for each "
        f"of these trajectory ids: {ids}"
    )
    parts = [f"<context>\n{_write(conversations[0][:shared])}\n</context>"] if shared else []
    if tools:
        parts.append(f"<available_tools>\n{_write(tools)}\n</available_tools>")
    parts.append("Trajectories:")
    for number, conversation in enumerate(conversations, 1):
        parts.append(f'<trajectory id="{number}">\n{_write(conversation[shared:])}\n</trajectory>')
    return [{"role": "system", "content": system}, {"role": "user", "content": "\n\n".join(parts)}]


def _differ(items: Sequence[Json]) -> bool:
    return any(item != items[0] for item in items)


def _write(value: Any) -> str:
    """JSON in which no text can end the element that it stands in."""
    return json.dumps(value, ensure_ascii=False).replace("</", "<\\/")


def _ids(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def answer_format(count: int) -> Json:
    """The `response_format` of an answer that scores so many trajectories."""
    score = {
        "type": "object",
        "properties": {
            "trajectory_id": {"type": "string", "enum": _ids(count)},
            "explanation": {"type": "string"},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["trajectory_id", "explanation", "score"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"scores": {"type": "array", "items": score, "minItems": count, "maxItems": count}},
        "required": ["scores"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "scores", "schema": schema, "strict": True}}


def read_scores(text: str, count: int) -> list[TrajectoryScore]:
    """The scores of an answer by id; raises InvalidRequest saying what is wrong with it."""
    try:
        scores = Scores.model_validate_json(text).scores
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"its answer has no valid scores: {place + ': ' if place else ''}{first['msg']}") from None
    found = Counter(score.trajectory_id for score in scores)
    wanted = dict.fromkeys(_ids(count))
    wrong = {
        "missing": [name for name in wanted if name not in found],
        "twice": sorted(name for name, often in found.items() if often > 1),
        "unknown": [name for name in found if name not in wanted],
    }
    if any(wrong.values()):
        told = "; ".join(f"{what}: {_shorten(names)}" for what, names in wrong.items() if names)
        raise InvalidRequest(f"its answer does not score each of {count} trajectory ids once ({told})")
    return sorted(scores, key=lambda score: int(score.trajectory_id))


def _shorten(names: Sequence[str]) -> str:
    """The first of some names that a judge made up, which may be many and long."""
    shown = ", ".join(name[:20] for name in names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"


def _number_different(read: Iterable[list[Json]]) -> tuple[list[list[Json]], list[int]]:
    """The different conversations among some, and for each of those its place among the different ones."""
    different: dict[str, tuple[int, list[Json]]] = {}
    numbers = []
    for messages in read:
        number, _ = different.setdefault(json.dumps(messages, sort_keys=True), (len(different), messages))
        numbers.append(number)
    return [messages for _, messages in different.values()], numbers


async def score_group(place: int, group: GroupData, wanted: RulerRule, judge: Judge) -> ScoredGroup:
    """Let a judge score a group; raises HeddleError when it cannot be asked, or never answers as it must."""
    members = group["trajectories"]

    def read() -> tuple[int, list[int], list[Json]]:
        different, numbers = _number_different(read_messages(member) for member in members)
        rubric = wanted["rubric"] or DEFAULT_RUBRIC
        return len(different), numbers, write_request(different, members[0].get("tools"), rubric)

    # Groups and answers may be of any length; others are answered meanwhile.
    count, numbers, request = await asyncio.to_thread(read)
    fields: Json = {"model": wanted["judge_model"], "response_format": answer_format(count)}
    fields |= {name: wanted[name] for name in ("temperature", "max_tokens") if wanted[name] is not None}
    for attempt in range(ATTEMPTS):
        answer = await judge({**fields, "messages": request})
        text = read_text(answer)
        try:
            scores = await asyncio.to_thread(read_scores, text, count)
            break
        except InvalidRequest as error:
            if attempt + 1 == ATTEMPTS:
                raise
            again = f"This cannot be used: {error.reason}. Answer anew, with one score for each trajectory id."
            request = [*request, {"role": "assistant", "content": text}, {"role": "user", "content": again}]
    chosen = [scores[number] for number in numbers]
    return ScoredGroup(place, [one.score for one in chosen], [one.explanation for one in chosen], judge.usage)


def read_text(answer: Json) -> str:
    """The text of a `chat.completion`; empty where it has none."""
    try:
        return str(answer["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        return ""


def add_scores(group: GroupData, scored: ScoredGroup) -> None:
    """Make the scores the rewards; a reward that was there becomes the metric `independent_reward`."""
    for member, score, explanation in zip(group["trajectories"], scored.scores, scored.explanations, strict=True):
        given = {"independent_reward": member["reward"]} if "reward" in member else {}
        member["metrics"] = {**(member.get("metrics") or {}), **given, "ruler_score": score}
        member["logs"] = [*(member.get("logs") or ()), f"RULER explanation: {explanation}"]
        member["reward"] = score


class Ruler:
    """Lets judges score the groups of jobs before they are trained.

    `check` raises HeddleError for a model that nobody answers for, `ask` gives a judge for a caller and a project,
    `show` stores a call in the trace; `at_once` groups of a job are scored at the same time.
    """

    def __init__(
        self,
        data: Path,
        blobs: Blobs,
        check: Callable[[str, Caller, str], Awaitable[None]],
        ask: Callable[[Caller, str], Judge],
        show: Callable[[InferenceCall], Awaitable[None]],
        at_once: int,
    ) -> None:
        self._data = data
        self._blobs = blobs
        self._check = check
        self._ask = ask
        self._show = show
        self._at_once = at_once

    async def prepare(self, request: RulerRequest | None, model: ModelRow, caller: Caller) -> RulerRule:
        """What the job keeps: the judge, and how far the caller's key reaches; raises HeddleError for no such judge."""
        wanted = request or RulerRequest()
        judge_model = wanted.judge_model or model.base_model
        await self._check(judge_model, caller, model.project_id)
        return {
            "judge_model": judge_model,
            "rubric": wanted.rubric,
            "temperature": wanted.temperature,
            "max_tokens": wanted.max_tokens,
            "caller": caller.to_json(),
        }

    async def score(self, model: ModelRow, job: JobRow) -> tuple[str, TokenCounts]:
        """The key of the job's body with the scores as rewards, and the tokens of its judge.

        What was scored before a crash is not asked for again. Raises JudgeFailed naming judge and group.
        """
        try:
            body = await asyncio.to_thread(lambda: files.read_payload(self._blobs.path(job.payload)))
        except NotFound as error:
            raise JudgeFailed(f"the data of the job is missing: {error}") from None
        groups: list[GroupData] = body[GROUPS]
        file = self._data / files.work_folder(job.model_id, job.id) / SCORES_FILE
        known = await asyncio.to_thread(_read_scored, file)
        writing = asyncio.Lock()

        async def score_one(place: int) -> None:
            scored = await self._score_group(model, job, place, groups[place])
            async with writing:
                await asyncio.to_thread(_append, file, scored)
            known[place] = scored

        async with TaskGroup(self._at_once) as tasks:
            for place, group in enumerate(groups):
                # Alone, a trajectory is compared with nothing and trains nothing.
                if len(group["trajectories"]) > 1 and place not in known:
                    tasks.add(score_one, place)
        usage: TokenCounts = {}
        for place, scored in sorted(known.items()):
            add_scores(groups[place], scored)
            for name, counts in scored.usage.items():
                into = usage.setdefault(name, {})
                for what, count in counts.items():
                    into[what] = into.get(what, 0) + count
        return await asyncio.to_thread(lambda: self._blobs.put_bytes(files.write_payload({GROUPS: groups}))), usage

    async def _score_group(self, model: ModelRow, job: JobRow, place: int, group: GroupData) -> ScoredGroup:
        wanted, began = job.config["ruler"], times.now()
        author = Caller.from_json(wanted["caller"])
        judge = self._ask(author, model.project_id)
        scored, problem = None, None
        try:
            scored = await score_group(place, group, wanted, judge)
        except HeddleError as error:
            problem = f"the judge {wanted['judge_model']} of group {place}: {error.reason}"
        parent = call_id_of(job.id)
        await self._show(
            InferenceCall(
                caller=author,
                project=model.project_id,
                op_name=OP_NAME,
                id=str(uuid.uuid5(uuid.UUID(job.id), f"{SCORES_FILE}/{place}")),
                trace_id=parent,
                parent_id=parent,
                started_at=times.to_datetime(began),
                ended_at=times.to_datetime(times.now()),
                inputs={
                    **{name: wanted[name] for name in ("judge_model", "rubric")},
                    "group": place,
                    "trajectories": [read_messages(member) for member in group["trajectories"]],
                },
                output={"scores": scored.scores, "explanations": scored.explanations} if scored else None,
                exception=problem,
                attributes={"weave": {"kind": "scorer"}, "job_id": job.id},
                usage=judge.usage,
            )
        )
        if scored is None:
            raise JudgeFailed(problem or "")
        return scored


class JudgeFailed(HeddleError):
    """A judge that could not be asked, or did not answer as it must; the text is for the client."""


def _read_scored(file: Path) -> dict[int, ScoredGroup]:
    """The groups that are scored; a line that a crash cut is left out."""
    found: dict[int, ScoredGroup] = {}
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    for line in lines:
        try:
            scored = ScoredGroup(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[scored.group] = scored
    return found


def _append(file: Path, scored: ScoredGroup) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lines:
        # What a crash cut ends here.
        lines.write((b"\n" if lines.tell() else b"") + json.dumps(asdict(scored)).encode() + b"\n")
    sync(file)

"""Scorers from refs and objects: which of them run here, and why the others do not."""

from collections.abc import Sequence
from typing import Any

from heddle.errors import Forbidden, HeddleError, InvalidRequest
from heddle.evals.model import structured
from heddle.evals.objects import Found, ObjectReader, is_ref, shown
from heddle.evals.scorers.base import Scorer
from heddle.evals.scorers.builtin import BuiltinScorer, builtin
from heddle.evals.scorers.judge import CLASS_NAME, judge
from heddle.wire import refs


class CannotRun(InvalidRequest):
    """Scorers that do not run here; the reason lists them."""


async def read_scorers(reader: ObjectReader, listed: Sequence[Any], what: str) -> list[Scorer]:
    """The scorers of a list of refs (or values); raises CannotRun with all those that do not run here.

    `what` begins the text: `The evaluation x has`, say.
    """
    made, refused = list[Scorer](), list[str]()
    for place, item in enumerate(listed):
        try:
            made.append(await _scorer(reader, item, place))
        except Forbidden:
            raise
        except HeddleError as error:
            refused.append(error.reason)
    names = [scorer.name for scorer in made]
    refused += [f"two are named {twice}" for twice in sorted({item for item in names if names.count(item) > 1})]
    if refused:
        raise CannotRun(f"{what} scorers that cannot be run here: {'; '.join(refused)}")
    return made


async def _scorer(reader: ObjectReader, item: Any, place: int) -> Scorer:
    if isinstance(item, dict):
        # A reader of values has no version of its own for what is stored inside another object.
        inline = Found(refs.Ref("", "object", str(item.get("name") or f"scorer_{place}")), item)
        return await _made(reader, inline, "", f"number {place}: {{}}")
    if not is_ref(item):
        raise InvalidRequest(f"number {place} is no scorer")
    if reader.target(item, "The scorer").kind != "object":
        raise InvalidRequest(f"{shown(item)} (a function, and stored code is not run here)")
    found = await reader.read(item, "The scorer")
    return await _made(reader, found, found.ref, f"{shown(item)} ({{}})")


async def _made(reader: ObjectReader, found: Found, ref: str, told: str) -> Scorer:
    made: Scorer | str
    if not found.is_a(CLASS_NAME):
        made = builtin(found.target.name, ref, found.value)
        if isinstance(made, BuiltinScorer):
            made = await made.problem() or made
    else:
        try:
            made = await _judge(reader, found, ref)
        except HeddleError as error:
            made = error.reason
    if isinstance(made, str):
        raise InvalidRequest(told.replace("{}", made))
    return made


async def _judge(reader: ObjectReader, found: Found, ref: str) -> Scorer | str:
    model = found.value.get("model")
    if is_ref(model):
        described = await reader.read(model, "The model of a judge")
    elif isinstance(model, dict):
        described = Found(found.target, model)
    else:
        return "it has no model"
    prompt = await reader.followed(found.value.get("scoring_prompt"), "The prompt of a judge")
    return judge(found.target.name, ref, found.value, await structured(reader, described), prompt)

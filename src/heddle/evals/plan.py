"""A stored evaluation that can be run: its dataset, its scorers, its trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.evals.dataset import Dataset, read_dataset
from heddle.evals.model import Model
from heddle.evals.objects import ObjectReader, shown
from heddle.evals.scorers.base import Scorer
from heddle.evals.scorers.read import read_scorers
from heddle.store.base import Store

MOST_TRIALS = 100
_ROWS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """An evaluation that can be run."""

    ref: str
    """Internal, its version a digest."""
    name: str
    label: str | None
    """Its `evaluation_name`, which its runs are shown under."""
    dataset: Dataset
    scorers: Sequence[Scorer]
    trials: int


class PlanReader:
    """Reads evaluations with one caller's rights."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self.objects = ObjectReader(store, caller)

    async def read(self, ref: str) -> Plan:
        """The evaluation behind a ref in either form; raises HeddleError for what cannot be read or run.

        CannotRun names the scorers that do not run here.
        """
        found = await self.objects.read(ref, "The evaluation")
        value = found.value
        if not found.is_a("Evaluation"):
            raise InvalidRequest(f"{shown(ref)} is no Evaluation but {value.get('_class_name')}")
        name = str(value.get("name") or found.target.name)
        if value.get("preprocess_model_input") is not None:
            raise InvalidRequest(f"The evaluation {name} has a preprocess_model_input, and stored code is not run here")
        listed = value.get("scorers")
        if not isinstance(listed, list) or not listed:
            raise InvalidRequest(f"The evaluation {name} has no scorers, so nothing says how good an answer is")
        scorers = await read_scorers(self.objects, listed, f"The evaluation {name} has")
        dataset = await read_dataset(self.objects, value.get("dataset"), name)
        label = value.get("evaluation_name")
        trials = _trials(value.get("trials"), name)
        return Plan(found.ref, name, label if isinstance(label, str) else None, dataset, scorers, trials)


async def check_rows(plan: Plan, model: Model) -> None:
    """Raise InvalidRequest when a row cannot be asked or scored, or a scorer gives no numbers; reads every row once."""
    for scorer in plan.scorers:
        if not scorer.is_numeric:
            raise InvalidRequest(f"The scorer {scorer.name} of {plan.name} answers texts, and a text is no score")
    needed = [(scorer.name, column) for scorer in plan.scorers for column in scorer.needs]
    missing: dict[tuple[str, str], list[int]] = {}
    async for row in plan.dataset.rows():
        try:
            model.inputs(row.value, 0)
        except InvalidRequest as error:
            raise InvalidRequest(f"Row {row.place} of the dataset of {plan.name}: {error.reason}") from None
        for pair in needed:
            if row.value.get(pair[1]) is None and len(missing.setdefault(pair, [])) <= _ROWS_SHOWN:
                missing[pair].append(row.place)
    for (name, column), places in missing.items():
        told = ", ".join(map(str, places[:_ROWS_SHOWN])) + (" and more" if len(places) > _ROWS_SHOWN else "")
        raise InvalidRequest(
            f"The scorer {name} of {plan.name} needs the column {column!r} (see its column_map), and it is missing in "
            f"rows {told} of the dataset"
        )


def _trials(value: Any, name: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TRIALS:
        raise InvalidRequest(f"The evaluation {name} has trials {value!r}; 1 to {MOST_TRIALS} are possible")
    return value

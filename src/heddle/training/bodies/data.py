"""Rows of supervised jobs: where they come from, and what each must hold."""

from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field, TypeAdapter, ValidationError

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.training.bodies.trajectories import Item, Part, Tool
from heddle.wire.jsontypes import Json

FIELD = "training_data_url"
_MOST_NAMED = 5


class DatasetReader(Protocol):
    """Reads training data with somebody's rights."""

    async def read(self, caller: Caller, project_id: str, url: str, max_bytes: int) -> list[Json]:
        """The rows of a JSONL file or a dataset, in order; a bare file digest lies in `project_id` (`entity/project`).

        Raises ValidationFailed at `training_data_url` for an address that is not allowed, NotFound, Forbidden, TooLarge
        beyond `max_bytes`, and InvalidRequest for content that cannot be read (with its line).
        """
        ...


class ChatRow(Part):
    """One conversation to learn from."""

    messages: Annotated[list[Item], Field(min_length=1)]
    tools: list[Tool] | None = None


_ROWS: TypeAdapter[list[ChatRow]] = TypeAdapter(list[ChatRow])


def checked_rows(rows: Sequence[Json]) -> list[Json]:
    """The rows as the job keeps them (messages and tools); raises InvalidRequest naming the first that are wrong."""
    if not rows:
        raise InvalidRequest(f"{FIELD}: there is no row in it; nothing to train on", param=FIELD)
    try:
        found = _ROWS.validate_python(list(rows))
    except ValidationError as error:
        texts = []
        for item in error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_NAMED]:
            row, *place = item["loc"]
            texts.append(f"row {row}: {'.'.join(str(part) for part in place)}: {item['msg']}")
        raise InvalidRequest(f"{FIELD}: {'; '.join(texts)}", param=FIELD) from None
    if not any(item.get("role") == "assistant" for row in found for item in row.messages):
        raise InvalidRequest(f"{FIELD}: no row has a message of the assistant; nothing to train on", param=FIELD)
    return [row.model_dump(exclude_none=True) for row in found]

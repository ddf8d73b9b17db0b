"""The engine as it is now: its figures as they change, and what it holds."""

import asyncio
from collections.abc import AsyncIterator

import orjson
from fastapi import Response

from heddle.auth import Caller
from heddle.errors import HeddleError
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import EventStreamsDep, Reader, StateDep, answer, group
from heddle.http.state import ServerState
from heddle.inference.service import Inference, InferenceDep
from heddle.wire.jsontypes import Json

router = group("Pages")

_LOOK_SECONDS = 0.5
_SAME_LOOKS = 10
"""Figures that stay the same are sent again after so many looks, so that a chart goes on."""


@router.get("/_ui/api/inference", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def inference(caller: Reader, inference: InferenceDep) -> Response:
    """The figures once."""
    return answer(await _stats(caller, inference))


@router.get("/_ui/api/inference/live", include_in_schema=False, dependencies=KNOWN_PARAMETERS)
async def follow_inference(
    caller: Reader, event_streams: EventStreamsDep, inference: InferenceDep, state: StateDep
) -> Response:
    """The figures as server-sent events, at most two a second, until the page goes."""
    return event_streams.answer(caller, _changes(caller, inference, state))


async def _changes(caller: Caller, inference: Inference, state: ServerState) -> AsyncIterator[bytes]:
    number, same, before = 0, 0, b""
    while not state.stopping:
        found = orjson.dumps(await _stats(caller, inference))
        same = same + 1 if found == before else 0
        if not same or same % _SAME_LOOKS == 0:
            number += 1
            yield b"id: %d\ndata: %b\n\n" % (number, found)
        before = found
        await asyncio.sleep(_LOOK_SECONDS)


async def _stats(caller: Caller, inference: Inference) -> Json:
    service = inference
    try:
        model = await service.model()
    except HeddleError as error:
        return {"is_off": service.is_off, "problem": error.reason, "engines": []}
    report = await service.accounts.metrics.report()
    stats = service.accounts.metrics.stats()
    engines = [
        {
            **engine,
            "context": model.info.max_model_len,
            "adapters": [name for name in stats[engine["model"]].adapters if _may_see(caller, name)],
            "adapter_count": engine["adapters"],
        }
        for engine in report["data"]
    ]
    return {"is_off": service.is_off, "problem": service.problem, "engines": engines}


def _may_see(caller: Caller, adapter: str) -> bool:
    """Adapters of a project are named `entity/project/name@step`."""
    place = adapter.rpartition("/")[0]
    return not place or caller.reaches(place)

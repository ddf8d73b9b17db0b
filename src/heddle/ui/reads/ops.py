"""What each op of a project did lately."""

from statistics import median
from typing import Any

from fastapi import Response

from heddle.http import Reader, StoreDep, answer, group
from heddle.wire import refs, times
from heddle.wire.calls import OpActivity

router = group("Pages")


@router.get("/_ui/api/ops", include_in_schema=False)
async def ops(project: str, caller: Reader, store: StoreDep) -> Response:
    """Per name: calls, the last one, and of the newest ones the median time and the share that failed."""
    by_name: dict[str, list[OpActivity]] = {}
    for activity in await store.breakdowns.ops(caller.open(project)):
        by_name.setdefault(refs.operation_name(activity.op), []).append(activity)
    return answer({"ops": [_shown(name, found) for name, found in by_name.items()]})


def _shown(name: str, found: list[OpActivity]) -> dict[str, Any]:
    seconds = [took for activity in found for took in activity.seconds]
    return {
        "name": name,
        "calls": sum(activity.calls for activity in found),
        "last": times.to_iso(max(activity.last_started_at for activity in found)),
        "kind": found[0].kind,
        "p50": median(seconds) if seconds else None,
        "error_share": sum(activity.errors for activity in found) / len(seconds) if seconds else None,
        "versions": {activity.op: activity.calls for activity in found},
    }

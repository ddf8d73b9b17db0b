"""A program that dies in the middle of a call which is on the server before it ends."""

import os
import time

import weave
from common import plain, report, start

client = start()


@weave.op
def step(n: int) -> dict:
    """What was done before the end."""
    return {"done": n}


def status_of(call_id: str) -> str:
    """The status of a call, as soon as it is stored."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return plain(client.get_call(call_id).summary)["weave"]["status"]
        except ValueError:
            if time.monotonic() > deadline:
                raise


@weave.op(eager_call_start=True)
def job(steps: int) -> None:
    """Never ends."""
    own_id = weave.require_current_call().id
    during = status_of(own_id)
    child = step.call(1)[1]
    status_of(child.id)
    report(parent=own_id, child=child.id, during=during)
    os._exit(0)


job(2)

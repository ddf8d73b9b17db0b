"""Thirty calls to a project that has no room for them yet; all of them are stored by the end."""

import weave
from common import report, start

client = start()


@weave.op
def step(n: int) -> dict:
    """One call."""
    return {"done": n}


for number in range(30):
    step(number)
client.flush()
report(done=True)

"""Calls that the program never ends, and one that another process ends."""

import os

import weave
from common import plain, report, start

client = start()


@weave.op(eager_call_start=True)
def early(n: int) -> str:
    """An op that is on the server before it ends."""
    client.flush()
    seen = client.get_call(weave.require_current_call().id)
    return str(seen.summary["weave"]["status"])


parent = client.create_call("long.job", {"steps": 2}, use_stack=False)
child = client.create_call("long.step", {"step": 1}, parent=parent, use_stack=False)
client.finish_call(child, output={"done": True})
during = early(1)
client.flush()
client.finish()
report(parent=parent.id, child=child.id, during=during, inputs=plain(parent.inputs), pid=os.getpid())

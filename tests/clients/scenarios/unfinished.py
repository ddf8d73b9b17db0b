"""A call that is visible while it runs, and one that the program never ends."""

import time

import weave
from common import plain, report, start

client = start()


@weave.op(eager_call_start=True)
def early(n: int) -> str:
    """An op that is on the server before it ends; gives its status there."""
    own_id = weave.require_current_call().id
    deadline = time.monotonic() + 30
    while True:
        try:
            return plain(client.get_call(own_id).summary)["weave"]["status"]
        except ValueError:
            if time.monotonic() > deadline:
                raise


during = early(1)
parent = client.create_call("long.job", {"steps": 2}, use_stack=False)
child = client.create_call("long.step", {"step": 1}, parent=parent, use_stack=False)
client.finish_call(child, output={"done": True})
report(parent=parent.id, child=child.id, during=during)

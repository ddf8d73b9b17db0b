"""Conversations: calls inside `weave.thread` share a thread id, its outermost calls are turns."""

import weave
from common import report, start

client = start()


@weave.op
def tool(n: int) -> int:
    """Below a turn."""
    return n


@weave.op
def turn(n: int) -> int:
    """One exchange."""
    return tool(n) + 1


ids: dict[str, list[str]] = {"talk": [], "other": []}
for name, count in (("talk", 3), ("other", 2)):
    with weave.thread(name):
        for n in range(count):
            ids[name].append(turn.call(n)[1].id)
with weave.thread() as anonymous:
    turn(100)
with weave.thread(None):
    outside = turn.call(200)[1].id
client.flush()
seen = client.get_call(ids["talk"][0])
child = next(iter(seen.children()))
report(
    ids=ids,
    anonymous=anonymous.thread_id,
    outside=[client.get_call(outside).thread_id, client.get_call(outside).turn_id],
    turn=[seen.thread_id, seen.turn_id == seen.id],
    child=[child.thread_id, child.turn_id == seen.id],
    by_thread=len(client.get_calls(filter={"thread_ids": ["talk"]})),
    by_turn=len(client.get_calls(filter={"turn_ids": [ids["other"][1]]})),
)

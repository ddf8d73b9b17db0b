"""The smallest traced program."""

import os

import weave
from common import plain, report

client = weave.init(os.environ["SCENARIO_INIT"])


@weave.op
def add(a: int, b: int) -> int:
    """A sum."""
    return a + b


total, call = add.call(3, b=4)
client.flush()
seen = client.get_call(call.id)
report(
    entity=client.entity,
    project=client.project,
    total=total,
    id=call.id,
    inputs=plain(seen.inputs),
    output=seen.output,
    op_name=seen.op_name,
)

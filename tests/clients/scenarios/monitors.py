"""A monitor switched on through the SDK: calls that are made afterwards are scored by the server."""

import weave
from common import report, start
from weave.scorers import StringMatchScorer, ValidJSONScorer

client = start()


@weave.op
def extract(text: str) -> str:
    """What is watched."""
    return '{"text": "' + text + '"}' if text != "bad" else "{"


@weave.op
def other(text: str) -> str:
    """What is not."""
    return text


before = extract.call("before")[1].id
client.flush()
monitor = weave.Monitor(
    name="json-monitor",
    description="Is it JSON?",
    sampling_rate=1,
    op_names=["extract"],
    query={"$expr": {"$not": [{"$eq": [{"$getField": "inputs.text"}, {"$literal": "skipped"}]}]}},
    scorers=[ValidJSONScorer(), StringMatchScorer(name="mentions", column_map={"target": "text"})],
)
ref = monitor.activate()
ids = {text: extract.call(text)[1].id for text in ("good", "bad", "skipped")}
other("good")
client.flush()
loaded = weave.ref(ref.uri()).get()
report(
    before=before,
    ids=ids,
    ref=ref.uri(),
    loaded=[loaded.name, loaded.active, loaded.sampling_rate, len(loaded.scorers)],
)

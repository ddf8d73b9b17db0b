"""Datasets: rows, changes, selections, rows from calls, ten thousand rows."""

import weave
from common import plain, report, start

client = start()

small = weave.Dataset(
    name="small",
    rows=[{"id": i, "question": f"{i}?", "expected": {"sum": i + 0.5, "tags": ["a", i]}} for i in range(5)],
)
small_ref = weave.publish(small)
loaded = weave.ref(small_ref.uri()).get()
grown = loaded.add_rows([{"id": 5, "question": "5?", "expected": None}])
grown_ref = weave.publish(grown)
grown_loaded = weave.ref(grown_ref.uri()).get()
chosen = loaded.select([3, 1])
row_ref = loaded.rows[2].ref

large = weave.Dataset(
    name="large", rows=[{"id": i, "text": f"row number {i} " + "x" * (i % 50)} for i in range(10_000)]
)
large_ref = weave.publish(large)
large_loaded = weave.ref(large_ref.uri()).get()
ids = [row["id"] for row in large_loaded.rows]


@weave.op
def answer(question: str) -> str:
    """Its calls become a dataset."""
    return question * 2


for text in ("x", "y", "z"):
    answer(text)
client.flush()
calls = client.get_calls(filter={"op_names": [f"weave:///{client.entity}/{client.project}/op/answer:*"]})
from_calls = weave.Dataset.from_calls(calls)
from_calls.name = "from-calls"
from_calls_ref = weave.publish(from_calls)
from_calls_loaded = weave.ref(from_calls_ref.uri()).get()

# What is read from a dataset goes into a call as a ref, and is the value again for whoever reads the call.
referring = answer.call(loaded.rows[4]["question"])[1].id
client.flush()

report(
    small=[plain(row) for row in loaded.rows],
    small_digest=small_ref.digest,
    grown=[plain(row)["id"] for row in grown_loaded.rows],
    grown_digest=grown_ref.digest,
    chosen=[plain(row)["id"] for row in chosen.rows],
    row_ref=row_ref.uri(),
    row_value=plain(weave.ref(row_ref.uri()).get()),
    referring=referring,
    referring_input=client.get_call(referring).inputs["question"],
    large_count=large_loaded.num_rows,
    large_in_order=ids == list(range(10_000)),
    large_last=plain(large_loaded.rows[9_999]),
    large_digest=large_ref.digest,
    from_calls=[[plain(row)["inputs"]["question"], plain(row)["output"]] for row in from_calls_loaded.rows],
)

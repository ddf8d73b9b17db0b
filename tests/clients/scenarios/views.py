"""Saved views: published, loaded by ref, and asked for their calls."""

import weave
from common import report, start

client = start()


@weave.op
def measure(n: int) -> dict:
    """Rows of the view."""
    return {"value": n * 10}


@weave.op
def other(n: int) -> int:
    """Not in the view."""
    return n


for n in range(6):
    measure(n)
    other(n)
client.flush()

big = weave.SavedView(label="Big ones")
big.add_filter("inputs.n", ">=", 2)
big.add_sort("inputs.n", "desc")
big.add_column("inputs.n", "N")
big.save()

# The SDK cannot load a view with a query again, whoever serves it: its own `Query` model refuses the class names that
# it has stored with it. A view of one op, sorted and with columns, makes the round trip.
view = weave.SavedView(label="Measures")
view.filter_op(f"weave:///{client.entity}/{client.project}/op/measure:*")
view.add_sort("inputs.n", "desc")
view.add_columns("inputs.n", "output.value")
view.save()
loaded = weave.SavedView.load(view.ref.uri())
renamed = loaded.rename("Renamed").save()
report(
    big=[call.inputs["n"] for call in big.get_calls()],
    big_ref=[big.ref.name, big.ref.digest],
    label=loaded.label,
    first_ref=[view.ref.name, view.ref.digest],
    numbers=[call.inputs["n"] for call in loaded.get_calls()],
    limited=[call.inputs["n"] for call in loaded.get_calls(limit=2)],
    columns=[column["label"] for column in loaded.get_table_columns()],
    rows=len(loaded.to_grid().rows),
    renamed_digest=renamed.ref.digest,
)

"""Every way of asking `get_calls`, over a project whose contents are known."""

import datetime

import weave
from common import plain, report, start
from weave.trace.builtin_object_classes.query import CallsFilter

client = start()


class Setting(weave.Object):
    """A published object that calls take as input."""

    temperature: float
    label: str


warm = weave.publish(Setting(temperature=0.9, label="warm"), name="setting")
cold = weave.publish(Setting(temperature=0.1, label="cold"), name="setting")


@weave.op
def child(n: int) -> dict:
    """The child of every third call."""
    return {"n": n}


@weave.op
def work(n: int, word: str, setting: Setting) -> dict:
    """Output and status depend on n alone."""
    if n % 3 == 0:
        child(n)
    if n % 5 == 4:
        raise RuntimeError(f"unlucky {n}")
    return {"square": n * n, "word": word, "even": n % 2 == 0, "none": None}


WORDS = ["apple", "Banana", "cherry", "date"]
settings = [weave.ref(warm.uri()).get(), weave.ref(cold.uri()).get()]
ids = []
for n in range(24):
    with weave.attributes({"shard": n % 4, "tag": f"t{n}"}):
        _, call = work.call(n, WORDS[n % 4], settings[n % 2], __should_raise=False)
    ids.append(call.id)
client.flush()

NAME = f"weave:///{client.entity}/{client.project}/op/work:*"
only_work = {"op_names": [NAME]}


def field(name: str) -> dict:
    """A field of the query language."""
    return {"$getField": name}


def literal(value: object) -> dict:
    """A constant of the query language."""
    return {"$literal": value}


def numbers(**arguments: object) -> list[int]:
    """The inputs.n of the selected work calls, in the order they come."""
    arguments.setdefault("filter", only_work)
    arguments.setdefault("sort_by", [{"field": "inputs.n", "direction": "asc"}])
    return [call.inputs["n"] for call in client.get_calls(**arguments)]


def where(expression: dict) -> list[int]:
    """The work calls that the expression selects."""
    return numbers(query={"$expr": expression})


filters = {
    "all": len(client.get_calls()),
    "work": len(client.get_calls(filter=only_work)),
    "typed_filter": len(client.get_calls(filter=CallsFilter(op_names=[NAME]))),
    "exact_op": len(client.get_calls(filter={"op_names": [work.ref.uri()]})),
    "roots": len(client.get_calls(filter={"trace_roots_only": True})),
    "children_of_3": [call.inputs["n"] for call in client.get_calls(filter={"parent_ids": [ids[3]]})],
    "by_id": numbers(filter={"call_ids": [ids[7], ids[2]]}),
    "by_trace": len(client.get_calls(filter={"trace_ids": [client.get_call(ids[6]).trace_id]})),
    "by_input_ref": numbers(filter={**only_work, "input_refs": [warm.uri()]}),
    "by_any_setting": len(client.get_calls(filter={**only_work, "input_refs": [warm.uri().rsplit(":", 1)[0] + ":*"]})),
    "nobody": len(client.get_calls(filter={"wb_user_ids": ["nobody"]})),
}
queries = {
    "eq": where({"$eq": [field("inputs.n"), literal(5)]}),
    "eq_text": where({"$eq": [field("inputs.word"), literal("cherry")]}),
    "gt": where({"$gt": [field("inputs.n"), literal(20)]}),
    "gte_output": where({"$gte": [field("output.square"), literal(400)]}),
    "lt": where({"$lt": [field("inputs.n"), literal(2)]}),
    "lte": where({"$lte": [field("inputs.n"), literal(2)]}),
    "in": where({"$in": [field("inputs.n"), [literal(1), literal(8), literal(99)]]}),
    "not": where({"$not": [{"$gt": [field("inputs.n"), literal(1)]}]}),
    "and_or": where(
        {
            "$and": [
                {"$or": [{"$eq": [field("inputs.word"), literal("apple")]}, {"$eq": [field("inputs.n"), literal(1)]}]},
                {"$lt": [field("inputs.n"), literal(9)]},
            ]
        }
    ),
    "contains": where({"$contains": {"input": field("inputs.word"), "substr": literal("an")}}),
    "contains_case": where(
        {"$contains": {"input": field("inputs.word"), "substr": literal("BANANA"), "case_insensitive": True}}
    ),
    "convert": where({"$eq": [{"$convert": {"input": field("inputs.n"), "to": "string"}}, literal("7")]}),
    "attribute": where({"$eq": [field("attributes.shard"), literal(3)]}),
    "status": where({"$eq": [field("summary.weave.status"), literal("error")]}),
    "exception": where({"$contains": {"input": field("exception"), "substr": literal("unlucky 9")}}),
    "bool": where({"$eq": [field("output.even"), literal(True)]}),
    "missing": where({"$eq": [field("output.square"), literal("")]}),
    "trace_name": where({"$eq": [field("summary.weave.trace_name"), literal("work")]}),
    "started": where({"$gt": [field("started_at"), literal(datetime.datetime.now().timestamp() + 3600)]}),
    "expanded": numbers(
        query={"$expr": {"$gt": [field("inputs.setting.temperature"), literal(0.5)]}}, expand_columns=["inputs.setting"]
    ),
}
orders = {
    "desc": numbers(sort_by=[{"field": "inputs.n", "direction": "desc"}]),
    "word_then_n": numbers(
        sort_by=[{"field": "inputs.word", "direction": "desc"}, {"field": "inputs.n", "direction": "asc"}]
    ),
    "started": numbers(sort_by=[{"field": "started_at", "direction": "desc"}]),
    "default": numbers(sort_by=None),
    "output": numbers(sort_by=[{"field": "output.square", "direction": "desc"}]),
    "expanded": numbers(
        sort_by=[{"field": "inputs.setting.label", "direction": "asc"}, {"field": "inputs.n", "direction": "desc"}],
        expand_columns=["inputs.setting"],
    ),
}
pages = {
    "limit": numbers(limit=4),
    "offset": numbers(limit=3, offset=10),
    "small_pages": numbers(page_size=5),
    "slice": [call.inputs["n"] for call in client.get_calls(filter=only_work)[20:23]],
    "index": client.get_calls(filter=only_work)[11].inputs["n"],
    "length": len(client.get_calls(filter=only_work, limit=9)),
    "past_the_end": numbers(offset=100),
}
narrow = next(
    iter(client.get_calls(filter={"call_ids": [ids[1]]}, columns=["inputs.word", "display_name"], expand_columns=[]))
)
expanded = next(
    iter(client.get_calls(filter={"call_ids": [ids[0]]}, expand_columns=["inputs.setting"], columns=["inputs"]))
)
sized = next(
    iter(client.get_calls(filter={"call_ids": [ids[0]]}, include_storage_size=True, include_total_storage_size=True))
)

client.get_call(ids[10]).set_display_name("Ten")
client.flush()
named = client.get_call(ids[10])
client.get_call(ids[3]).delete()
client.delete_calls([ids[20], ids[21]])
client.flush()
try:
    client.get_call(ids[3])
    deleted = "still there"
except ValueError as error:
    deleted = str(error)

report(
    ids=ids,
    filters=filters,
    queries=queries,
    orders=orders,
    pages=pages,
    narrow={"inputs": plain(narrow.inputs), "output": plain(narrow.output), "attributes": plain(narrow.attributes)},
    expanded={"label": expanded.inputs["setting"].label, "temperature": expanded.inputs["setting"].temperature},
    sizes=[sized.storage_size_bytes, sized.total_storage_size_bytes],
    display_name=named.display_name,
    shown=named.summary["weave"].get("display_name", None),
    deleted=deleted,
    after_delete=len(client.get_calls()),
    left=numbers(),
)

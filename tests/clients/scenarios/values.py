"""One value of every kind that pages draw: through ops, in a thread, in a dataset, and compared in two evaluations."""

import asyncio
import io
import random
import wave
from typing import Any

import weave
from common import FOLDER, report, start
from PIL import Image
from weave.trace.serialization.dictifiable import try_to_dict

client = start()

PROSE = "It left on Monday.\n\nIt should arrive **within two days**:\n\n- call the shop\n- keep the slip"
ARABIC = "مرحبا، أين طلبي؟ لقد انتظرت ثلاثة أسابيع ولم يصل أي شيء حتى الآن رغم كل الرسائل"
PATCH = "--- a/price.py\n+++ b/price.py\n@@ -1,2 +1,2 @@\n def price(x):\n-    return x\n+    return x * 2\n"
HTML = "<h1>Report</h1><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"><rect width="60" height="40" fill="teal"/>'
    "<script>document.title = 'taken'</script></svg>"
)
PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/orders.py", line 12, in find\n    return rows[number]\n           ~~~~^^^^^^^^\n'
    "KeyError: 'order 18'"
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Where is my order 18?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find_order", "arguments": '{"n": 18}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"state": "on its way"}'},
    {"role": "assistant", "content": "Order 18 is on its way."},
]
GEMINI = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Gemini says hello."}]}, "finishReason": "STOP"}]
}
ANTHROPIC = {"role": "assistant", "type": "message", "content": [{"type": "text", "text": "Claude says hello."}]}
ROWS = [{"city": "Rome", "degrees": 31}, {"city": "Oslo", "degrees": 17}]


class Frame:
    """What a data frame is to the SDK: something with `to_dict`."""

    def to_dict(self) -> dict[str, Any]:
        """Columns by index, as pandas writes them."""
        return {"fruit": {0: "apple", 1: "pear"}, "weight": {0: 182, 1: 166}}


def sound() -> weave.Audio:
    """A short sound."""
    path = f"{FOLDER}/tone.wav"
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(1600))
    return weave.Audio.from_path(path)


assert try_to_dict(Frame())
picture = Image.frombytes("RGB", (64, 48), random.Random(1).randbytes(64 * 48 * 3)).resize((320, 240))
buffer = io.BytesIO()
picture.resize((24, 24)).save(buffer, "PNG")
manual = weave.publish({"title": "Manual", "chapters": {"first": "Read the **manual** first."}}, name="manual")
gone = weave.publish({"title": "Gone"}, name="gone")

VALUES: dict[str, Any] = {
    "text": "Just words.",
    "prose": PROSE,
    "markdown": weave.Markdown("# A heading\n\nWith *emphasis* and `code`."),
    "arabic": ARABIC,
    "json": {"user": {"name": "Ada", "plan": {"tier": "gold", "seats": 3}}, "active": True, "tags": ["new", "eu"]},
    "table": ROWS,
    "frame": Frame(),
    "messages": MESSAGES,
    "gemini": GEMINI,
    "anthropic": ANTHROPIC,
    "image": picture,
    "content": weave.Content.from_bytes(buffer.getvalue(), mimetype="image/png"),
    "sound": sound(),
    "pdf": weave.Content.from_bytes(PDF, mimetype="application/pdf"),
    "csv": weave.Content.from_text("fruit,weight\nplum,66\n", mimetype="text/csv"),
    "html": weave.Content.from_text(HTML, mimetype="text/html"),
    "svg": weave.Content.from_text(SVG, mimetype="image/svg+xml"),
    "mislabelled": weave.Content.from_text(HTML, mimetype="image/png"),
    "traceback": TRACEBACK,
    "diff": PATCH,
    "published": weave.publish(picture, name="picture"),
    "rows": weave.publish(weave.Dataset(name="cities", rows=ROWS)),
    "ref": manual,
    "dead": gone,
}


@weave.op
def show(value: Any) -> Any:
    """A value in, the same value out."""
    return value


@weave.op
def reply(message: str, user_id: int) -> dict[str, Any]:
    """A turn as people write them who have no model behind it."""
    return {"reply": f"You said: {message}", "sources": ["faq"], "user_id": user_id}


calls = {name: show.call(value)[1].id for name, value in VALUES.items()}
with weave.thread("turns"):
    for text in ("Where is my order?", ARABIC):
        reply(text, 7)
with weave.thread("values"):
    for value in VALUES.values():
        show(value)

dataset = weave.publish(
    weave.Dataset(name="kinds", rows=[{"kind": name, "value": value} for name, value in VALUES.items()])
)


@weave.op
def describe(kind: str, value: Any) -> Any:
    """The row's own value, which the SDK sends as a ref into the dataset."""
    return value


@weave.op
def first(kind: str, value: Any) -> Any:
    """Another answer to the same."""
    return f"a {kind}"


@weave.op
def known(kind: str, output: Any) -> bool:
    """Whether there is an answer."""
    return output is not None


evaluation = weave.Evaluation(name="kinds-evaluation", dataset=weave.ref(dataset.uri()).get(), scorers=[known])
for model in (describe, first):
    asyncio.run(evaluation.evaluate(model))
client.flush()
client.delete_object_version(gone)
report(calls=calls, dataset=dataset.uri(), kinds=list(VALUES))

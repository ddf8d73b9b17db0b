"""Source code behind objects: a stored file named obj.py, whose text is never run here."""

from typing import Any

from heddle.auth import Caller
from heddle.wire.jsontypes import Json
from heddle.wire.records import OP_FILE, Published, Records, op_value

SUMMARISE = (
    "import weave\n\n\n@weave.op\ndef summarize(score_rows):\n"
    '    """Sums the scores up as evaluations do by themselves."""\n'
    "    return weave.flow.scorer.auto_summarize(list(score_rows))\n"
)


async def publish_op(records: Records, caller: Caller, project_id: str, object_id: str, source: str) -> Published:
    """Store a version of an op with its source."""
    digest = await records.put_file(caller, project_id, OP_FILE, source.encode("utf-8", "replace"))
    return await records.publish(caller, project_id, object_id, op_value(digest))


async def source_of(records: Records, caller: Caller, project_id: str, value: Any) -> str:
    """The source of a stored value; empty where there is none that can be read."""
    files = value.get("files") if isinstance(value, dict) else None
    digest = files.get(OP_FILE) if isinstance(files, dict) else None
    if not isinstance(digest, str):
        return ""
    content = await records.get_file(caller, project_id, digest)
    return "" if content is None else content.decode("utf-8", "replace")


def is_op(value: Any) -> bool:
    """True for the stored form of an op."""
    if not isinstance(value, dict) or value.get("_type") != "CustomWeaveType":
        return False
    kind: Any = value.get("weave_type")
    return isinstance(kind, dict) and kind.get("type") == "Op"


def created(published: Published, **more: Any) -> Json:
    """The answer of a create route."""
    return {
        "digest": published.digest,
        "object_id": published.object_id,
        "version_index": published.version_index,
        **more,
    }

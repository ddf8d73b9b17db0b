"""Tools about published objects and datasets, and about conversations of agents."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field

from heddle.errors import HeddleError
from heddle.gate import running
from heddle.mcp.text import bounded, cut, inside, part
from heddle.remote import Project
from heddle.wire.jsontypes import Json

Kind = Literal["dataset", "model", "prompt", "scorer", "evaluation", "op", "any"]
_CLASSES = {"dataset": "Dataset", "model": "Model", "prompt": "Prompt", "scorer": "Scorer", "evaluation": "Evaluation"}


def list_objects(
    project: Project,
    kind: Annotated[Kind, Field(description="Which kind of object.")] = "any",
    name: Annotated[str | None, Field(description="Show every version of the object of this name.")] = None,
    limit: Annotated[int, Field(description="How many to show.", ge=1, le=200)] = 50,
    offset: Annotated[int, Field(description="How many to skip.", ge=0)] = 0,
) -> str:
    """List published objects (datasets, models, prompts, scorers, evaluations, ops): the latest version of each, or all
    versions of one. read_object shows one."""
    chosen: Json = {"latest_only": name is None, "object_ids": [name] if name else None}
    if kind == "op":
        chosen["is_op"] = True
    elif kind != "any":
        chosen["base_object_classes"] = [_CLASSES[kind]]
    newest = [{"field": "created_at", "direction": "desc"}]
    found = project.post(
        "/objs/query", filter=chosen, limit=limit + 1, offset=offset, sort_by=newest, metadata_only=True
    )["objs"]
    more = f"; offset={offset + limit} shows more" if len(found) > limit else ""
    lines = [
        f"- {item['object_id']}:{item['digest']} v{item['version_index']} "
        f"{item['leaf_object_class'] or item['base_object_class'] or item['kind']} {item['created_at']}"
        for item in found[:limit]
    ]
    return bounded([f"{len(lines)} objects, newest first{more}" if lines else "no objects", *lines])


def read_object(
    project: Project,
    name: Annotated[str, Field(description="name (latest version), name:version, name:v3, name:alias, or a full ref.")],
    path: Annotated[str, Field(description="Only what this dotted path leads to, such as 'messages.0.content'.")] = "",
    offset: Annotated[int, Field(description="Where in a long value to begin, in characters.", ge=0)] = 0,
    max_characters: Annotated[int, Field(description="How much of it to show.", ge=100, le=20_000)] = 6_000,
    rows: Annotated[int, Field(description="Of a dataset: how many rows to show.", ge=0, le=100)] = 10,
    first_row: Annotated[int, Field(description="Of a dataset: the first row to show.", ge=0)] = 0,
) -> str:
    """Read one published object; of a dataset also a page of its rows."""
    found = running.stored(project, name)
    if found is None:
        raise HeddleError(f"there is no object {name!r} in {project.id}")
    value = inside(found.value, path) if path else found.value
    lines = [f"{found.ref}{' at ' + path if path else ''}:", part(value, offset, max_characters)]
    table = found.value.get("rows")
    if isinstance(table, str) and "/table/" in table and rows and not path:
        lines += _rows(project, table, rows, first_row)
    return bounded(lines)


def _rows(project: Project, table: str, limit: int, offset: int) -> list[str]:
    home, _, digest = table.removeprefix(running.EXTERNAL).partition("/table/")
    body = {"project_id": home, "digest": digest}
    count = project.remote.post("/table/query_stats", body)["count"]
    found = project.remote.post("/table/query", {**body, "limit": limit, "offset": offset})["rows"]
    lines = [f"rows {offset} to {offset + len(found) - 1} of {count}:" if found else f"no rows here; {count} in all"]
    return lines + [f"- {place} {row['digest']}: {cut(row['val'], 600)}" for place, row in enumerate(found, offset)]


def search_conversations(
    project: Project,
    text: Annotated[str, Field(description="Text that a message contains; empty: any message.")] = "",
    agent: Annotated[str | None, Field(description="Only conversations of this agent.")] = None,
    limit: Annotated[int, Field(description="How many conversations to show.", ge=1, le=100)] = 20,
    offset: Annotated[int, Field(description="How many to skip.", ge=0)] = 0,
) -> str:
    """Search the messages of agents' conversations (OpenTelemetry agents and chats): which conversations, with what was
    said. read_conversation shows one."""
    answer = project.post("/agents/search", query=text, agent_name=agent, limit=limit, offset=offset)
    lines = [f"{len(answer['results'])} of {answer['total_conversations']} conversations"]
    for item in answer["results"]:
        title = item["conversation_name"] or item["conversation_id"]
        lines.append(f"- {title} id={item['conversation_id']} agent={item['agent_name']} last {item['last_activity']}")
        lines += [
            f"    {message['role'] or '?'}: {cut(message['content_preview'])} (trace={message['trace_id']})"
            for message in item["matched_messages"][:3]
        ]
    return bounded(lines)


def read_conversation(
    project: Project,
    conversation_id: Annotated[str, Field(description="The id of the conversation.")],
    turns: Annotated[int, Field(description="How many turns to show.", ge=1, le=50)] = 10,
    offset: Annotated[int, Field(description="How many turns to skip.", ge=0)] = 0,
) -> str:
    """Read a conversation of an agent as a chat: what the user said, which tools ran, what was answered."""
    answer = project.post("/agents/conversations/chat", conversation_id=conversation_id, limit=turns, offset=offset)
    if not answer["turns"]:
        raise HeddleError(f"no turns of a conversation {quote(conversation_id)[:200]!r} in {project.id}")
    more = f"; offset={offset + turns} shows more" if answer["has_more"] else ""
    lines = [f"{len(answer['turns'])} of {answer['total_turns']} turns{more}"]
    for turn in answer["turns"]:
        lines.append(f"turn trace={turn['trace_id']} {turn['status_code']} {turn['total_duration_ms']} ms")
        lines += [text for message in turn["messages"] if (text := _message(message))]
    return bounded(lines)


def _message(message: Json) -> str | None:
    found: Any = message.get(message["type"])
    if not found:
        return None
    if message["type"] == "tool_call":
        return f"  tool {found['tool_name']}({cut(found['tool_arguments'], 300)}) -> {cut(found['tool_result'], 300)}"
    shown = found.get("text") or {key: value for key, value in found.items() if value}
    return f"  {message['type'].removesuffix('_message')}: {cut(shown, 800)}"

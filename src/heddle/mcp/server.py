"""The server: its tools, over stdio for one assistant, or over HTTP with each caller's own key."""

import inspect
import logging
import os
import signal
from collections.abc import Callable
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field

import heddle
from heddle.errors import HeddleError
from heddle.mcp.calls import find_calls, open_trace, read_call, summarize_usage
from heddle.mcp.objects import (
    compare_evaluations,
    list_evaluations,
    list_objects,
    read_conversation,
    read_object,
    search_conversations,
)
from heddle.mcp.text import cut
from heddle.remote import PROJECT_VARIABLE, Refused, Remote
from heddle.settings import is_loopback

TOOLS: tuple[Callable[..., str], ...] = (
    find_calls,
    open_trace,
    read_call,
    summarize_usage,
    list_evaluations,
    compare_evaluations,
    search_conversations,
    read_conversation,
    list_objects,
    read_object,
)
_INSTRUCTIONS = (
    "Traces of programs that call language models, stored in heddle. To debug: find_calls (status='error', or by "
    "text), open_trace for the tree around a call, read_call for whole inputs and outputs. Everything here only reads. "
    "Long values are cut, and every answer says how to see the rest."
)
_MOST_FAILURE = 2_000
"""Characters of a failure, which may repeat an argument."""
RemoteOf = Callable[[Context[Any, Any]], Remote]
"""The API with the key of whoever calls a tool."""


def build(remote_of: RemoteOf, project: str | None) -> MCPServer[Any]:
    """A server with every tool; `project` is meant where a call names none."""
    tools = [_make_tool(_with_project(function, remote_of, project)) for function in TOOLS]
    return MCPServer("heddle", version=heddle.__version__, instructions=_INSTRUCTIONS, log_level="WARNING", tools=tools)


def _make_tool(function: Callable[..., str]) -> Tool:
    """The tool of a function; it refuses arguments that it does not have, which the package would pass over."""
    annotations = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    tool = Tool.from_function(function, annotations=annotations, structured_output=False)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool


def _with_project(tool: Callable[..., str], remote_of: RemoteOf, default: str | None) -> Callable[..., str]:
    """The tool as the protocol sees it: `project` is a name, and the model hears of a failure."""

    def run(context: Context[Any, Any], project: str | None = None, **arguments: Any) -> str:
        named = project or default
        try:
            if not named:
                raise HeddleError("set the project: entity/project")
            return tool(remote_of(context).project(named), **arguments)
        except HeddleError as error:
            raise ToolError(cut(str(error), _MOST_FAILURE)) from None

    own = list(inspect.signature(tool).parameters.values())[1:]
    kind = inspect.Parameter.KEYWORD_ONLY
    shown = f"entity/project{f'; {default} when left out' if default else ''}"
    named: Any = (
        Annotated[str, Field(description=shown)] if default is None else Annotated[str | None, Field(description=shown)]
    )
    first = inspect.Parameter(
        "project", kind, default=inspect.Parameter.empty if default is None else None, annotation=named
    )
    context = inspect.Parameter("context", kind, annotation=Context[Any, Any])
    run.__name__, run.__doc__ = tool.__name__, inspect.getdoc(tool)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [context, first, *(parameter.replace(kind=kind) for parameter in own)], return_annotation=str
    )
    run.__annotations__ = {item.name: item.annotation for item in (context, first, *own)} | {"return": str}
    return run


def serve_stdio(server: str | None, key: str | None, project: str | None) -> None:
    """Serve one assistant over standard input and output, with one key."""
    remote = Remote(server, key)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Nothing is half done, and an end in order waits for the thread that reads standard input.
        signal.signal(number, signal.SIG_DFL)
    build(lambda _: remote, project or os.environ.get(PROJECT_VARIABLE)).run()


def _is_no_disconnect(record: logging.LogRecord) -> bool:
    """False for what the package logs, with a traceback, of a client that went away while it sent its request."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ClientDisconnect"


def _require_keys(remote: Remote, host: str) -> None:
    try:
        remote.get("/v1/limits/own")
    except Refused as refused:
        if refused.answered in (401, 403):
            return
        raise
    raise HeddleError(
        f"{remote.server} takes requests without a key, and --host {host} is not a loopback address: everyone "
        "who can connect to it could read all projects; start that server with keys (auth = 'on')"
    )


def serve_http(server: str | None, project: str | None, host: str, port: int) -> None:
    """Serve assistants over streamable HTTP at /mcp; each request's own key is what reads.

    Raises HeddleError where others would reach a server through it that asks nobody for a key.
    """
    if not is_loopback(host):
        _require_keys(Remote(server, from_environment=False), host)
    remotes: dict[str | None, Remote] = {}

    def remote_of(context: Context[Any, Any]) -> Remote:
        key = (context.headers or {}).get("authorization", "").partition(" ")[2].strip() or None
        if len(remotes) > 1_000:
            remotes.clear()
        return remotes.setdefault(key, Remote(server, key, from_environment=False))

    built = build(remote_of, project or os.environ.get(PROJECT_VARIABLE))
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_disconnect)
    built.run("streamable-http", host=host, port=port, stateless_http=True)

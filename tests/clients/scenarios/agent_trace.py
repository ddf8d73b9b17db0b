"""An agent that answers with tools and a model, one step of which fails; scored, noted, in a thread."""

import asyncio
import contextlib
import time

import weave
from common import report, start

client = start()
QUESTION = "What is the capital of Åland? 🌊"
ASKED = [{"role": "system", "content": "You answer in **one** sentence."}, {"role": "user", "content": QUESTION}]
TOOL_CALL = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "Åland"}'}}


@weave.op(kind="tool")
def look_up(name: str) -> dict:
    """A tool."""
    time.sleep(0.02)
    return {"capital": "Mariehamn", "name": name}


@weave.op(kind="tool")
def search_web(query: str) -> list:
    """A tool that fails."""
    time.sleep(0.01)
    raise TimeoutError(f"the index did not answer to {query!r} within 5 s")


@weave.op(kind="llm", name="chat.completions.create")
def complete(model: str, messages: list) -> dict:
    """A model that first asks for a tool, then answers."""
    time.sleep(0.03)
    last = messages[-1]["role"] == "tool"
    message = {"role": "assistant", "content": "It is *Mariehamn*." if last else None}
    message |= {} if last else {"tool_calls": [TOOL_CALL]}
    call = weave.get_current_call()
    call.summary = {"usage": {model: {"prompt_tokens": 40, "completion_tokens": 9, "requests": 1, "total_tokens": 49}}}
    return {"model": model, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}


@weave.op(kind="agent")
def agent(question: str) -> str:
    """Asks the model, uses what it asks for, asks again."""
    asked = complete("gpt-4o-mini", ASKED)["choices"][0]["message"]
    found = look_up("Åland")
    with contextlib.suppress(TimeoutError):
        search_web(question)
    told = [*ASKED, asked, {"role": "tool", "tool_call_id": "call-1", "content": str(found)}]
    return complete("gpt-4o-mini", told)["choices"][0]["message"]["content"]


@weave.op(kind="scorer")
def short_enough(output: str) -> dict:
    """A scorer."""
    return {"passed": len(output) < 200, "length": len(output)}


with weave.thread("thread-åland"):
    _, call = agent.call(QUESTION)
client.flush()
asyncio.run(call.apply_scorer(short_enough))
call.feedback.add_note("Right, and short.")
client.flush()
report(trace=call.trace_id, call=call.id)

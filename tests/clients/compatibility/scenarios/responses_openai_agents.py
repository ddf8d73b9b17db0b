import asyncio
from typing import Any

from agents import Agent, OpenAIConversationsSession, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


set_tracing_disabled(True)


async def main() -> None:
    plain, helped = Agent("plain", model=SERVED), Agent("helped", model=SERVED, tools=[function_tool(get_weather)])
    answer = await Runner.run(plain, QUESTION)
    streamed, pieces = Runner.run_streamed(plain, QUESTION), []
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    final = await Runner.run(helped, QUESTION)
    structure = await Runner.run(Agent("structured", model=SERVED, output_type=Weather), OBJECT)
    following = await Runner.run(plain, QUESTION, previous_response_id=answer.last_response_id)
    session = OpenAIConversationsSession()
    for _ in range(2):
        await Runner.run(plain, QUESTION, session=session)
    error: Any = None
    try:
        await Runner.run(Agent("missing", model=MISSING), QUESTION)
    except Exception as found:
        error = found
    report(
        answer=answer.final_output,
        stream={"text": "".join(pieces), "in_pieces": len(pieces) > 1},
        tools={"arguments": {"city": ASKED[0]}, "answer": final.final_output},
        structure=structure.final_output.model_dump(),
        error=status_of(error),
        chained=following.final_output,
        session=len(await session.get_items()),
    )


asyncio.run(main())

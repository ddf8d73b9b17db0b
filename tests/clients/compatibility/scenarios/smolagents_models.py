from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from weather import ASKED, MISSING, QUESTION, SERVED, get_weather, refused, report, status_of, streamed

asked = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
model = OpenAIServerModel(SERVED)
agent = ToolCallingAgent(tools=[tool(get_weather)], model=model, verbosity_level=0)
lost = OpenAIServerModel(MISSING, client_kwargs={"max_retries": 0}, retry=False)
report(
    answer=lambda: model.generate(asked).content,
    stream=lambda: streamed(piece.content for piece in model.generate_stream(asked)),
    tools=lambda: {"answer": agent.run(QUESTION), "arguments": {"city": ASKED[0]}},
    error=lambda: status_of(refused(lambda: lost.generate(asked))),
)

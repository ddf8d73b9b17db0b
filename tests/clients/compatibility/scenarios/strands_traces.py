from strands import Agent, tool
from strands.models.openai import OpenAIModel
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing()
about = {"session.id": THREAD, "user.id": USER}
agent = Agent(
    OpenAIModel(model_id=MODEL),
    tools=[tool(get_weather)],
    system_prompt=SYSTEM,
    name="forecaster",
    trace_attributes=about,
    callback_handler=None,
)
agent(QUESTION)
lost = Agent(OpenAIModel(model_id=MISSING), name="lost", trace_attributes=about, callback_handler=None)
refused(lambda: lost(QUESTION))
finish(provider)

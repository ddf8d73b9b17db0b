from openinference.instrumentation import using_attributes
from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from weather import MISSING, MODEL, QUESTION, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing()
SmolagentsInstrumentor().instrument(tracer_provider=provider)
with using_attributes(session_id=THREAD, user_id=USER):
    ToolCallingAgent(tools=[tool(get_weather)], model=OpenAIServerModel(MODEL), verbosity_level=0).run(QUESTION)
    model = OpenAIServerModel(MISSING, client_kwargs={"max_retries": 0})
    refused(lambda: model.generate([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]))
finish(provider)

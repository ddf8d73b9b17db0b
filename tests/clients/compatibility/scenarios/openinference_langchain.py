from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openinference.instrumentation import using_attributes
from openinference.instrumentation.langchain import LangChainInstrumentor
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing()
LangChainInstrumentor().instrument(tracer_provider=provider)
with using_attributes(session_id=THREAD, user_id=USER):
    agent = create_agent(ChatOpenAI(model=MODEL, max_retries=0), [get_weather], system_prompt=SYSTEM)
    agent.invoke({"messages": [("user", QUESTION)]})
    refused(lambda: ChatOpenAI(model=MISSING, max_retries=0).invoke(QUESTION))
finish(provider)

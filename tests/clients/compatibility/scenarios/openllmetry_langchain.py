from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from weather import MISSING, MODEL, QUESTION, SYSTEM, finish, get_weather, refused, tracing

provider = tracing()
LangchainInstrumentor().instrument(tracer_provider=provider)
agent = create_agent(ChatOpenAI(model=MODEL, max_retries=0), [get_weather], system_prompt=SYSTEM)
agent.invoke({"messages": [("user", QUESTION)]})
refused(lambda: ChatOpenAI(model=MISSING, max_retries=0).invoke(QUESTION))
finish(provider)

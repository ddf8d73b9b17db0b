import weave
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from weather import MISSING, MODEL, PROJECT, QUESTION, SYSTEM, THREAD, get_weather, refused, report

weave.init(PROJECT)
with weave.thread(THREAD):
    agent = create_agent(ChatOpenAI(model=MODEL, max_retries=0), [get_weather], system_prompt=SYSTEM)
    agent.invoke({"messages": [("user", QUESTION)]})
    refused(lambda: ChatOpenAI(model=MISSING, max_retries=0).invoke(QUESTION))
weave.finish()
report()

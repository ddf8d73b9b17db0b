import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from weather import MISSING, MODEL, PROJECT, QUESTION, SYSTEM, THREAD, URL, USER, finish, get_weather, refused

os.environ |= {
    "LANGFUSE_HOST": URL,
    "LANGFUSE_PUBLIC_KEY": PROJECT,
    "LANGFUSE_SECRET_KEY": os.environ["OPENAI_API_KEY"],
}
from langfuse import get_client
from langfuse.langchain import CallbackHandler

metadata = {"langfuse_user_id": USER, "langfuse_session_id": THREAD}
config = {"callbacks": [CallbackHandler()], "metadata": metadata}
agent = create_agent(ChatOpenAI(model=MODEL, max_retries=0), [get_weather], system_prompt=SYSTEM, name="weather")
agent.invoke({"messages": [("user", QUESTION)]}, config=config)
refused(lambda: ChatOpenAI(model=MISSING, max_retries=0).invoke(QUESTION, config=config))
get_client().flush()
finish()

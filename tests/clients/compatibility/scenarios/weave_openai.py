import weave
from openai import OpenAI
from weather import PROJECT, THREAD, ask_openai, fail_openai, report

weave.init(PROJECT)
client = OpenAI(max_retries=0)
with weave.thread(THREAD):
    weave.op(lambda: ask_openai(client), name="weather")()
    fail_openai(client)
weave.finish()
report()

import litellm
import weave
from weather import MISSING, MODEL, PROJECT, QUESTION, THREAD, ask_litellm, refused, report

weave.init(PROJECT)
with weave.thread(THREAD):
    weave.op(lambda model: ask_litellm(litellm.completion, model), name="weather")(f"openai/{MODEL}")
    asked = [{"role": "user", "content": QUESTION}]
    refused(lambda: litellm.completion(model=f"openai/{MISSING}", messages=asked, num_retries=0))
weave.finish()
report()

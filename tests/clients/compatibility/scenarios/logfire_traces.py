import logfire
from openai import OpenAI
from weather import ask_openai, fail_openai, finish

logfire.configure(send_to_logfire=False, console=False, service_name="program")
client = OpenAI(max_retries=0)
logfire.instrument_openai(client)
with logfire.span("weather of {city}", city="Paris"):
    ask_openai(client)
fail_openai(client)
logfire.force_flush()
finish()

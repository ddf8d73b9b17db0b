import os

import logfire
from openai import OpenAI
from weather import URL, ask_openai, fail_openai, finish

# Its own exporter is tried here, which is another than that of this variable.
del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
logfire.configure(token=os.environ["LANGSMITH_API_KEY"], advanced=logfire.AdvancedOptions(base_url=URL), console=False)
client = OpenAI(max_retries=0)
logfire.instrument_openai(client)
with logfire.span("weather of {city}", city="Paris"):
    ask_openai(client)
fail_openai(client)
logfire.force_flush()
finish()

import os

import logfire
from logfire_traces import run
from weather import URL

# Its own exporter is tried here, which is another than that of this variable.
del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
run(token=os.environ["LANGSMITH_API_KEY"], advanced=logfire.AdvancedOptions(base_url=URL))

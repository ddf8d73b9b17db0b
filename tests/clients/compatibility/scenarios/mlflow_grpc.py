import os

# MLflow looks for the address of traces alone, and speaks gRPC unless it is told otherwise.
os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]

import mlflow
from openai import OpenAI
from weather import THREAD, USER, ask_openai, fail_openai, finish

mlflow.openai.autolog()
client = OpenAI(max_retries=0)


@mlflow.trace(name="weather")
def weather() -> str:
    mlflow.update_current_trace(metadata={"mlflow.trace.session": THREAD, "mlflow.trace.user": USER})
    return ask_openai(client)


weather()
fail_openai(client)
finish()

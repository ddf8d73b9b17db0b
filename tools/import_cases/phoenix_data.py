"""Fills a Phoenix server through its own clients: spans of a chat, annotations, a dataset, an experiment."""

import sys
import time

from opentelemetry import trace
from phoenix.client import Client
from phoenix.otel import register


def answer(input: dict[str, str]) -> str:
    """The task of the experiment."""
    return f"18 in {input['question']}"


if __name__ == "__main__":
    address = sys.argv[1]
    provider = register(endpoint=f"{address}/v1/traces", project_name="shop", verbose=False, batch=False)
    tracer = provider.get_tracer("shop")
    with tracer.start_as_current_span("assistant") as root:
        root.set_attribute("openinference.span.kind", "AGENT")
        root.set_attribute("session.id", "session-1")
        root.set_attribute("input.value", "How warm is it in Paris?")
        root.set_attribute("output.value", "It is 18 degrees.")
        with tracer.start_as_current_span("ChatCompletion") as chat:
            chat.set_attribute("openinference.span.kind", "LLM")
            chat.set_attribute("llm.model_name", "gpt-5-mini")
            chat.set_attribute("llm.input_messages.0.message.role", "user")
            chat.set_attribute("llm.input_messages.0.message.content", "How warm is it in Paris?")
            chat.set_attribute("llm.output_messages.0.message.role", "assistant")
            chat.set_attribute("llm.output_messages.0.message.content", "It is 18 degrees.")
            chat.set_attribute("llm.token_count.prompt", 12)
            chat.set_attribute("llm.token_count.completion", 7)
        with tracer.start_as_current_span("broken") as broken:
            broken.set_status(trace.StatusCode.ERROR, "no such city")
            broken.record_exception(ValueError("no such city"))
    provider.force_flush()
    client = Client(base_url=address)
    span_id, trace_id = f"{root.context.span_id:016x}", f"{root.context.trace_id:032x}"
    client.spans.add_span_annotation(
        span_id=span_id, annotation_name="helpful", annotator_kind="HUMAN", label="yes", score=1.0, explanation="right"
    )
    client.spans.add_span_annotation(
        span_id=f"{chat.context.span_id:016x}", annotation_name="length", annotator_kind="CODE", score=0.25
    )
    note = {"data": [{"trace_id": trace_id, "name": "whole", "annotator_kind": "LLM", "result": {"label": "good"}}]}
    deadline = time.monotonic() + 60
    # Spans are answered before they are stored; until then their trace is not known.
    while (noted := client._client.post("v1/trace_annotations?sync=true", json=note)).status_code == 404:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    noted.raise_for_status()
    client.datasets.create_dataset(
        name="questions",
        inputs=[{"question": "Paris?"}, {"question": "Rome?"}],
        outputs=[{"answer": "18"}, {"answer": "21"}],
    )
    client.experiments.run_experiment(
        dataset=client.datasets.get_dataset(dataset="questions"), task=answer, print_summary=False
    )

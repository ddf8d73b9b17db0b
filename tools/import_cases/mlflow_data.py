"""Fills an MLflow tracking server through its own client: traces of an agent, feedback, an expectation."""

import sys

import mlflow
from mlflow.entities import AssessmentSource, AssessmentSourceType, SpanType

if __name__ == "__main__":
    mlflow.set_tracking_uri(sys.argv[1])
    mlflow.set_experiment("shop")
    with mlflow.start_span("assistant", span_type=SpanType.AGENT) as root:
        root.set_inputs({"question": "How warm is it in Paris?"})
        mlflow.update_current_trace(tags={"team": "weather"}, metadata={"mlflow.trace.session": "session-1"})
        with mlflow.start_span("chat", span_type=SpanType.CHAT_MODEL) as chat:
            chat.set_inputs({"model": "gpt-5-mini", "messages": [{"role": "user", "content": "How warm is it?"}]})
            chat.set_attribute("mlflow.chat.tokenUsage", {"input_tokens": 12, "output_tokens": 7, "total_tokens": 19})
            chat.set_outputs({"choices": [{"message": {"role": "assistant", "content": "18"}}]})
        root.set_outputs("It is 18 degrees.")
    try:
        with mlflow.start_span("broken", span_type=SpanType.TOOL) as broken:
            broken.set_inputs({"city": "Nowhere"})
            raise ValueError("no such city")
    except ValueError:
        pass
    mlflow.flush_trace_async_logging()
    person = AssessmentSource(AssessmentSourceType.HUMAN, "ada")
    mlflow.log_feedback(trace_id=root.trace_id, name="helpful", value=True, source=person, rationale="right")
    mlflow.log_feedback(trace_id=root.trace_id, name="length", value=0.25, span_id=chat.span_id)
    mlflow.log_expectation(trace_id=root.trace_id, name="answer", value={"degrees": 18}, source=person)
    with mlflow.start_run():
        mlflow.log_metric("loss", 0.5)

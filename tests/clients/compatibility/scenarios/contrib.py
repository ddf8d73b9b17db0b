"""Shared by the scenarios of OpenTelemetry's own instrumentation: where it writes the content of messages."""

import os

from weather import ask_openai, fail_openai, finish, tracing


def run(mode: str) -> None:
    """Ask the question with content in spans, in events, or in both."""
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = mode
    from openai import OpenAI
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider, logs = tracing(), LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    OpenAIInstrumentor().instrument(tracer_provider=provider, logger_provider=logs, meter_provider=meters)
    client = OpenAI(max_retries=0)
    with provider.get_tracer("program").start_as_current_span("weather"):
        ask_openai(client)
    fail_openai(client)
    for one in (logs, meters):
        one.force_flush()
        one.shutdown()
    finish(provider)

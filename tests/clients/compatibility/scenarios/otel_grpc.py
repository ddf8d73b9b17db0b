"""Nothing but the SDK and its gRPC exporter; the program is instrumented from outside, knowing an address alone."""

import os
import sys
from pathlib import Path

if "INSTRUMENTED" not in os.environ:
    command = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    os.execve(command, [command, sys.executable, __file__], {**os.environ, "INSTRUMENTED": "1"})

from openai import OpenAI
from opentelemetry import trace
from weather import ask_openai, fail_openai, finish

client = OpenAI(max_retries=0)
with trace.get_tracer("program").start_as_current_span("weather"):
    ask_openai(client)
fail_openai(client)
finish()

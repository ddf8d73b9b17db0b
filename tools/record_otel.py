"""Records what instrumentation libraries export over OTLP into `tests/data/otel/`, one file per library and case.

    make otel-recordings                       # installs the libraries into .clients/otel-*, and records everything
    python tools/record_otel.py openinference  # only the files whose name begins so

Each case runs in a process of its own against a provider with fixed answers (`otel_cases/provider.py`), and exports to
this program. Resource attributes that name the machine or the process are taken out; everything else is as it was sent.
A `.bin` file is the protobuf body of the request, a `.json` file the JSON body. Span ids and times are new every time.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tools/otel_cases"
NEW = ROOT / ".clients/otel-instrumentation/bin/python"
OLD = ROOT / ".clients/otel-instrumentation-old/bin/python"
NODE = ROOT / ".clients/otel-node"
TARGET = ROOT / "tests/data/otel"
OPENAI, ANTHROPIC = "openai-chat:gpt-5-mini", "anthropic:claude-sonnet-4-5"
PROVIDER_PORT = 18471
PRIVATE = ("host.", "process.", "os.", "service.instance.id", "service.version")
FOLDERS = re.compile(r"(?:file://)?(?:/[\w.@+-]+)+/(?=[\w.-]+\.(?:py|js|mjs|cjs)\b)")
LATEST = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_and_event",
}
CAPTURED = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}


class Case(NamedTuple):
    """One recording: the file's name without ending, the program with its arguments, settings of the environment."""

    name: str
    program: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})
    python: Path = NEW


def cases() -> list[Case]:
    """Every recording."""
    found = []
    for library, environment in (("genai", LATEST), ("openinference", {}), ("openllmetry", {})):
        for case in ("tools", "stream", "error", "responses", "embeddings"):
            found.append(Case(f"{library}-{case}", ("openai_client.py", library, case), environment))
    for library in ("openinference", "openllmetry"):
        found.append(Case(f"{library}-anthropic", ("anthropic_client.py", library)))
    found += [Case(f"logfire-{version}", ("pydantic_agent.py", version, OPENAI)) for version in ("2", "6")]
    found.append(Case("logfire-anthropic", ("pydantic_agent.py", "6", ANTHROPIC)))
    found += [Case("langfuse", ("langfuse_calls.py",)), Case("mlflow", ("mlflow_calls.py",))]
    found.append(Case("old-genai-tools", ("openai_client.py", "genai-v2", "tools"), CAPTURED, OLD))
    found.append(Case("old-openllmetry-anthropic", ("anthropic_client.py", "openllmetry"), CAPTURED, OLD))
    found.append(Case("old-logfire-1", ("pydantic_agent.py", "1", "openai:gpt-5-mini"), CAPTURED, OLD))
    for case in ("tools", "stream"):
        found.append(Case(f"old-openllmetry-{case}", ("openai_client.py", "openllmetry", case), CAPTURED, OLD))
    for version in ("4", "6", "7"):
        for case in ("tools", "stream", "error", "embeddings", "anthropic"):
            found.append(Case(f"vercel{version}-{case}", ("vercel.mjs", version, case)))
    found.append(Case("vercel5-anthropic", ("vercel.mjs", "5", "anthropic")))
    return found


class Recorder:
    """A collector that keeps the bodies of the trace exports it is sent."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = _body(self)
                if self.path == "/v1/traces":
                    recorder.bodies.append((self.headers["content-type"], body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"


def _body(request: BaseHTTPRequestHandler) -> bytes:
    length = request.headers["content-length"]
    if length is not None or request.headers["transfer-encoding"] != "chunked":
        return request.rfile.read(int(length or 0))
    body = b""
    while size := int(request.rfile.readline(), 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body


def record(case: Case, recorder: Recorder, provider: str) -> None:
    """Run one case and write its file."""
    recorder.bodies.clear()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(ROOT / ".cache"),
        "RECORDER": recorder.url,
        "PROVIDER": provider,
        "OPENAI_BASE_URL": f"{provider}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": provider,
        "ANTHROPIC_API_KEY": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        **case.environment,
    }
    script = str(CASES / case.program[0])
    if script.endswith(".mjs"):
        command, folder = ["node", script, *case.program[1:]], NODE
    else:
        command, folder = [str(case.python), script, *case.program[1:]], CASES
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120)
    if not recorder.bodies:
        raise SystemExit(f"{case.name}: nothing was exported")
    write(case.name, recorder.bodies)


def write(name: str, bodies: list[tuple[str, bytes]]) -> None:
    """All exports of a case as one request, without what names the machine."""
    if "json" in bodies[0][0]:
        spans = [
            resource for _, body in bodies for resource in json.loads(_without_folders(body.decode()))["resourceSpans"]
        ]
        for resource in spans:
            attributes = resource["resource"]["attributes"]
            resource["resource"]["attributes"] = [one for one in attributes if not one["key"].startswith(PRIVATE)]
        path, content = TARGET / f"{name}.json", _compact({"resourceSpans": spans})
    else:
        request = ExportTraceServiceRequest()
        for _, body in bodies:
            request.MergeFromString(body)
        for scrubbed in request.resource_spans:
            kept = [one for one in scrubbed.resource.attributes if not one.key.startswith(PRIVATE)]
            del scrubbed.resource.attributes[:]
            scrubbed.resource.attributes.extend(kept)
            for value in _texts(scrubbed):
                value.string_value = _without_folders(value.string_value)
        path, content = TARGET / f"{name}.bin", request.SerializeToString()
    path.write_bytes(content)
    print(f"{path.name}: {len(content)} bytes")


def _compact(value: object) -> bytes:
    return (json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def _texts(resource: ResourceSpans) -> Iterator[AnyValue]:
    for scope in resource.scope_spans:
        for span in scope.spans:
            for one in (*span.attributes, *(one for event in span.events for one in event.attributes)):
                if one.value.HasField("string_value"):
                    yield one.value


def _without_folders(text: str) -> str:
    """File names of stack traces without the folders of this machine."""
    return FOLDERS.sub("", text)


def main() -> None:
    """Record the cases whose names begin with one of the arguments, all without arguments."""
    sys.path.insert(0, str(CASES))
    import provider

    TARGET.mkdir(parents=True, exist_ok=True)
    address = provider.Provider().start(PROVIDER_PORT)
    recorder = Recorder()
    for case in cases():
        if case.name.startswith(tuple(sys.argv[1:]) or ""):
            record(case, recorder, address)


if __name__ == "__main__":
    main()

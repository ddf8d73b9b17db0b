"""The oracle for spans: how `weave` 0.53.0 turns an ExportTraceServiceRequest into calls.

Run with the interpreter of an environment that holds `weave==0.53.0`; nothing here imports heddle. Reads one request
per line (base64), writes one line of JSON: the call of its only span, or `{"rejected": reason}`.
"""

import base64
import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from weave.trace_server.object_creation_utils import make_object_id
from weave.trace_server.opentelemetry.helpers import AttributePathConflictError
from weave.trace_server.opentelemetry.python_spans import Resource, Span


def call_of(request: ExportTraceServiceRequest) -> dict[str, object]:
    """The call of the request's only span."""
    group = request.resource_spans[0]
    try:
        span = Span.from_proto(group.scope_spans[0].spans[0], Resource.from_proto(group.resource))
        start, end = span.to_call("project")
    except AttributePathConflictError as error:
        return {"rejected": str(error)}
    except Exception as error:  # what the reference cannot take at all
        return {"failed": repr(error)}
    return {
        "start": {**start.model_dump(mode="json"), "op_name": make_object_id(start.op_name, "Op")},
        "end": end.model_dump(mode="json"),
    }


for line in sys.stdin:
    found = call_of(ExportTraceServiceRequest.FromString(base64.b64decode(line)))
    sys.stdout.write(json.dumps(found) + "\n")

"""Set OpenTelemetry up in beat and in each process of a worker, as docs/how-to/monitor.md shows.

Each ended span is one line of JSON in the file that ``trace_file`` of the configuration names.
"""

import json
import os
from typing import Any

from celery import current_app
from celery.signals import beat_init, worker_init, worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def _line(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    fields = {"name": span.name, "trace": f"{context.trace_id:032x}", "pid": os.getpid()}
    return json.dumps(fields) + "\n"


@beat_init.connect(weak=False)  # type: ignore[untyped-decorator]
@worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
def start_tracing(**_: Any) -> None:
    """Set the provider of this process."""
    # Line-buffered and in append mode: processes share the file.
    file = open(current_app.conf.trace_file, "a", buffering=1)  # noqa: SIM115, PTH123 - until the end
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=file, formatter=_line)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


@worker_init.connect(weak=False)  # type: ignore[untyped-decorator]
def start_tracing_of_worker(**_: Any) -> None:
    """Set the provider of a worker whose pool has no processes."""
    if current_app.conf.trace_in_worker:
        start_tracing()

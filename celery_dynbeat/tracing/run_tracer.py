"""The spans of runs, through the API of OpenTelemetry.

    beat    claim ----> publish ---- message header traceparent ----.
                           (the Celery instrumentation's span)       |
    worker                                    (its span of the task) +--> guard, outcome

The claim is the root of a trace, whatever span is current in beat. The publish span is current
while the message is sent, so the span of a Celery instrumentation is its child. A run that is
resent starts a second trace: no row stores the context of the first. Both have the run id.

No error of OpenTelemetry reaches a caller: ``_suppressed`` surrounds each use.
"""

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.tracing.attributes import message_attributes, outcome_attributes, run_attributes

logger = logging.getLogger(__name__)

#: Not the configured propagator: the worker must read what beat wrote.
_propagator = TraceContextTextMapPropagator()
#: The header by which a message carries its trace.
TRACEPARENT = "traceparent"


class RunTracer:
    """Starts and ends the spans of one process.

    The first three methods are for the thread of beat that publishes, the others for workers.
    """

    def __init__(self) -> None:
        # A proxy: it uses the provider that the application sets later, also after a fork.
        self._tracer = trace.get_tracer("celery_dynbeat")
        self._roots: dict[str, Context] = {}
        self._publishing: dict[str, Span] = {}

    def claimed(
        self, outgoing: Sequence[OutgoingRun], *, operation: str, began_ns: int, ended_ns: int
    ) -> None:
        """Record a root span per run, with the times of the transaction that all of them share."""
        self._roots.clear()
        with _suppressed():
            for run in outgoing:
                span = self._tracer.start_span(
                    f"{operation} {run.task}",
                    # Empty: a span that is current in beat must not become the parent.
                    context=Context(),
                    attributes=run_attributes(run),
                    start_time=began_ns,
                )
                span.end(ended_ns)
                self._roots[run.run_id] = trace.set_span_in_context(span, Context())

    @contextmanager
    def publishing(self, run: OutgoingRun, *, queue: str | None, system: str) -> Iterator[None]:
        """Make the publish span of ``run`` current. It ends with ``published``."""
        token = None
        with _suppressed():
            root = self._roots.get(run.run_id, Context())
            span = self._tracer.start_span(
                f"publish {queue or run.task}",
                context=root,
                kind=SpanKind.PRODUCER,
                attributes=message_attributes(run, queue=queue, system=system),
            )
            self._end_publishing(run.run_id, "sent a second time")
            self._publishing[run.run_id] = span
            token = otel_context.attach(trace.set_span_in_context(span, root))
        try:
            yield
        finally:
            # This also removes a span that the Celery instrumentation leaves current: it does not
            # end the span of a task that beat has not registered.
            if token is not None:
                with _suppressed():
                    otel_context.detach(token)

    def published(self, failures: Mapping[str, str]) -> None:
        """End the publish spans of a batch. ``failures``: why runs were not sent, by run id."""
        for run_id in tuple(self._publishing):
            self._end_publishing(run_id, failures.get(run_id))
        self._roots.clear()

    def _end_publishing(self, run_id: str, failure: str | None) -> None:
        span = self._publishing.pop(run_id, None)
        if span is not None:
            with _suppressed():
                if failure is not None:
                    span.set_status(StatusCode.ERROR, failure)
                span.end()

    @staticmethod
    def inject(headers: MutableMapping[str, Any]) -> None:
        """Write the current span to the headers of a message."""
        with _suppressed():
            _propagator.inject(headers)

    @contextmanager
    def joined(self, headers: Mapping[str, Any]) -> Iterator[None]:
        """Make the trace of a message current, unless a span of an instrumentation is."""
        token = None
        with _suppressed():
            if not trace.get_current_span().get_span_context().is_valid:
                token = otel_context.attach(_context_of(headers.get(TRACEPARENT)))
        try:
            yield
        finally:
            if token is not None:
                with _suppressed():
                    otel_context.detach(token)

    @contextmanager
    def deciding(self, task: str, run_id: str) -> Iterator[None]:
        """Record the decision of the guard. An exception says that the run does not start."""
        span: Span = trace.INVALID_SPAN
        with _suppressed():
            attributes = {"messaging.message.id": run_id, "dynbeat.run_id": run_id}
            span = self._tracer.start_span(f"guard {task}", attributes=attributes)
        decision, reason = "start", None
        try:
            yield
        except BaseException as error:
            decision, reason = "no start", str(error)
            raise
        finally:
            with _suppressed():
                span.set_attribute("dynbeat.decision", decision)
                if reason is not None:
                    span.set_attribute("dynbeat.reason", reason)
                span.end()

    @contextmanager
    def recording(
        self,
        task: str,
        run_id: str,
        *,
        status: str,
        attempt: int | None,
        error: str | None,
        traceparent: str | None,
    ) -> Iterator[None]:
        """Record how an attempt ended. Without a known trace there is no span."""
        span: Span = trace.INVALID_SPAN
        with _suppressed():
            parent = otel_context.get_current()
            if not trace.get_current_span().get_span_context().is_valid:
                parent = _context_of(traceparent)
            if trace.get_current_span(parent).get_span_context().is_valid:
                attributes = outcome_attributes(run_id, status=status, attempt=attempt, error=error)
                span = self._tracer.start_span(
                    f"outcome {task}", context=parent, attributes=attributes
                )
                if status == "failed":
                    span.set_status(StatusCode.ERROR)
        try:
            yield
        finally:
            with _suppressed():
                span.end()


def _context_of(traceparent: str | None) -> Context:
    return _propagator.extract({TRACEPARENT: traceparent} if traceparent else {}, Context())


@contextmanager
def _suppressed() -> Iterator[None]:
    """Suppress errors of OpenTelemetry: an exporter or a processor may raise any of them."""
    with suppress(Exception):
        try:
            yield
        except Exception:
            logger.debug("a span was not recorded", exc_info=True)
            raise

"""The spans of runs, through the API of OpenTelemetry.

    beat    claim ----> publish ---- message header traceparent ----.
                           (the Celery instrumentation's span)       |
    worker                                    (its span of the task) +--> guard, outcome

The claim is the root of a trace, whatever span is current in beat. The publish span is current
while the message is sent, so the span of a Celery instrumentation is its child. The row of the run
stores the context of the claim. The resend of a run continues its trace:

    claim ----> publish
       '------> resend ----> publish ---- message header ----> ...

No error of OpenTelemetry reaches a caller: ``suppressed`` surrounds each use.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.tracing.attributes import message_attributes, outcome_attributes, run_attributes
from celery_dynbeat.tracing.span_contexts import (
    context_of,
    propagator,
    span_context_of,
    suppressed,
    traceparent_of,
)


class RunTracer:
    """Starts and ends the spans of one process.

    The first three methods are for the thread of beat that publishes, the others for workers.
    """

    def __init__(self) -> None:
        # This is a proxy, which uses the provider that the application sets later, even after a
        # fork.
        self._tracer = trace.get_tracer("celery_dynbeat")
        self._roots: dict[str, Context] = {}
        self._publishing: dict[str, Span] = {}

    def claimed(
        self,
        outgoing: Sequence[OutgoingRun],
        *,
        began_ns: int,
        ended_ns: int,
        known: Mapping[str, tuple[str | None, Sequence[str | None]]],
    ) -> Mapping[str, str]:
        """Record a span per run, with the times of the transaction that all of them share.

        ``known``: by run id, the context that the trace continues, or None for a new trace, and
        those to which the span is linked. Returns the contexts of the new traces, by run id.
        """
        self._roots.clear()
        new: dict[str, str] = {}
        with suppressed():
            for run in outgoing:
                continued, linked = known[run.run_id]
                # An empty context, or the context of the run. A span that is current in beat must
                # not be the parent.
                parent = context_of(continued)
                span = self._tracer.start_span(
                    f"{_operation(run, parent)} {run.task}",
                    context=parent,
                    attributes=run_attributes(run),
                    links=_links(linked),
                    start_time=began_ns,
                )
                span.end(ended_ns)
                self._roots[run.run_id] = trace.set_span_in_context(span, Context())
                traceparent = traceparent_of(self._roots[run.run_id])
                if traceparent is not None and not _is_valid(parent):
                    new[run.run_id] = traceparent
        return new

    @contextmanager
    def publishing(self, run: OutgoingRun, *, queue: str | None, system: str) -> Iterator[None]:
        """Make the publish span of ``run`` current. It ends with ``published``."""
        token = None
        with suppressed():
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
                with suppressed():
                    otel_context.detach(token)

    def published(self, failures: Mapping[str, str]) -> None:
        """End the publish spans of a batch. ``failures`` has the reason for each unsent run id."""
        for run_id in tuple(self._publishing):
            self._end_publishing(run_id, failures.get(run_id))
        self._roots.clear()

    def _end_publishing(self, run_id: str, failure: str | None) -> None:
        span = self._publishing.pop(run_id, None)
        if span is not None:
            with suppressed():
                if failure is not None:
                    span.set_status(StatusCode.ERROR, failure)
                span.end()

    @staticmethod
    def inject(headers: MutableMapping[str, Any]) -> None:
        """Write the current span to the headers of a message."""
        with suppressed():
            propagator.inject(headers)

    @contextmanager
    def joined(self, traceparent: str | None) -> Iterator[None]:
        """Make the trace of a message current, unless a span of an instrumentation is."""
        token = None
        with suppressed():
            if not _is_valid(otel_context.get_current()):
                token = otel_context.attach(context_of(traceparent))
        try:
            yield
        finally:
            if token is not None:
                with suppressed():
                    otel_context.detach(token)

    @contextmanager
    def deciding(self, task: str, run_id: str) -> Iterator[None]:
        """Record the decision of the guard. An exception says that the run does not start."""
        span: Span = trace.INVALID_SPAN
        with suppressed():
            attributes = {"messaging.message.id": run_id, "dynbeat.run_id": run_id}
            span = self._tracer.start_span(f"guard {task}", attributes=attributes)
        decision: str = "start"
        reason: str | None = None
        try:
            yield
        except BaseException as error:
            # The text of another exception, such as one of the broker, can contain anything.
            reason = str(error) if isinstance(error, Ignore) else type(error).__name__
            decision = "no start"
            raise
        finally:
            with suppressed():
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
        """Record how an attempt ended. If no trace is known, there is no span."""
        span: Span = trace.INVALID_SPAN
        with suppressed():
            parent = otel_context.get_current()
            if not _is_valid(parent):
                parent = context_of(traceparent)
            if _is_valid(parent):
                attributes = outcome_attributes(run_id, status=status, attempt=attempt, error=error)
                span = self._tracer.start_span(
                    f"outcome {task}", context=parent, attributes=attributes
                )
                if status == "failed":
                    span.set_status(StatusCode.ERROR)
        try:
            yield
        finally:
            with suppressed():
                span.end()


def _operation(run: OutgoingRun, parent: Context) -> str:
    was_sent = _is_valid(parent) or run.unstarted_since is not None or run.attempt > 0
    return "resend" if was_sent else "claim"


def _is_valid(context: Context) -> bool:
    return trace.get_current_span(context).get_span_context().is_valid


def _links(traceparents: Iterable[str | None]) -> Sequence[Link]:
    spans = (span_context_of(each) for each in traceparents)
    return [Link(span) for span in spans if span is not None]

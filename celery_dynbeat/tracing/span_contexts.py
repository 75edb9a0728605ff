"""Contexts of spans as text, which is the ``traceparent`` of W3C Trace Context."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = logging.getLogger(__name__)

#: The configured propagator is not used, because each process must be able to read the contexts of
#: the others.
propagator = TraceContextTextMapPropagator()
#: The header by which a message carries its trace.
TRACEPARENT = "traceparent"


def current_traceparent() -> str | None:
    """Return the context of the current span, or None if there is no valid span."""
    headers: dict[str, str] = {}
    with suppressed():
        propagator.inject(headers)
    return headers.get(TRACEPARENT)


def traceparent_of(context: Context) -> str | None:
    """Return the span of ``context`` as text, or None if there is no valid span."""
    headers: dict[str, str] = {}
    propagator.inject(headers, context)
    return headers.get(TRACEPARENT)


def context_of(traceparent: str | None) -> Context:
    """Return the context of a text; an empty one for a malformed text."""
    return propagator.extract({TRACEPARENT: traceparent} if traceparent else {}, Context())


def span_context_of(traceparent: str | None) -> SpanContext | None:
    """Return the span of a text, or None if the text is malformed."""
    found = trace.get_current_span(context_of(traceparent)).get_span_context()
    return found if found.is_valid else None


@contextmanager
def suppressed() -> Iterator[None]:
    """Suppress errors of OpenTelemetry, because an exporter or a processor may raise any error."""
    with suppress(Exception):
        try:
            yield
        except Exception:
            logger.debug("a span was not recorded", exc_info=True)
            raise

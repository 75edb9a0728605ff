"""Traces of runs. OpenTelemetry is imported only with ``dynbeat_traces = True``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_dynbeat.common.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_dynbeat.common.settings import Settings
    from celery_dynbeat.tracing.run_tracer import RunTracer


def make_tracer() -> "RunTracer":
    """Return the tracer of a process. Raises ConfigurationError without OpenTelemetry."""
    try:
        # A late import: it needs an optional package.
        from celery_dynbeat.tracing.run_tracer import RunTracer  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"dynbeat_traces = True needs opentelemetry-api ({error}):"
            " pip install 'celery-dynbeat[traces]', or remove the setting"
        ) from error
    return RunTracer()


def traced_columns(settings: "Settings", *, version: int) -> Mapping[str, Any]:
    """Return the columns of a schedule that name the current span as the span of its ``version``.

    The result is empty if traces are off, if there is no span, or if OpenTelemetry is missing,
    because an edit does not need traces.
    """
    if not settings.traces:
        return {}
    try:
        # A late import: it needs an optional package.
        from celery_dynbeat.tracing.span_contexts import current_traceparent  # noqa: PLC0415
    except ImportError:
        return {}
    traceparent = current_traceparent()
    return {} if traceparent is None else {"traceparent": traceparent, "traced_version": version}

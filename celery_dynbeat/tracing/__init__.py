"""Traces of runs. OpenTelemetry is imported only with ``dynbeat_traces = True``."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from celery_dynbeat.common.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_dynbeat.common.settings import Settings
    from celery_dynbeat.tracing.run_tracer import RunTracer


class WorkerSpans(Protocol):
    """The spans of a worker. ``RunTracer`` describes them."""

    def joined(self, traceparent: str | None) -> AbstractContextManager[None]:
        """Make the trace of a message current."""

    def deciding(self, task: str, run_id: str) -> AbstractContextManager[None]:
        """Record the decision of the guard."""

    def recording(
        self,
        task: str,
        run_id: str,
        *,
        status: str,
        attempt: int | None,
        error: str | None,
        traceparent: str | None,
    ) -> AbstractContextManager[None]:
        """Record how an attempt ended."""


_NOTHING = nullcontext()


class NoSpans:
    """The spans of a worker without traces."""

    def joined(self, *_: object) -> AbstractContextManager[None]:
        """Do nothing."""
        return _NOTHING

    def deciding(self, *_: object) -> AbstractContextManager[None]:
        """Do nothing."""
        return _NOTHING

    def recording(self, *_: object, **__: object) -> AbstractContextManager[None]:
        """Do nothing."""
        return _NOTHING


def make_tracer(settings: "Settings") -> "RunTracer | None":
    """Return the tracer of a process, or None if traces are off.

    Raises ConfigurationError without OpenTelemetry.
    """
    if not settings.traces:
        return None
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
    """Return the columns of a schedule that name the current span as that of its ``version``.

    Empty if traces are off, without a span, and without OpenTelemetry: an edit needs no traces.
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

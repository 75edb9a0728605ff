"""Start the metrics of a process. Imported only by a process that exports metrics."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.process.context import Context

if TYPE_CHECKING:
    from celery_dynbeat.metrics.exporting import BeatMetrics, WorkerMetrics

logger = logging.getLogger(__name__)


def start_beat(context: Context, *, ports: Sequence[int]) -> "BeatMetrics":
    """Start to count in a beat, and open its endpoint.

    Raises ConfigurationError if prometheus_client is not installed.
    """
    _require_library()
    from celery_dynbeat.metrics.exporting import BeatMetrics  # noqa: PLC0415

    return BeatMetrics(context, ports=ports)


def prepare_worker(
    context: Context, *, ports: Sequence[int], forks: bool
) -> "WorkerMetrics | None":
    """Start to count in a worker, before its pool forks. ``start`` opens the endpoint.

    None, with a log record, if there is no folder for the files: the worker works without metrics.
    Raises ConfigurationError if prometheus_client is not installed.
    """
    _require_library()
    from celery_dynbeat.metrics.exporting import WorkerMetrics  # noqa: PLC0415

    try:
        return WorkerMetrics(context, ports=ports, forks=forks)
    except OSError as error:
        logger.error(  # noqa: TRY400 - the error names the folder
            "metrics are not exported: %s: set TMPDIR to a folder that the worker can write",
            error,
            extra={"event": Event.METRICS_UNAVAILABLE},
        )
        return None


def _require_library() -> None:
    try:
        import prometheus_client  # noqa: F401, PLC0415
    except ImportError as error:
        msg = (
            "dynbeat_metrics_port is set, and prometheus_client is not installed: run"
            ' `pip install "celery-dynbeat[metrics]"`, or remove the setting'
        )
        raise ConfigurationError(msg) from error

"""Start the metrics of beat. Imported only by a beat that exports metrics."""

from typing import TYPE_CHECKING

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.process.context import Context

if TYPE_CHECKING:
    from celery_dynbeat.metrics.exporting import BeatMetrics


def start_beat(context: Context, *, port: int) -> "BeatMetrics":
    """Start to count in a beat, and open its endpoint.

    Raises ConfigurationError if prometheus_client is not installed.
    """
    try:
        from celery_dynbeat.metrics.exporting import BeatMetrics  # noqa: PLC0415
    except ImportError as error:
        msg = (
            "dynbeat_metrics_port is set, and prometheus_client 0.20 is not installed: run"
            ' `pip install "celery-dynbeat[metrics]"`, or remove the setting'
        )
        raise ConfigurationError(msg) from error
    return BeatMetrics(context, port=port)

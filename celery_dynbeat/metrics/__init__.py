"""Metrics for Prometheus. Without ``dynbeat_metrics``, no module of this folder is imported.

definitions.py   each metric: its name, its labels, and where its value comes from
exporting.py     counts of the events of beat, the metrics of the whole installation, the endpoint
"""

from typing import TYPE_CHECKING

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.settings import MetricsEndpoint
from celery_dynbeat.process.context import Context

if TYPE_CHECKING:
    from celery_dynbeat.metrics.exporting import BeatMetrics


def start_beat(context: Context, endpoint: MetricsEndpoint) -> "BeatMetrics":
    """Start to count in a beat, and open its endpoint.

    Raises ConfigurationError if prometheus_client is not installed.
    """
    try:
        from celery_dynbeat.metrics.exporting import BeatMetrics  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = (
            "dynbeat_metrics is set, and prometheus_client 0.20 is not installed: run"
            ' `pip install "celery-dynbeat[metrics]"`, or remove the setting'
        )
        raise ConfigurationError(msg) from error
    return BeatMetrics(context, endpoint)

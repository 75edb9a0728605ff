"""The switch of the metrics, their port, and the gauge of the clock."""

import sys
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import ConfigurationError, metrics
from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.settings import MetricsEndpoint, metrics_in_force
from celery_dynbeat.metrics.definitions import CLOCK_OFFSET, LAST_PASS
from celery_dynbeat.metrics.exporting import BeatMetrics
from tests.support.applications import application


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, MetricsEndpoint(1, "::")),
        ("9000", MetricsEndpoint(9000, "::")),
        ("0.0.0.0:9000", MetricsEndpoint(9000, "0.0.0.0")),  # noqa: S104
        ("", None),
    ],
)
def test_the_environment_overrides_the_setting(monkeypatch, value, expected):
    if value is not None:
        monkeypatch.setenv("DYNBEAT_METRICS", value)

    assert metrics_in_force(MetricsEndpoint(1, "::")) == expected


def test_an_invalid_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("DYNBEAT_METRICS", "http")

    with pytest.raises(ConfigurationError, match="DYNBEAT_METRICS = 'http': must be a port"):
        metrics_in_force(None)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "celery_dynbeat.metrics.exporting", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigurationError, match=r"celery-dynbeat\[metrics\]"):
        metrics.start_beat(None, MetricsEndpoint(0))


def test_the_offset_of_the_clock_needs_no_reading():
    readings = iter([datetime.now(UTC) - timedelta(seconds=90)])
    clock = DatabaseClock(lambda: next(readings))
    with application("sqlite://", clock=clock) as dynbeat:
        export = BeatMetrics(dynbeat.context, MetricsEndpoint(0))
        try:
            assert [each.name for each in export.collect()] == [LAST_PASS.full_name]
            clock.now()
            gauges = {each.name: each.samples[0].value for each in export.collect()}
        finally:
            export.close()

    assert gauges[CLOCK_OFFSET.full_name] == pytest.approx(90, abs=1)

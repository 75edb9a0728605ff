"""The switch of the metrics, their port, and the gauge of the clock."""

import sys
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.settings import port_in_force
from celery_dynbeat.metrics import switch
from celery_dynbeat.metrics.process_gauges import ClockGauge


@pytest.mark.parametrize(("value", "port"), [(None, 1), ("9000", 9000), ("", None)])
def test_the_environment_overrides_the_setting(monkeypatch, value, port):
    if value is not None:
        monkeypatch.setenv("DYNBEAT_METRICS_PORT", value)

    assert port_in_force(1) == port


def test_an_invalid_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("DYNBEAT_METRICS_PORT", "http")

    with pytest.raises(ConfigurationError, match="DYNBEAT_METRICS_PORT = 'http': must be a port"):
        port_in_force(1)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "celery_dynbeat.metrics.exporting", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigurationError, match=r"celery-dynbeat\[metrics\]"):
        switch.start_beat(None, port=0)


def test_the_offset_of_the_clock_needs_no_reading():
    readings = iter([datetime.now(UTC) - timedelta(seconds=90)])
    clock = DatabaseClock(lambda: next(readings))
    assert list(ClockGauge(clock).collect()) == []
    clock.now()

    ((sample,),) = (family.samples for family in ClockGauge(clock).collect())

    assert sample.value == pytest.approx(90, abs=1)

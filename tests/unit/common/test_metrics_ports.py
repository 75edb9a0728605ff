"""dynbeat_metrics_port: one port, a range, or one of them for each kind of process."""

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.settings import MetricsPorts, Settings


def ports(value):
    return Settings.read({"dynbeat_metrics_port": value}, timezone="UTC").metrics_port


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (9808, (9808,)),
        (0, (0,)),
        ("9808", (9808,)),
        ("9808-9810", (9808, 9809, 9810)),
    ],
)
def test_a_port_or_range_applies_to_beat_and_workers(value, expected):
    assert ports(value) == MetricsPorts(beat=expected, worker=expected)


def test_a_dict_gives_each_kind_of_process_its_ports():
    assert ports({"worker": "9809-9810"}) == MetricsPorts(worker=(9809, 9810))
    assert ports({"beat": 1, "worker": 2}) == MetricsPorts(beat=(1,), worker=(2,))


def test_without_the_setting_no_port_is_set():
    assert not Settings().metrics_port
    assert ports(0)


@pytest.mark.parametrize(
    "value",
    [
        *(True, -1, 65_536, 1.5, "", "a", "2-1", "1-2-3", "1-60000", {}, [9808]),
        *({"flower": 1}, {"beat": "x"}),
    ],
)
def test_any_other_value_is_rejected(value):
    with pytest.raises(ConfigurationError, match=r"dynbeat_metrics_port.*must"):
        ports(value)

"""dynbeat_metrics_port: the port of a beat."""

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.settings import Settings


def port(value):
    return Settings.read({"dynbeat_metrics_port": value}, timezone="UTC").metrics_port


def test_a_port_is_a_number_or_its_text():
    assert [port(value) for value in (9808, 0, "9808")] == [9808, 0, 9808]
    assert Settings().metrics_port is None


@pytest.mark.parametrize("value", [True, -1, 65_536, 1.5, "", "a", "9808-9810", {}, {"beat": 1}])
def test_any_other_value_is_rejected(value):
    with pytest.raises(ConfigurationError, match=r"dynbeat_metrics_port.*must"):
        port(value)

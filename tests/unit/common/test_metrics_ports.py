"""dynbeat_metrics: the address and the port of a beat."""

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.settings import MetricsEndpoint, Settings


def endpoint(value):
    return Settings.read({"dynbeat_metrics": value}, timezone="UTC").metrics


def test_a_port_is_a_number_or_its_text():
    assert [endpoint(value).port for value in (9808, 0, "9808")] == [9808, 0, 9808]
    assert endpoint(9808).address == "127.0.0.1"
    assert Settings().metrics is None


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("0.0.0.0:9808", "0.0.0.0"),  # noqa: S104
        ("localhost:9808", "localhost"),
        ("[::]:9808", "::"),
        ("[::1]:9808", "::1"),
    ],
)
def test_an_address_may_stand_before_the_port(value, address):
    assert endpoint(value) == MetricsEndpoint(9808, address)


WRONG = [True, -1, 65_536, 1.5, "", "a", "9808-9810", {}, {"beat": 1}]
WRONG_ADDRESSES = [":9808", "a b:9808", "::1:9808", "[]:9808", "host:", "host:65536", "http://h:1"]


@pytest.mark.parametrize("value", [*WRONG, *WRONG_ADDRESSES])
def test_any_other_value_is_rejected(value):
    with pytest.raises(ConfigurationError, match=r"dynbeat_metrics .*must"):
        endpoint(value)

"""The settings of alerts: their rules, and no URL in an error or a repr."""

from datetime import timedelta
from pathlib import Path

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.settings import Settings

SECRET = "pa55w0rd"
MAIL = f"mailto://user:{SECRET}@example.com"


def read(**values):
    return Settings.read(
        {f"dynbeat_{name}": value for name, value in values.items()}, timezone="UTC"
    )


def test_alerts_are_off_until_a_target_has_a_url():
    assert not read().alerts_enabled
    assert not read(alert_urls=[]).alerts_enabled
    assert read(alert_urls=[MAIL]).alerts_enabled
    assert read(alert_urls={"default": [], "ops": [MAIL]}).alerts_enabled


def test_the_setting_decides_independent_of_the_urls():
    assert read(alerts=True).alerts_enabled
    assert not read(alerts=False, alert_urls=[MAIL]).alerts_enabled


@pytest.mark.parametrize("given", [[MAIL], (MAIL,), {"default": [MAIL]}, lambda: [MAIL]])
def test_urls_are_a_list_a_dict_of_lists_or_a_function(given):
    assert read(alert_urls=given).alert_urls == {"default": (MAIL,)}


def failing():
    raise ValueError(MAIL)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (MAIL, "'default' must be a list of Apprise URLs"),
        ([MAIL, SECRET], "'default' item 1 must be an Apprise URL"),
        ({"default": [], "ops": [SECRET]}, "'ops' item 0 must be an Apprise URL"),
        ({"default": MAIL}, "'default' must be a list"),
        ({"default": [], MAIL: ["ops"]}, "the name of target 2 must have 1 to 64 letters"),
        ({"ops": [MAIL]}, "needs the key 'default'"),
        ([[MAIL]], "'default' item 0"),
        (failing, "the function must return URLs, but raised ValueError"),
        (lambda: MAIL, "'default' must be a list"),
        (5, "'default' must be a list"),
    ],
)
def test_an_error_names_the_target_and_the_index_but_no_url(given, rule):
    with pytest.raises(ConfigurationError, match=rule) as caught:
        read(alert_urls=given)

    assert str(caught.value).startswith("dynbeat_alert_urls = ...: ")
    assert SECRET not in str(caught.value)


def test_the_repr_of_the_settings_shows_no_url():
    assert SECRET not in repr(read(alert_urls=[MAIL]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alerts", 1),
        ("alert_after_failures", -1),
        ("alert_after_failures", 1_001),
        ("alert_after_failures", True),
        ("alert_lost", "no"),
        ("alert_late_after", -1),
        ("alert_timeout", 0),
        ("alert_retry_for", 0),
        ("alert_templates", ""),
        ("flower_url", "flower.example.com"),
        ("flower_url", "https://user:password@flower.example.com"),
        ("expected_beats", -1),
        ("expected_workers", True),
        ("alert_templates", 5),
        ("ping_hosts", "hc-ping.com"),
        ("ping_hosts", ["ftp://hc-ping.com"]),
        ("ping_hosts", ["user@hc-ping.com"]),
        ("ping_hosts", ["hc-ping.com/uuid"]),
        ("ping_hosts", ["*.hc-ping.com"]),
        ("ping_hosts", [5]),
        ("ping_hosts", 5),
    ],
)
def test_an_invalid_value_is_rejected_with_the_name_of_the_setting(name, value):
    with pytest.raises(ConfigurationError, match=f"dynbeat_{name} .*must be"):
        read(**{name: value})


def test_zero_is_a_valid_delay_and_a_valid_number_of_failures():
    settings = read(alert_after_failures=0, alert_late_after=0, alert_interval=0, alert_delay=0)

    assert (settings.alert_after_failures, settings.alert_late_after) == (0, timedelta(0))
    assert (settings.alert_interval, settings.alert_delay) == (timedelta(0), timedelta(0))


def test_ping_hosts_are_origins():
    assert read(ping_hosts=["HC-Ping.com", "http://localhost:8000"]).ping_hosts == (
        "https://hc-ping.com:443",
        "http://localhost:8000",
    )


def test_a_folder_of_templates_may_be_a_path():
    assert read(alert_templates=Path("/srv/t")).alert_templates == "/srv/t"

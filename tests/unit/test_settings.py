"""The settings: defaults, rules, suggestions, and no password in an error."""

from datetime import timedelta

import pytest
from celery import Celery

from celery_dynbeat import ConfigurationError
from celery_dynbeat.settings import Settings


def read(**values):
    return Settings.read(
        {f"dynbeat_{name}": value for name, value in values.items()}, timezone="UTC"
    )


def test_nothing_set_gives_the_defaults():
    assert read() == Settings()


def test_seconds_and_timedeltas_say_the_same():
    assert read(poll_interval=2.5).poll_interval == timedelta(seconds=2.5)
    assert read(poll_interval=timedelta(seconds=2.5)) == read(poll_interval=2.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", ""),
        ("engine_options", []),
        ("create_tables", "yes"),
        ("timezone", "Mars/Olympus"),
        ("timezone", "../etc/passwd"),
        ("notifier", "pigeon"),
        ("poll_interval", 0),
        ("poll_interval", True),
        ("poll_interval", float("nan")),
        ("poll_interval", float("inf")),
        ("poll_interval", 1e-9),
        ("jitter", [5]),
        ("jitter", {}),
        ("min_interval", False),
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("dispatch_timeout", -1),
        ("resend_after", "1h"),
        ("node_timeout", timedelta(0)),
        ("catch_up", "some"),
        ("max_payload_bytes", "64k"),
    ],
)
def test_a_value_that_breaks_its_rule_is_refused_with_its_name(name, value):
    with pytest.raises(ConfigurationError, match=f"dynbeat_{name}.*must be"):
        read(**{name: value})


@pytest.mark.parametrize("value", [timedelta.max, timedelta(days=36_526), 1e300, 10**400])
@pytest.mark.parametrize("name", ["expires_after", "jitter"])
def test_a_duration_that_no_date_can_bear_is_refused_with_the_longest(name, value):
    with pytest.raises(ConfigurationError, match=f"dynbeat_{name}.*at most 36525 days.*unset"):
        read(**{name: value})


def test_a_delay_may_be_zero_and_a_hundred_years():
    assert read(jitter=0.0, min_interval=timedelta(0)).jitter == timedelta(0)
    assert read(expires_after=timedelta(days=36_525)).expires_after == timedelta(days=36_525)


@pytest.mark.parametrize("key", ["dynbeat_pol_interval", "CELERY_DYNBEAT_POLL_INTERVALL"])
def test_an_unknown_setting_is_refused_with_a_suggestion(key):
    with pytest.raises(ConfigurationError, match="did you mean dynbeat_poll_interval"):
        Settings.read({key: 1}, timezone="UTC")


def test_a_setting_like_no_other_is_refused_with_those_that_exist():
    with pytest.raises(ConfigurationError, match="known are: database_url"):
        Settings.read({"dynbeat_xyzzy": 1}, timezone="UTC")


def test_settings_of_others_are_left_alone():
    assert Settings.read({"my_dynbeats": 1, "beat_schedule": {}}, timezone="UTC") == Settings()


@pytest.mark.parametrize("name", ["database_url", "engine_options"])
def test_a_value_that_may_hold_a_password_is_not_shown(name):
    with pytest.raises(ConfigurationError) as caught:
        read(**{name: ["secret"]})

    assert "secret" not in str(caught.value)


def test_a_celery_configuration_is_read_in_its_own_namespace():
    app = Celery(set_as_current=False)
    app.config_from_object({"CELERY_DYNBEAT_POLL_INTERVAL": 3}, namespace="CELERY")

    assert Settings.read(app.conf, timezone="Asia/Seoul") == Settings(
        poll_interval=timedelta(seconds=3),
        timezone="Asia/Seoul",
    )

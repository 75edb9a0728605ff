"""The settings: defaults, rules, suggestions, and no password in an error."""

from datetime import timedelta

import pytest
from celery import Celery

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.settings import Settings


def read(**values):
    return Settings.read(
        {f"dynbeat_{name}": value for name, value in values.items()}, timezone="UTC"
    )


def test_without_settings_the_defaults_apply():
    assert read() == Settings()


def test_seconds_and_timedeltas_are_equivalent():
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
        ("window", [5]),
        ("window", {}),
        ("window", "101%"),
        ("min_interval", False),
        ("max_payload_bytes", 0),
        ("max_payload_bytes", 1.5),
        ("dispatch_timeout", -1),
        ("resend_after", "1h"),
        ("node_timeout", timedelta(0)),
        ("catch_up", "some"),
        ("max_payload_bytes", "64k"),
        ("audit_retention", -1),
        ("expected_nodes", {"beats": 2}),
        ("expected_nodes", {"worker": -1}),
        ("flower_url", "https://alice@flower.example.com"),
        ("table_prefix", "dynbeat_x"),
    ],
)
def test_an_invalid_value_is_rejected_with_the_name_of_the_setting(name, value):
    with pytest.raises(ConfigurationError, match=f"dynbeat_{name}.*must be"):
        read(**{name: value})


@pytest.mark.parametrize("value", [timedelta.max, timedelta(days=36_526), 1e300, 10**400])
@pytest.mark.parametrize("name", ["expires_after", "window"])
def test_a_duration_that_is_too_long_is_rejected_with_the_maximum(name, value):
    with pytest.raises(ConfigurationError, match=f"dynbeat_{name}.*at most 36525 days.*unset"):
        read(**{name: value})


@pytest.mark.parametrize("key", ["dynbeat_pol_interval", "CELERY_DYNBEAT_POLL_INTERVALL"])
def test_an_unknown_setting_is_rejected_with_a_suggestion(key):
    with pytest.raises(ConfigurationError, match="did you mean dynbeat_poll_interval"):
        Settings.read({key: 1}, timezone="UTC")


def test_an_unknown_setting_without_a_similar_one_is_rejected_with_all_names():
    with pytest.raises(ConfigurationError, match="known are: database_url"):
        Settings.read({"dynbeat_xyzzy": 1}, timezone="UTC")


def test_an_empty_list_of_urls_turns_alerts_on():
    assert not read().alerts_enabled
    assert read(alert_urls=[]).alerts_enabled


@pytest.mark.parametrize("name", ["database_url", "engine_options"])
def test_an_error_does_not_show_a_value_that_may_contain_a_password(name):
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


class ProjectSettings:
    """A settings module of Django, with settings other than Celery's."""

    DEBUG = True
    CELERY_BROKER_URL = "memory://"


def configured(namespace, **values):
    app = Celery(set_as_current=False)
    app.config_from_object(type("Changed", (ProjectSettings,), values), namespace=namespace)
    return Settings.read(app.conf, timezone="UTC")


@pytest.mark.parametrize("key", ["DYNBEAT_DATABASE_URL", "celery_dynbeat_database_url"])
def test_a_key_that_the_namespace_hides_is_rejected_with_the_key_that_celery_reads(key):
    with pytest.raises(
        ConfigurationError,
        match=f"'{key}' is not read: with namespace='CELERY' .* CELERY_DYNBEAT_DATABASE_URL;",
    ) as caught:
        configured("CELERY", **{key: "sqlite:///secret"})

    assert "secret" not in str(caught.value)


def test_an_upper_case_key_without_a_namespace_is_rejected():
    with pytest.raises(
        ConfigurationError, match="no namespace Celery reads dynbeat_max_payload_bytes;"
    ):
        configured(None, DYNBEAT_MAX_PAYLOAD_BYTES=5)


@pytest.mark.parametrize("value", [5, None])
def test_an_ignored_key_is_accepted_if_the_setting_itself_is_set(value):
    keys = {"DYNBEAT_MAX_PAYLOAD_BYTES": 7, "CELERY_DYNBEAT_MAX_PAYLOAD_BYTES": value}

    assert configured("CELERY", **keys).max_payload_bytes == (value or Settings().max_payload_bytes)


@pytest.mark.parametrize(
    ("zone", "nearest"),
    [("Seoul", "'Asia/Seoul'"), ("europe/berlin", "'Europe/Berlin'"), ("Mars", None)],
)
def test_an_unknown_time_zone_comes_with_the_nearest_one(zone, nearest):
    with pytest.raises(ConfigurationError) as caught:
        Settings.read({"dynbeat_timezone": zone}, timezone="UTC")

    assert str(caught.value).endswith(f"did you mean {nearest}?") == (nearest is not None)

"""The retry policy of a schedule: its checks, its JSON, and when a run starts again."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import ConfigurationError, InvalidArgumentError, Retry
from celery_dynbeat.common.retry import stored_retry
from celery_dynbeat.common.settings import Settings

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def delays(policy, number):
    return [policy.retry_at(retries=n, now=NOW) for n in range(number)]


def test_each_retry_multiplies_the_delay_up_to_the_longest():
    policy = Retry(max_retries=5, backoff=60, factor=3, backoff_max=timedelta(minutes=10))

    minutes = [None if at is None else (at - NOW) / MINUTE for at in delays(policy, 6)]

    assert minutes == [1, 3, 9, 10, 10, None]


def test_no_policy_leads_past_the_last_date_of_a_database():
    policy = Retry(max_retries=100, backoff=timedelta(days=36_525), factor=100)

    assert {at.year for at in delays(policy, 100)} == {2126}


def test_times_0_means_no_retry():
    assert Retry(max_retries=0).retry_at(retries=0, now=NOW) is None


@pytest.mark.parametrize(("seconds", "retried"), [(61, True), (60, False), (-5, False)])
def test_with_until_next_fire_a_retry_is_before_the_next_fire_time(seconds, retried):
    next_fire_at = NOW + timedelta(seconds=seconds)
    at = Retry(max_retries=1, backoff=60, until_next_fire=True).retry_at(
        retries=0, now=NOW, next_fire_at=next_fire_at
    )

    assert at == (NOW + MINUTE if retried else None)
    assert Retry(max_retries=1, backoff=60).retry_at(retries=0, now=NOW, next_fire_at=next_fire_at)


@pytest.mark.parametrize(
    ("policy", "stored"),
    [
        (Retry(max_retries=3), {"max_retries": 3, "backoff": 60.0, "factor": 2.0}),
        (Retry(max_retries=0), {"max_retries": 0, "backoff": 60.0, "factor": 2.0}),
        (
            Retry(max_retries=1, backoff=1.5, factor=1, backoff_max=MINUTE, until_next_fire=True),
            {
                "max_retries": 1,
                "backoff": 1.5,
                "factor": 1.0,
                "backoff_max": 60.0,
                "until_next_fire": True,
            },
        ),
    ],
)
def test_a_policy_survives_a_round_trip_through_json(policy, stored):
    assert policy.to_json() == stored
    assert Retry.from_json(stored) == stored_retry(stored) == policy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_retries": 101}, "retry: max_retries = 101: must be from 0 to 100; 0 means no retry"),
        ({"max_retries": -1}, "must be from 0 to 100"),
        ({"max_retries": True}, "retry: max_retries = True: must be a whole number"),
        ({"max_retries": 1.5}, "must be a whole number"),
        ({"max_retries": 1, "backoff": 0.5}, "from 1 second to 100 years"),
        ({"max_retries": 1, "backoff": float("nan")}, "retry: backoff = nan"),
        ({"max_retries": 1, "backoff": "5m"}, "must be a timedelta or a number of seconds"),
        ({"max_retries": 1, "backoff": True}, "must be a timedelta or a number of seconds"),
        ({"max_retries": 1, "backoff": 10**400}, "from 1 second to 100 years"),
        ({"max_retries": 1, "factor": 0.5}, "retry: factor = 0.5: must be a number from 1 to 100"),
        ({"max_retries": 1, "factor": float("inf")}, "must be a number from 1 to 100"),
        ({"max_retries": 1, "backoff_max": 5}, "must not be shorter than backoff = 60 s"),
        ({"max_retries": 1, "until_next_fire": 1}, "must be True or False"),
        ({"max_retry": 1}, "retry: max_retry = 1: there is no such argument; did you mean max"),
        ({1: 1}, "there is no such argument"),
        ({"backoff": 5}, "retry: max_retries is missing: add the largest number of retries of a"),
    ],
)
def test_an_error_names_the_value_the_rule_and_the_fix(given, message):
    with pytest.raises(InvalidArgumentError) as caught:
        Retry.from_json(given)

    assert message in str(caught.value)
    assert caught.value.field == "retry"
    assert stored_retry(given) is None


@pytest.mark.parametrize("stored", [None, {}, [], "3", 5])
def test_a_column_without_a_policy_has_none(stored):
    assert stored_retry(stored) is None


@pytest.mark.parametrize("given", [Retry(max_retries=2), {"max_retries": 2}])
def test_the_setting_is_a_policy_or_its_arguments(given):
    read = Settings.read({"dynbeat_retry": given}, timezone="UTC")

    assert read.retry == Retry(max_retries=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "dynbeat_retry = 3: must be Retry(max_retries=...), or a dict of its arguments"),
        ({"max_retries": 101}, "must be from 0 to 100"),
    ],
)
def test_an_invalid_setting_is_refused(given, message):
    with pytest.raises(ConfigurationError) as caught:
        Settings.read({"dynbeat_retry": given}, timezone="UTC")

    assert message in str(caught.value)

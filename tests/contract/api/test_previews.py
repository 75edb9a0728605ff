"""A preview shows what ``create`` would make, and writes nothing."""

import json
import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_dynbeat import (
    AnyOf,
    Cron,
    Every,
    InvalidArgumentError,
    Once,
    Retry,
    RRule,
)
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import START, execute, instants
from tests.support.property_application import EXAMPLE_FACTOR, delete_all_rows, prepared_application

NINE = Cron("0 9 * * *")
SEOUL, BERLIN = "Asia/Seoul", "Europe/Berlin"


def only(warnings, text):
    """Return the warnings that contain ``text``."""
    return [each for each in warnings if text in each.message]


def test_a_preview_shows_the_local_times_in_the_zone_of_the_owner(dynbeat, mine):
    mine.set_timezone(SEOUL)

    shown = mine.preview("0 9 * * mon-fri", "digest", 2)

    assert shown.description == "At 09:00, Monday to Friday, Asia/Seoul"
    assert (shown.owner, shown.name, shown.timezone) == ("user:42", "digest", SEOUL)
    assert [each.local.isoformat() for each in shown.fire_times] == [
        "2026-11-23T09:00:00+09:00",
        "2026-11-24T09:00:00+09:00",
    ]
    assert shown.fire_times[0].fire_at == datetime(2026, 11, 23, tzinfo=UTC)
    assert execute(dynbeat, "UPDATE dynbeat_schedule SET version = version") == 0


def test_to_dict_is_a_body_that_an_application_returns(limited):
    dynbeat = limited(owner_limits={"*": {"max_schedules": 3}}, min_interval=60)
    mine = dynbeat.schedules.for_owner("user:42")
    mine.set_timezone(SEOUL)
    mine.create("a", task="t", trigger=NINE)

    body = json.loads(json.dumps(mine.preview("0  9 13 * FRI", "b", 1).to_dict()))

    (warning,) = body.pop("warnings")
    assert (warning["code"], body.pop("fire_times") != []) == ("either_day", True)
    assert body == {
        "owner": "user:42",
        "name": "b",
        "text": "0 9 13 * fri",
        "trigger": {"kind": "cron", "spec": "0 9 13 * fri", "timezone": SEOUL},
        "description": "At 09:00, on day 13 of the month or on Friday, Asia/Seoul",
        "timezone": SEOUL,
        "remaining": 2,
        "min_interval": 60.0,
    }


def test_a_retry_that_never_comes_before_the_next_fire_time_has_a_warning(mine):
    hourly = Every(3600)
    for delay, is_warned in ((3600, True), (3599, False)):
        policy = Retry(max_retries=2, backoff=delay, until_next_fire=True)
        warnings = mine.preview(hourly, "a", retry=policy).warnings
        assert bool(only(warnings, "no run is retried")) is is_warned
    assert not mine.preview(hourly, "a", retry=Retry(max_retries=2, backoff=7200)).warnings


def test_exclusions_without_effect_and_with_too_much_effect_have_warnings(mine):
    monday = Cron("0 9 * * mon", timezone="UTC")
    passed, sunday, next_monday = date(2026, 1, 5), date(2026, 11, 29), date(2026, 11, 30)

    for day in (passed, sunday):
        assert only(mine.preview(monday.excluding(day), "a").warnings, "no excluded date")
    assert not only(mine.preview(monday.excluding(next_monday), "a").warnings, "excluded")
    all_shown = monday.excluding(*(date(2026, 11, 23) + timedelta(weeks=n) for n in range(5)))
    (warning,) = only(mine.preview(all_shown, "a").warnings, "on excluded days")
    assert "2026-12-28" in warning.message


ZONES = [None, SEOUL, BERLIN, "America/New_York", "Australia/Lord_Howe"]
EXPRESSIONS = [
    "0 9 * * *",
    "30 2 * * *",
    "*/20 * * * *",
    "H H * * *",
    "0 0 13 * fri",
    "15 1,2 * * 0",
]
leaves = st.one_of(
    st.builds(
        lambda text, zone: Cron(text, timezone=zone),
        st.sampled_from(EXPRESSIONS),
        st.sampled_from(ZONES),
    ),
    st.builds(
        lambda days, zone: Every(days=days, timezone=zone),
        st.integers(1, 9),
        st.sampled_from(ZONES),
    ),
    st.integers(60, 10**6).map(Every),
    st.sampled_from([RRule("FREQ=WEEKLY;BYDAY=MO,TU"), Once(START + timedelta(days=400))]),
)
TRIGGERS = (
    leaves
    | st.builds(lambda parts: AnyOf(*parts), st.lists(leaves, min_size=2, max_size=3, unique=True))
    | leaves.map(lambda trigger: trigger.excluding(date(2026, 11, 23), date(2027, 3, 28)))
)


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_a_preview_equals_the_created_schedule(sqlite_url):
    clock = FrozenClock(START)
    with prepared_application(sqlite_url, clock=clock) as dynbeat:

        @settings(
            max_examples=60 * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck), deadline=None
        )
        @given(
            trigger=TRIGGERS,
            zone=st.sampled_from(ZONES),
            window=st.sampled_from([None, 0, 30, 86_400, "70%"]),
            max_runs=st.none() | st.integers(1, 3),
            days=st.integers(0, 400),
        )
        def each(trigger, zone, window, max_runs, days):
            delete_all_rows(dynbeat)
            clock.move_to(START + timedelta(days=days, hours=days % 24))
            mine = dynbeat.schedules.for_owner("user:42")
            mine.set_timezone(zone)
            fields = {"window": window, "max_runs": max_runs}
            try:
                shown = mine.preview(trigger, "a", **fields)
            except InvalidArgumentError as error:
                with pytest.raises(InvalidArgumentError, match=re.escape(str(error))):
                    mine.create("a", task="t", trigger=trigger, **fields)
                return
            made = mine.create("a", task="t", trigger=trigger, **fields)

            assert [each.fire_at for each in shown.fire_times] == list(instants(mine.upcoming("a")))
            assert shown.fire_times[0].run_at == made.next_run_at
            assert shown.trigger == made.trigger
            local = ZoneInfo(zone or "UTC")
            # In UTC: a repeated hour compares unequal between zones (PEP 495).
            assert all(each.local.astimezone(UTC) == each.fire_at for each in shown.fire_times)
            assert all(each.local.tzinfo is local for each in shown.fire_times)

        each()


def test_without_a_name_a_warning_says_that_times_can_differ(mine):
    assert mine.preview(NINE).name is None
    assert mine.preview(NINE).fire_times == mine.preview(NINE, "a").fire_times
    for trigger, window in (("H H * * *", 0), (NINE, 600)):
        assert only(mine.preview(trigger, window=window).warnings, "has no name")
        assert not only(mine.preview(trigger, "a", window=window).warnings, "has no name")

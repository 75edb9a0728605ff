"""Cron around clock changes, by documented cases.

The rule: cron(8) of Debian, NOTES. Jobs "that run at a particular time" and would have run in the
time that was skipped "will be run soon after the change", those "that fall into the repeated time
will not be re-run"; "jobs which are specified with wildcards are run based on the new time
immediately". What "soon" means was measured on Debian for healthchecks.io, October 2021 ("How
Debian cron handles DST transitions"): 01:30 runs at 02:00, and */10 keeps its ten minutes.
The dates are those of the tz database.
"""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.triggers import Cron

FIXED = [
    # New York: 02:00 EST becomes 03:00 EDT at 07:00 UTC.
    ("America/New_York", "30 2 * * *", "2026-03-08 00:00", "03-08 07:00, 03-09 06:30"),
    ("America/New_York", "0 2 * * *", "2026-03-08 00:00", "03-08 07:00, 03-09 06:00"),
    ("America/New_York", "0 3 * * *", "2026-03-08 00:00", "03-08 07:00, 03-09 07:00"),
    (
        "America/New_York",
        "0 2,3 * * *",
        "2026-03-08 00:00",
        "03-08 07:00, 03-09 06:00, 03-09 07:00",
    ),
    ("America/New_York", "0-59 2 * * *", "2026-03-08 00:00", "03-08 07:00, 03-09 06:00"),
    ("America/New_York", "30 2 8 3 *", "2026-03-08 00:00", "03-08 07:00"),
    # New York: 02:00 EDT becomes 01:00 EST at 06:00 UTC.
    ("America/New_York", "30 1 * * *", "2026-11-01 00:00", "11-01 05:30, 11-02 06:30"),
    ("America/New_York", "30 1 * * *", "2026-11-01 05:30", "11-02 06:30"),
    ("America/New_York", "30 1 * * *", "2026-11-01 06:10", "11-02 06:30"),
    ("America/New_York", "0 1,2 * * *", "2026-11-01 00:00", "11-01 05:00, 11-01 07:00"),
    ("America/New_York", "0 0-23 * * *", "2026-11-01 04:30", "11-01 05:00, 11-01 07:00"),
    # Lord Howe, half an hour: 02:00 becomes 01:30 at 15:00 UTC, 02:00 becomes 02:30 at 15:30 UTC.
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04 00:00", "04-04 14:45, 04-05 15:15"),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 00:00", "10-03 15:30, 10-04 15:15"),
    # Apia skipped 30 December 2011, which would have begun at 10:00 UTC.
    ("Pacific/Apia", "0 9 * * *", "2011-12-29 20:00", "12-30 10:00, 12-30 19:00"),
    ("Pacific/Apia", "0 9 30 12 *", "2011-12-29 20:00", "12-30 10:00"),
    ("Pacific/Apia", "0 9,17 * * *", "2011-12-30 05:00", "12-30 10:00, 12-30 19:00, 12-31 03:00"),
    # In Dublin summer is standard time and winter the exception. The clock does not show this.
    ("Europe/Dublin", "30 1 * * *", "2026-03-29 00:00", "03-29 01:00, 03-30 00:30"),
    ("Europe/Dublin", "30 1 * * *", "2026-10-25 00:00", "10-25 00:30, 10-26 01:30"),
    # Sao Paulo skipped midnight itself.
    ("America/Sao_Paulo", "0 0 * * *", "2018-11-03 12:00", "11-04 03:00, 11-05 02:00"),
    # Casablanca: the clock goes back for Ramadan (03:00 becomes 02:00 at 02:00 UTC).
    ("Africa/Casablanca", "30 2 * * *", "2026-02-14 12:00", "02-15 01:30, 02-16 02:30"),
    ("Africa/Casablanca", "30 2 * * *", "2026-03-21 12:00", "03-22 02:00, 03-23 01:30"),
    # Monrovia was 44 minutes 30 seconds behind UTC until 7 January 1972.
    ("Africa/Monrovia", "0 0 * * *", "1972-01-06 00:00", "01-06 00:44:30, 01-07 00:44:30"),
    ("Africa/Monrovia", "30 0 * * *", "1972-01-07 00:00", "01-07 00:44:30, 01-08 00:30"),
    # A seconds field does not make a fixed time a wildcard.
    ("America/New_York", "30 2 * * * */20", "2026-03-08 00:00", "03-08 07:00, 03-09 06:30"),
    ("America/New_York", "30 1 * * * 15", "2026-11-01 00:00", "11-01 05:30:15, 11-02 06:30:15"),
]

WILDCARD = [
    ("America/New_York", "30 * * * *", "2026-03-08 06:00", "03-08 06:30, 03-08 07:30"),
    ("America/New_York", "*/30 * * * *", "2026-03-08 06:15", "03-08 06:30, 03-08 07:00"),
    ("America/New_York", "*/30 2 * * *", "2026-03-08 00:00", "03-09 06:00, 03-09 06:30"),
    ("America/New_York", "@hourly", "2026-11-01 04:30", "11-01 05:00, 11-01 06:00, 11-01 07:00"),
    (
        *("America/New_York", "*/30 1 * * *", "2026-11-01 00:00"),
        "11-01 05:00, 11-01 05:30, 11-01 06:00, 11-01 06:30, 11-02 06:00",
    ),
    ("America/New_York", "15 */1 * * *", "2026-11-01 05:00", "11-01 05:15, 11-01 06:15"),
    ("Australia/Lord_Howe", "45 * * * *", "2026-04-04 14:00", "04-04 14:45, 04-04 15:15"),
    ("Australia/Lord_Howe", "15 * * * *", "2026-10-03 14:00", "10-03 14:45, 10-03 16:15"),
    ("Pacific/Apia", "0 */12 * * *", "2011-12-29 20:00", "12-29 22:00, 12-30 10:00, 12-30 22:00"),
    ("Pacific/Apia", "*/30 9 30 * *", "2011-12-29 20:00", "01-29 19:00"),
    ("Africa/Monrovia", "*/30 * * * *", "1972-01-07 00:00", "01-07 00:14:30, 01-07 01:00"),
    ("America/New_York", "30 * * * * 15", "2026-11-01 05:00", "11-01 05:30:15, 11-01 06:30:15"),
]


@pytest.mark.parametrize(("zone", "expression", "start", "expected"), FIXED)
def test_a_fixed_time_fires_once_after_the_gap_and_once_before_the_fold(
    zone, expression, start, expected
):
    assert fires_like(Cron(expression, timezone=zone), start, expected)


@pytest.mark.parametrize(("zone", "expression", "start", "expected"), WILDCARD)
def test_a_wildcard_fires_whenever_the_clock_shows_a_match(zone, expression, start, expected):
    assert fires_like(Cron(expression, timezone=zone), start, expected)


@pytest.mark.parametrize("expression", ["30 1 * * *", "*/7 * * * *", "30 2 * * *", "* * * * * *"])
def test_the_next_fire_time_is_the_same_from_every_instant_before_it(expression):
    trigger = Cron(expression, timezone="America/New_York")
    start = datetime(2026, 11, 1, 4, 59, 59, 999_999, tzinfo=UTC)
    fire_time = trigger.next_after(start)

    assert trigger.next_after(fire_time - timedelta(microseconds=1)) == fire_time
    assert trigger.next_after(start + (fire_time - start) / 3) == fire_time
    assert trigger.next_after(fire_time) > fire_time


def fires_like(trigger: Cron, start: str, expected: str) -> bool:
    """Compare the fire times from ``start`` on (UTC) with a list of times without a year."""
    instant, wanted = datetime.fromisoformat(f"{start}Z"), expected.split(", ")
    for text in wanted:
        instant = trigger.next_after(instant)
        form = "%m-%d %H:%M:%S" if text.count(":") == 2 or instant.second else "%m-%d %H:%M"
        assert f"{instant:{form}}" == text
    return True

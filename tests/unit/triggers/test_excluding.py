"""Triggers without their fire times on certain days."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import AnyOf, Cron, Every, Excluding, Once, Trigger


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


CHRISTMAS = date(2026, 12, 25)
SEOUL = "Asia/Seoul"
WEEKDAYS = Cron("0 9 * * mon-fri", timezone=SEOUL)
HOUR, DAY, MICROSECOND = timedelta(hours=1), timedelta(days=1), timedelta(microseconds=1)
# With clock changes: at midnight in Sao Paulo, by a whole day in Apia.
STARTS = {
    "UTC": at(2026, 3, 25),
    "Europe/Berlin": at(2026, 3, 25),
    "America/New_York": at(2026, 10, 28),
    "America/Sao_Paulo": at(2018, 11, 1),
    "Pacific/Apia": at(2011, 12, 26),
}


def list_fire_times(trigger: Trigger, start: datetime, until: datetime) -> list[datetime]:
    found, fire_time = [], trigger.next_after(start)
    while fire_time is not None and fire_time <= until:
        found.append(fire_time)
        fire_time = trigger.next_after(fire_time)
    return found


def bases(start: datetime) -> list[Trigger]:
    return [
        Cron("0 */4 * * *"),
        Cron("0 0 * * *", timezone="Pacific/Apia"),
        Cron("30 2 * * *", timezone="Europe/Berlin"),
        Every(7 * HOUR, anchor=start),
        Every(days=2, anchor=start + HOUR),
        AnyOf(Cron("0 6 * * *"), Once(start + 30 * HOUR)),
    ]


excluded = st.one_of(
    st.integers(0, 10),
    st.sampled_from(
        [
            Cron("0 0 * * sun"),
            Cron("59 23 1,2,30 * *"),
            Cron("15 */5 * * wed", timezone="Asia/Tokyo"),
            Every(3 * DAY, anchor=at(2026, 3, 1, 22)),
            AnyOf(Cron("0 0 * * mon"), Cron("0 0 * * fri")),
        ]
    ),
)


@settings(max_examples=120)
@given(
    zone=st.sampled_from(list(STARTS)),
    base=st.integers(0, 5),
    what=st.lists(excluded, min_size=1, max_size=3),
)
def test_fire_times_on_excluded_days_are_those_that_are_missing(zone, base, what):
    start, clock = STARTS[zone], ZoneInfo(zone)
    until = start + 12 * DAY
    base = bases(start)[base]
    what = [start.date() + each * DAY if isinstance(each, int) else each for each in what]
    trigger = base.excluding(*what, timezone=zone)

    days = set()
    for each in what:
        if isinstance(each, Trigger):
            fires = list_fire_times(each.in_zone(zone), start - 3 * DAY, until + 3 * DAY)
            days |= {fire_time.astimezone(clock).date() for fire_time in fires}
        else:
            days.add(each)
    expected = [
        each for each in list_fire_times(base, start, until) if day(each, clock) not in days
    ]

    assert list_fire_times(trigger, start, until) == expected
    assert trigger.latest_until(after=start, until=until) == (expected or [None])[-1]
    assert trigger.count_until(after=start, until=until, limit=99) == len(expected)


def day(instant: datetime, clock: ZoneInfo) -> date:
    return instant.astimezone(clock).date()


def test_exclusions_in_one_zone_are_combined():
    trigger = WEEKDAYS.excluding(CHRISTMAS).excluding(Cron("0 0 1 1 *")).excluding(CHRISTMAS)

    assert trigger == WEEKDAYS.excluding(Cron("0 0 1 1 *", timezone=SEOUL), CHRISTMAS)
    assert isinstance(trigger, Excluding)
    assert trigger.trigger == WEEKDAYS
    with pytest.raises(InvalidTriggerError, match="give all of them the same timezone"):
        trigger.excluding(CHRISTMAS, timezone="UTC")


def test_an_excluded_trigger_with_exclusions_is_rejected():
    with pytest.raises(InvalidTriggerError, match="give plain triggers"):
        WEEKDAYS.excluding(Cron("0 0 * * *").excluding(CHRISTMAS))


def test_the_zone_of_the_days_may_differ_from_the_triggers_zone():
    trigger = Cron("0 9 * * *").excluding(CHRISTMAS, timezone=SEOUL)

    assert isinstance(trigger, Excluding)
    assert trigger.trigger.timezone is None
    assert trigger.in_zone("UTC") == Cron("0 9 * * *", timezone="UTC").excluding(
        CHRISTMAS, timezone=SEOUL
    )


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (
            WEEKDAYS.excluding(CHRISTMAS),
            "at 09:00, Monday to Friday, Asia/Seoul, except on 2026-12-25",
        ),
        (
            WEEKDAYS.excluding(*(CHRISTMAS + n * DAY for n in range(14))),
            "at 09:00, Monday to Friday, Asia/Seoul, except on 14 dates",
        ),
        (
            Every(3600).excluding(CHRISTMAS, timezone=SEOUL),
            "every hour, except on 2026-12-25 in Asia/Seoul",
        ),
        (
            WEEKDAYS.excluding(Cron("0 0 25 * *"), CHRISTMAS),
            (
                "at 09:00, Monday to Friday, Asia/Seoul, except on 2026-12-25 and on days of:"
                " at 00:00, on day 25 of the month, Asia/Seoul"
            ),
        ),
    ],
)
def test_exclusions_are_described_in_words(trigger, words):
    assert trigger.phrase() == words


@pytest.mark.parametrize(
    ("what", "zone", "field", "reason"),
    [
        ([], None, "excluded", "nothing is excluded"),
        ([at(2026, 12, 25)], None, "excluded", r"pass \.date\(\) of the datetime"),
        (["2026-12-25"], None, "excluded", "datetime.date or a trigger"),
        ([[CHRISTMAS]], None, "excluded", "each an argument"),
        ([CHRISTMAS + n * DAY for n in range(367)], None, "excluded", "at most 366"),
        ([Every(n) for n in range(1, 12)], None, "excluded", "at most 10"),
        ([CHRISTMAS], "Mars", "timezone", "unknown time zone"),
        ([CHRISTMAS], 9, "timezone", "must be text"),
    ],
)
def test_an_invalid_exclusion_is_rejected(what, zone, field, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        WEEKDAYS.excluding(*what, timezone=zone)

    assert refusal.value.field == field

"""Triggers without their fire times on certain days."""

from dataclasses import replace
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


def test_days_are_days_of_the_triggers_zone():
    # 09:00 in Seoul on the 25th is midnight in UTC; in New York it is the 24th.
    trigger = WEEKDAYS.excluding(CHRISTMAS)
    elsewhere = WEEKDAYS.excluding(CHRISTMAS, timezone="America/New_York")
    instant = at(2026, 12, 24, 1)

    assert trigger.next_after(instant) == at(2026, 12, 28)
    assert elsewhere.next_after(instant) == at(2026, 12, 25)
    assert trigger == WEEKDAYS.excluding(CHRISTMAS, timezone=SEOUL)


def test_an_excluded_trigger_without_a_zone_uses_the_same_days():
    trigger = Cron("0 22 * * *", timezone="America/New_York").excluding(Cron("0 0 25 12 *"))

    evenings = list_fire_times(trigger, at(2026, 12, 24, 12), at(2026, 12, 28, 12))

    assert [day(each, ZoneInfo("America/New_York")).day for each in evenings] == [24, 26, 27]


def test_the_midnight_after_an_excluded_day_fires():
    trigger = Cron("0 0 * * *").excluding(CHRISTMAS)

    assert trigger.next_after(at(2026, 12, 24)) == datetime(2026, 12, 26, tzinfo=UTC)


def test_a_clock_that_goes_back_over_midnight_stays_on_the_new_day():
    # St. John's, 7 November 2010: at 00:01 it became 23:01 of the 6th (02:31 UTC).
    trigger = Every(600, anchor=at(2010, 11, 7)).excluding(
        date(2010, 11, 7), timezone="America/St_Johns"
    )

    assert trigger.next_after(at(2010, 11, 7, 2, 20)) == datetime(2010, 11, 8, 3, 30, tzinfo=UTC)


def test_exclusions_in_one_zone_are_combined():
    trigger = WEEKDAYS.excluding(CHRISTMAS).excluding(Cron("0 0 1 1 *")).excluding(CHRISTMAS)

    assert trigger == WEEKDAYS.excluding(Cron("0 0 1 1 *", timezone=SEOUL), CHRISTMAS)
    assert isinstance(trigger, Excluding)
    assert trigger.trigger == WEEKDAYS
    with pytest.raises(InvalidTriggerError, match="give all of them the same timezone"):
        trigger.excluding(CHRISTMAS, timezone="UTC")


def test_any_of_among_the_exclusions_counts_as_its_own_triggers():
    first, last = Cron("0 0 1 * *"), Cron("0 0 l * *")

    assert WEEKDAYS.excluding(AnyOf(first, last)) == WEEKDAYS.excluding(first, last)


def test_an_excluded_trigger_with_exclusions_is_rejected():
    with pytest.raises(InvalidTriggerError, match="give plain triggers"):
        WEEKDAYS.excluding(Cron("0 0 * * *").excluding(CHRISTMAS))


@pytest.mark.parametrize("given", ["x", None, CHRISTMAS])
def test_excluding_rejects_a_base_that_is_not_a_trigger(given):
    with pytest.raises(InvalidTriggerError, match="is not a trigger"):
        Excluding(given, CHRISTMAS)


def test_dataclasses_replace_changes_one_field():
    trigger = WEEKDAYS.excluding(CHRISTMAS, Cron("0 0 1 1 *"))
    day = date(2027, 1, 1)

    assert replace(trigger) == trigger
    assert replace(trigger, dates=(day,)) == WEEKDAYS.excluding(day, Cron("0 0 1 1 *"))
    either = AnyOf(WEEKDAYS, Every(60))
    assert replace(either) == either
    assert replace(either, triggers=[WEEKDAYS, Every(90)]) == AnyOf(WEEKDAYS, Every(90))


def test_zones_and_anchors_apply_to_every_part():
    trigger = Every(days=1).excluding(Cron("0 0 25 12 *"), Every(weeks=2), CHRISTMAS)
    start = at(2026, 1, 1)

    placed = trigger.in_zone(SEOUL).anchored_at(start)

    assert trigger.timezone is None
    assert placed == Every(days=1, timezone=SEOUL, anchor=start).excluding(
        Cron("0 0 25 12 *", timezone=SEOUL),
        Every(weeks=2, timezone=SEOUL, anchor=start),
        CHRISTMAS,
    )
    assert placed.timezone == SEOUL
    assert placed.hashed_by("key") == placed


def test_the_zone_of_the_days_may_differ_from_the_triggers_zone():
    trigger = Cron("0 9 * * *").excluding(CHRISTMAS, timezone=SEOUL)

    assert isinstance(trigger, Excluding)
    assert trigger.trigger.timezone is None
    assert trigger.in_zone("UTC") == Cron("0 9 * * *", timezone="UTC").excluding(
        CHRISTMAS, timezone=SEOUL
    )


def test_there_is_no_fire_time_outside_the_years_1900_to_9900():
    trigger = Every(1, anchor=at(1, 1, 1)).excluding(CHRISTMAS)

    assert trigger.next_after(datetime.min.replace(tzinfo=UTC)).year == 1900
    assert trigger.next_after(datetime.max.replace(tzinfo=UTC)) is None


def test_the_repr_contains_the_trigger_and_its_exclusions():
    nine, noon = Cron("0 9 * * *"), Cron("0 12 * * *")
    all_of_it, part = AnyOf(nine, noon).excluding(CHRISTMAS), AnyOf(nine, noon.excluding(CHRISTMAS))

    assert all_of_it.phrase() == (
        "(at 12:00 every day, UTC; or at 09:00 every day, UTC), except on 2026-12-25"
    )
    assert part.phrase() == (
        "at 09:00 every day, UTC; or (at 12:00 every day, UTC, except on 2026-12-25)"
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


def test_a_once_after_is_excluded_by_its_resolved_day():
    trigger = Cron("0 9 * * *").excluding(Once.after(DAY))

    resolved = trigger.resolved_at(at(2026, 3, 25))

    assert list_fire_times(resolved, at(2026, 3, 25), at(2026, 3, 28)) == [
        at(2026, 3, 25, 9),
        at(2026, 3, 27, 9),
    ]

"""Each sentence of the grammar fires at the times of a brute-force oracle, which reads no words.

A sentence is drawn with the rule that it means: which days, which times of day. The oracle looks at
each day of a year.
"""

import calendar
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from celery_dynbeat import InvalidTriggerError, Trigger
from celery_dynbeat.triggers import AnyOf, Once

NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBERS = ("first", "second", "third", "fourth", "fifth")
DAYS = 400
ZONES = st.sampled_from(["UTC", "Asia/Seoul", "Europe/Berlin", "America/New_York"])
STARTS = st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@dataclass(frozen=True)
class Meaning:
    """Words, and a function that tells whether a day matches them."""

    words: str
    matches: object


def joined(words):
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def suffixed(number):
    suffixes = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    return f"{number}{suffixes.get(number, 'th')}"


def last_day(day):
    return calendar.monthrange(day.year, day.month)[1]


def is_nth(day, weekday, number):
    if day.weekday() != weekday:
        return False
    if number == 0:
        return day.day + 7 > last_day(day)
    return (day.day - 1) // 7 + 1 == number


@st.composite
def weekdays(draw):
    days = draw(st.lists(st.integers(0, 6), min_size=1, max_size=6, unique=True))
    spelling = draw(st.sampled_from([str.lower, str.upper, lambda name: name[:3]]))
    prefix = draw(st.sampled_from(["", "every ", "on ", "weekly on "]))
    return Meaning(
        prefix + joined([spelling(NAMES[day]) for day in days]), lambda day: day.weekday() in days
    )


@st.composite
def month_days(draw):
    days = draw(st.lists(st.integers(1, 31), min_size=1, max_size=5, unique=True))
    numbers = joined([suffixed(day) for day in days])
    words = draw(st.sampled_from(["monthly on the {}", "{} of the month", "the {} of every month"]))
    return Meaning(words.format(numbers), lambda day: day.day in days)


@st.composite
def nth_weekdays(draw):
    weekday, number = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    ordinal = "last" if number == 0 else NUMBERS[number - 1]
    return Meaning(
        f"{ordinal} {NAMES[weekday]} of the month", lambda day: is_nth(day, weekday, number)
    )


def last_weekday(day):
    end = day.replace(day=last_day(day))
    while end.weekday() > 4:
        end -= timedelta(days=1)
    return day == end


FIXED = st.sampled_from([
    Meaning("daily", lambda _: True),
    Meaning("every day", lambda _: True),
    Meaning("weekdays", lambda day: day.weekday() < 5),
    Meaning("monday to friday", lambda day: day.weekday() < 5),
    Meaning("weekends", lambda day: day.weekday() > 4),
    Meaning("last day of the month", lambda day: day.day == last_day(day)),
    Meaning("last weekday of the month", last_weekday),
])  # fmt: skip
MEANINGS = st.one_of(FIXED, weekdays(), month_days(), nth_weekdays())
# Clocks of the zones change from 1:00 to 3:59. test_oracle.py tests Cron there.
CLOCKS = st.builds(time, st.sampled_from([0, *range(4, 24)]), st.integers(0, 59))


def on_24_hours(clock):
    return f"{clock.hour}:{clock.minute:02}" if clock.minute else str(clock.hour)


def on_12_hours(clock):
    half = "am" if clock.hour < 12 else "pm"
    return f"{(clock.hour - 1) % 12 + 1}:{clock.minute:02} {half}"


def oracle(meaning, clocks, zone, start):
    """Return the fire times in the days after ``start``."""
    first = start.astimezone(zone).date()
    days = [first + timedelta(days=number) for number in range(-1, DAYS)]
    walls = [
        datetime.combine(day, clock, zone).astimezone(UTC)
        for day in days
        if meaning.matches(day)
        for clock in clocks
    ]
    return [instant for instant in sorted(walls) if instant > start]


def fire_times(trigger, start):
    while (start := trigger.next_after(start)) is not None:
        yield start


@given(
    meaning=MEANINGS,
    clocks=st.lists(CLOCKS, min_size=1, max_size=3, unique=True),
    zone=ZONES,
    start=STARTS,
    shown=st.sampled_from([on_24_hours, on_12_hours]),
    order=st.sampled_from(["{days} at {times}", "at {times} {days}", "At {times}, {days}"]),
)
def test_a_sentence_fires_when_its_words_say(meaning, clocks, zone, start, shown, order):
    words = order.format(days=meaning.words, times=joined([shown(clock) for clock in clocks]))

    trigger = Trigger.from_words(words, timezone=zone)

    expected = oracle(meaning, sorted(clocks), ZoneInfo(zone), start)[:60]
    assert list(islice(fire_times(trigger, start), len(expected))) == expected
    if not isinstance(trigger, AnyOf):
        # A description names its zone.
        again = Trigger.from_words(trigger.describe())
        assert list(islice(fire_times(again, start), len(expected))) == expected


@given(
    number=st.integers(1, 999),
    unit=st.sampled_from(["second", "minute", "hour", "day", "week"]),
    start=STARTS,
)
def test_an_interval_and_a_delay_have_their_length(number, unit, start):
    amount = timedelta(**{f"{unit}s": number})

    interval = Trigger.from_words(f"every {number} {unit}s")
    delay = Trigger.from_words(f"in {number} {unit}s")

    assert interval.next_after(start) == delay.next_after(start) == start + amount
    assert Trigger.from_words(interval.describe()).next_after(start) == start + amount


@given(day=st.dates(date(2026, 1, 1), date(2040, 1, 1)), clock=CLOCKS, zone=ZONES.map(ZoneInfo))
def test_a_date_is_its_instant(day, clock, zone):
    found = Trigger.from_words(f"on {day} at {on_12_hours(clock)}", timezone=str(zone))

    assert isinstance(found, Once)
    assert found.at == datetime.combine(day, clock, zone)
    assert Trigger.from_words(found.describe()) == found


WORDS = [
    *("every", "daily", "weekdays", "monday", "and", ",", "at", "9", "9:30", "pm", "on", "the"),
    *("15th", "last", "day", "of the month", "in", "5", "minutes", "to", "once", "2026-12-24"),
    *("UTC", "first", "days", "month", "monthly", "noon"),
]


@given(st.one_of(st.text(max_size=220), st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)))
@example("every 5 minutes")
def test_any_text_is_a_trigger_or_an_error_of_triggers(text):
    try:
        trigger = Trigger.from_words(text)
    except InvalidTriggerError:
        return
    trigger.next_after(datetime(2026, 11, 21, tzinfo=UTC))
    trigger.describe()

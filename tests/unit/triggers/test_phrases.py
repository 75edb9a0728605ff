"""Triggers from words: the grammar, its refusals, and what a hostile text costs."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import (
    AnyOf,
    Cron,
    Every,
    InvalidTriggerError,
    Once,
    RRule,
    Trigger,
)
from celery_dynbeat.triggers.phrases.parse import MAX_WORDS_LENGTH

SEOUL = "Asia/Seoul"


@pytest.mark.parametrize(
    ("words", "trigger"),
    [
        ("every 5 minutes", Every(timedelta(minutes=5))),
        ("  Every  5   MIN ", Every(timedelta(minutes=5))),
        ("every hour", Every(timedelta(hours=1))),
        ("hourly", Every(timedelta(hours=1))),
        ("every second", Every(1)),
        ("every 1 hour 30 minutes", Every(timedelta(minutes=90))),
        ("every 1 hour, 30 minutes and 5 seconds", Every(timedelta(seconds=5405))),
        ("every day", Every(days=1)),
        ("every 2 days", Every(days=2)),
        ("each week", Every(weeks=1)),
        ("every 3 months", Every(months=3)),
        ("in 40 hours", Once.after(timedelta(hours=40))),
        ("in 2 days and 1 hour", Once.after(timedelta(hours=49))),
    ],
)
def test_a_duration_is_an_interval_or_a_delay(words, trigger):
    assert Trigger.from_words(words) == trigger


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("daily at 9", "0 9 * * *"),
        ("every day at 9:05", "5 9 * * *"),
        ("daily at 9:30 pm", "30 21 * * *"),
        ("daily at 12am", "0 0 * * *"),
        ("daily at 12 pm", "0 12 * * *"),
        ("daily at noon and midnight", "0 0,12 * * *"),
        ("daily at 9, 12 and 17", "0 9,12,17 * * *"),
        ("daily at 9 am and noon", "0 9,12 * * *"),
        ("daily at 6:00:30", "0 6 * * * 30"),
        ("weekdays at 9", "0 9 * * mon-fri"),
        ("every weekday at 9", "0 9 * * mon-fri"),
        ("monday to friday at 9", "0 9 * * mon-fri"),
        ("mon-fri at 9", "0 9 * * mon-fri"),
        ("friday to monday at 9", "0 9 * * mon,fri,sat,sun"),
        ("weekends at 10:15", "15 10 * * sat,sun"),
        ("monday at 8 am", "0 8 * * mon"),
        ("on mondays at 8", "0 8 * * mon"),
        ("weekly on Tue at 8", "0 8 * * tue"),
        ("every monday and thursday at 18:00", "0 18 * * mon,thu"),
        ("monday, monday, and sunday at 9", "0 9 * * mon,sun"),
        ("monthly on the 15th at 9", "0 9 15 * *"),
        ("every month on the 1st and 15th at 9", "0 9 1,15 * *"),
        ("every 15th at 9", "0 9 15 * *"),
        ("first of the month at 9", "0 9 1 * *"),
        ("monthly on the 31st at 9", "0 9 31 * *"),
        ("last day of the month at 18", "0 18 L * *"),
        ("last of the month at 18", "0 18 L * *"),
        ("monthly on the 15th and the last day at 9", "0 9 15,L * *"),
        ("last weekday of the month at 18", "0 18 LW * *"),
        ("first monday of the month at 9", "0 9 * * mon#1"),
        ("first and third monday of every month at 9", "0 9 * * mon#1,mon#3"),
        ("last friday of the month at 17", "0 17 * * friL"),
        ("at 9 on weekdays", "0 9 * * mon-fri"),
        ("At 09:00 and 17:00, on days 1 to 3 and 15 of the month", "0 9,17 1,2,3,15 * *"),
    ],
)
def test_days_and_times_are_a_cron_expression_that_follows_the_zone_of_its_owner(words, expression):
    assert Trigger.from_words(words) == Cron(expression)
    assert Trigger.from_words(words, timezone=SEOUL) == Cron(expression, timezone=SEOUL)
    assert Trigger.from_words(words, date_timezone=SEOUL) == Cron(expression)
    assert Trigger.from_words(f"{words}, {SEOUL}", timezone="UTC") == Cron(
        expression, timezone=SEOUL
    )


def test_times_of_day_that_one_expression_cannot_have_are_combined():
    combined = AnyOf(Cron("0 9 * * *"), Cron("30 17 * * *"))

    assert Trigger.from_words("daily at 9 and 17:30") == combined
    assert Trigger.from_words("daily at 9 and 17:30", timezone=SEOUL) == combined.in_zone(SEOUL)


@pytest.mark.parametrize(
    "words",
    [
        "on 2026-12-24 at 18:00",
        "2026-12-24 6 pm",
        "at 18:00 on 2026-12-24",
        "once on 2026-12-24 at 18:00:00",
        "Once at 2026-12-24 18:00",
    ],
)
def test_a_date_is_one_instant_in_a_zone_that_must_be_known(words):
    nine_utc = Once(datetime(2026, 12, 24, 9, tzinfo=UTC))

    assert Trigger.from_words(words, timezone=SEOUL) == nine_utc
    assert Trigger.from_words(words, date_timezone=SEOUL) == nine_utc
    assert Trigger.from_words(words, timezone=SEOUL, date_timezone="UTC") == nine_utc
    assert Trigger.from_words(f"{words} {SEOUL}", timezone="UTC") == nine_utc
    with pytest.raises(InvalidTriggerError, match="has no time zone") as missing:
        Trigger.from_words(words)
    assert missing.value.field == "timezone"


def test_a_date_inside_a_gap_of_the_clock_is_the_first_instant_after_it():
    found = Trigger.from_words("on 2026-03-29 at 2:30", timezone="Europe/Berlin")

    assert found == Once(datetime(2026, 3, 29, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "text",
    [
        *("0 9 * * mon-fri", "*/5 * * * *", "H H(0-5) * * *", "0 9 * * * 30", " @daily", "PT5M"),
        *("p1d", "R/2026-01-31T09:00:00Z/P1M", "2026-12-24T18:00:00Z", "2026-12-24 18:00+09:00"),
        *("FREQ=DAILY", "RRULE:FREQ=DAILY;COUNT=3", "DTSTART:20260105T090000Z\nRRULE:FREQ=DAILY"),
    ],
)
def test_other_formats_of_text_are_read_as_before(text):
    assert Trigger.from_words(text) == Trigger.from_text(text)
    assert Trigger.from_words(text, timezone=SEOUL) == Trigger.from_text(text).in_zone(SEOUL)


def test_a_recurrence_rule_may_be_longer_than_words():
    text = f"FREQ=YEARLY;BYYEARDAY={','.join(map(str, range(1, 300)))}"

    assert Trigger.from_words(text) == RRule(text)


def test_an_invalid_cron_expression_keeps_its_own_error():
    with pytest.raises(InvalidTriggerError, match="minute '61'") as refused:
        Trigger.from_words("61 * * * *")

    assert refused.value.field == "minute"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("sometimes", "'sometimes' is neither an interval nor a day"),
        ("", "add the days"),
        ("at 9", "add the days"),
        ("daily", "add a time of day"),
        ("daily at", "write the time of day"),
        ("daily at 9:5", "write the time of day"),
        ("daily at 24:00", "24:00 is not a time"),
        ("daily at 9:60", "9:60 is not a time"),
        ("daily at 13 pm", "hours are 1 to 12"),
        ("daily at 9 and 10 pm", "am or pm after each"),
        ("daily at 1, 2, 3, 4, 5, 6 and 7", "at most 6"),
        ("daily at 9 10", "'10' is not expected there"),
        ("daily at 9 and", "'and' is not expected there"),
        ("every 7 monday", "only units of time take a number"),
        ("every 31st at 9", "some months have no 31st"),
        ("every last friday at 9", "add 'of the month'"),
        ("every second monday at 9", "add 'of the month'"),
        ("the 15th at 9", "add 'of the month'"),
        ("32nd of the month at 9", "'32nd'"),
        ("days 0 to 3 of the month at 9", "numbers from 1 to 31"),
        ("sixth monday of the month at 9", "'sixth'"),
        ("6th monday of the month at 9", "at most five"),
        ("first weekday of the month at 9", "only the last weekday"),
        ("first monday and 15th day of the month at 9", "not both"),
        ("monday to at 9", "ends with a weekday"),
        ("weekly on the 1st at 9", "name the weekdays"),
        ("every 2 days at 9", "takes no time of day"),
        ("every 0 minutes", "longer than 0"),
        ("every 999999 years", "at most 100 years"),
        ("every 5 minutes and 5 minutes", "two numbers of minutes"),
        ("every 1 day 2 hours", "stand alone"),
        ("every minutes", "'minutes'"),
        ("every 5 minutes, UTC", "leave out UTC"),
        ("in 2 months", "differ in length"),
        ("in a while", "after 'in' comes a duration"),
        ("in 900000 days", "at most 100 years"),
        ("on 2026-02-30 at 9", "does not exist"),
        ("on 0001-01-01 at 9 UTC", "the year of 0001-01-01"),
        ("on 2026-12-24 at 9 and 10 UTC", "a date has one time"),
        ("once on monday at 9", "takes a date"),
    ],
)
def test_a_refusal_names_the_value_the_rule_and_examples(words, rule):
    with pytest.raises(InvalidTriggerError) as refused:
        Trigger.from_words(words)

    message = str(refused.value)
    assert refused.value.field == "trigger"
    assert message.startswith(f"trigger {words!r} is not understood: ")
    assert rule in message
    assert "'every 5 minutes'" in message


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("evvery 5 minutess", "every 5 minutes"),
        ("wekdays at 9", "weekdays at 9"),
        ("Every Mondy and thursday at 9, Asia/Seoul", "every monday and thursday at 9, Asia/Seoul"),
        ("lst day of the mnth at 9", "last day of the month at 9"),
    ],
)
def test_a_near_miss_is_suggested(words, meant):
    with pytest.raises(InvalidTriggerError, match="did you mean") as refused:
        Trigger.from_words(words)

    assert f"did you mean {meant!r}?" in str(refused.value)
    Trigger.from_words(meant)


@pytest.mark.parametrize("words", ["daily at 9, Asia/Soul", "on 2026-12-24 at 9 Asia/Soul"])
def test_an_unknown_zone_has_a_suggestion(words):
    with pytest.raises(InvalidTriggerError, match="did you mean 'Asia/Seoul'") as refused:
        Trigger.from_words(words)

    assert refused.value.field == "timezone"


@pytest.mark.parametrize("zone", ["timezone", "date_timezone"])
def test_an_unknown_zone_of_the_caller_is_refused_for_each_text(zone):
    with pytest.raises(InvalidTriggerError, match="unknown time zone"):
        Trigger.from_words("every 5 minutes", **{zone: "Asia/Soul"})


@pytest.mark.parametrize(
    "text",
    [
        "monday and " * 18,
        "every " * 50_000,
        "1 hour " * 28,
        "daily at " + "1," * 90,
        "first " * 33,
        "mnday " * 20,
        "a" * MAX_WORDS_LENGTH,
        "a-" * 100_000,
        "," * 100_000,
        "at 9 " + "9" * 100_000,
        "\x00" * 100,
        "\ud800 at 9",
        "İ" * 200,
        "every \u0665 minutes",
        "daily at \u0669",
    ],
    ids=range(15),
)
def test_a_hostile_text_is_refused_quickly_with_a_short_message(text):
    started = time.perf_counter()
    with pytest.raises(InvalidTriggerError) as refused:
        Trigger.from_words(text)

    assert time.perf_counter() - started < 0.25
    assert len(str(refused.value)) < 600
    str(refused.value).encode()

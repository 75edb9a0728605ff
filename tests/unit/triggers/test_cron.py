"""What cron expressions mean, and which are refused."""

import re
from datetime import UTC, date, datetime

import pytest

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron

START = datetime(2026, 1, 1, tzinfo=UTC)

# (expression, the first fire times after 1 January 2026 00:00, a Thursday)
CRONTAB_5 = [
    # The examples of Vixie's crontab(5).
    ("5 0 * * *", ["01-01 00:05", "01-02 00:05"]),
    ("15 14 1 * *", ["01-01 14:15", "02-01 14:15"]),
    ("0 22 * * 1-5", ["01-01 22:00", "01-02 22:00", "01-05 22:00"]),
    ("23 0-23/2 * * *", ["01-01 00:23", "01-01 02:23"]),
    ("5 4 * * sun", ["01-04 04:05", "01-11 04:05"]),
    # "30 4 1,15 * 5" runs "on the 1st and 15th of each month, plus every Friday".
    ("30 4 1,15 * 5", ["01-01 04:30", "01-02 04:30", "01-09 04:30", "01-15 04:30"]),
    # Days are restricted only if they do not start with *: then both must match.
    ("0 0 */2 * sun", ["01-11 00:00", "01-25 00:00"]),
    ("0 0 13 * */5", ["02-13 00:00", "03-13 00:00"]),
    # Ranges, lists, lists of ranges, steps of ranges and of everything.
    ("0 1,2,5,9 * * *", ["01-01 01:00", "01-01 02:00", "01-01 05:00", "01-01 09:00"]),
    ("0 0-1,8-9 * * *", ["01-01 01:00", "01-01 08:00", "01-01 09:00", "01-02 00:00"]),
    ("0 8-16/4 * * *", ["01-01 08:00", "01-01 12:00", "01-01 16:00"]),
    ("*/25 * * * *", ["01-01 00:25", "01-01 00:50", "01-01 01:00"]),
    # 0 and 7 are Sunday; names are of either case.
    ("0 0 * * 0", ["01-04 00:00"]),
    ("0 0 * * 7", ["01-04 00:00"]),
    ("0 0 * * 5-7", ["01-02 00:00", "01-03 00:00", "01-04 00:00", "01-09 00:00"]),
    ("0 0 1 FEB,Mar *", ["02-01 00:00", "03-01 00:00"]),
    # The @ names.
    ("@yearly", ["01-01 00:00"]),
    ("@annually", ["01-01 00:00"]),
    ("@monthly", ["02-01 00:00"]),
    ("@weekly", ["01-04 00:00"]),
    ("@daily", ["01-02 00:00"]),
    ("@midnight", ["01-02 00:00"]),
    ("@hourly", ["01-01 01:00"]),
]
CRONITER = [
    # What croniter's documentation adds: last day, n-th weekday, seconds, wrapping ranges, n/step.
    ("0 0 l * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00", "04-30 00:00"]),
    ("0 0 15,L * *", ["01-15 00:00", "01-31 00:00", "02-15 00:00", "02-28 00:00"]),
    ("0 0 1-29,31,l * *", ["01-02 00:00", "01-03 00:00"]),
    ("0 0 30-1,l * *", ["01-30 00:00", "01-31 00:00", "02-01 00:00", "02-28 00:00"]),
    ("0 0 * * mon#2", ["01-12 00:00", "02-09 00:00"]),
    ("0 0 * * 5#3,wed#1", ["01-07 00:00", "01-16 00:00", "02-04 00:00"]),
    ("0 0 * * mon#5", ["03-30 00:00", "06-29 00:00"]),
    ("0 0 * * 7#1", ["01-04 00:00", "02-01 00:00"]),
    ("0 0 1 * mon#2", ["01-12 00:00", "02-01 00:00", "02-09 00:00"]),
    ("0 0 * * sat-sun", ["01-03 00:00", "01-04 00:00", "01-10 00:00"]),
    ("0 22-1 * * *", ["01-01 01:00", "01-01 22:00", "01-01 23:00", "01-02 00:00"]),
    ("0 0 1 nov-feb *", ["02-01 00:00", "11-01 00:00", "12-01 00:00"]),
    ("5/20 * * * *", ["01-01 00:05", "01-01 00:25", "01-01 00:45", "01-01 01:05"]),
    ("59/15 * * * *", ["01-01 00:59", "01-01 01:59"]),
    ("0 0 * * * */30", ["01-01 00:00:30", "01-02 00:00:00"]),
    # Where it differs from croniter: a range of one value is that value.
    ("5-5 0 * * *", ["01-01 00:05", "01-02 00:05"]),
    ("*/60 * * * *", ["01-01 01:00", "01-01 02:00"]),
]

REFUSED = [
    ("60 * * * *", "minute", "0 to 59"),
    ("-1 * * * *", "minute", "no number"),
    ("*/0 * * * *", "minute", "step 0"),
    ("*/61 * * * *", "minute", "use Every"),
    ("*/90 * * * *", "minute", "use Every"),
    ("1-2-3 * * * *", "minute", "no number"),
    ("*-5 * * * *", "minute", "takes no range"),
    ("1,,2 * * * *", "minute", "no number"),
    ("1.5 * * * *", "minute", "no number"),
    ("\u0663 * * * *", "minute", "no number"),
    ("h * * * *", "minute", "jitter"),
    ("H/15 * * * *", "minute", "jitter"),
    ("h(0-29) * * * *", "minute", "jitter"),
    ("r * * * *", "minute", "jitter"),
    ("0 24 * * *", "hour", "0 to 23"),
    ("0 noon * * *", "hour", "no number"),
    ("0 l * * *", "hour", "0 to 23"),
    ("0 0 0 * *", "day of month", "1 to 31"),
    ("0 0 32 * *", "day of month", "1 to 31"),
    ("0 0 15w * *", "day of month", "nearest weekday"),
    ("0 0 lw * *", "day of month", "nearest weekday"),
    ("0 0 ? * *", "day of month", "write *"),
    ("0 0 l-3 * *", "day of month", "stands alone"),
    ("0 0 * 0 *", "month", "1 to 12"),
    ("0 0 * 13 *", "month", "1 to 12"),
    ("0 0 * january *", "month", "no number"),
    ("0 0 * foo *", "month", "jan to dec"),
    ("0 0 * * 8", "day of week", "0 to 7"),
    ("0 0 * * mon#6", "day of week", "#1 to #5"),
    ("0 0 * * mon#0", "day of week", "#1 to #5"),
    ("0 0 * * fri,mon#1", "day of week", "mixed"),
    ("0 0 * * l5", "day of week", "0 to 7"),
    ("0 0 * * * 60", "second", "0 to 59"),
    ("0 0 31 2 *", "day of month", "no such date"),
    ("0 0 30 2 *", "day of month", "no such date"),
    ("0 0 31 4,6 *", "day of month", "no such date"),
    ("0 0 31 2 */2", "day of month", "no such date"),
    ("", None, "0 fields"),
    ("* * * *", None, "4 fields"),
    ("* * * * * * 2026", None, "7 fields"),
    ("@reboot", None, "no time"),
    ("@dayly", None, "@daily"),
    pytest.param("0 " * 200, None, "at most 240", id="long"),
    (None, None, "must be text"),
    (["0"], None, "must be text"),
]


@pytest.mark.parametrize(("expression", "expected"), [*CRONTAB_5, *CRONITER])
def test_an_expression_fires_when_its_documentation_says(expression, expected):
    trigger = Cron(expression)
    found, fire_time = [], START
    for text in expected:
        fire_time = trigger.next_after(fire_time)
        found.append(f"{fire_time:%m-%d %H:%M:%S}"[: len(text)])

    assert found == expected


@pytest.mark.parametrize(("expression", "field", "reason"), REFUSED)
def test_a_bad_expression_is_refused_with_its_field_and_the_reason(expression, field, reason):
    with pytest.raises(InvalidTriggerError, match=re.escape(reason)) as refusal:
        Cron(expression)

    assert refusal.value.field == field


def test_both_days_must_match_when_told_so():
    trigger = Cron("0 0 13 * fri", day_or=False)

    assert trigger.next_after(START).date() == date(2026, 2, 13)


def test_an_nth_weekday_on_a_date_that_it_never_falls_on_is_refused():
    with pytest.raises(InvalidTriggerError, match="no such date"):
        Cron("0 0 1 * mon#2", day_or=False)


@pytest.mark.parametrize(
    ("expression", "day_or", "start", "expected"),
    [
        ("0 0 29 2 *", True, 2096, date(2096, 2, 29)),
        ("0 0 29 2 *", True, 2097, date(2104, 2, 29)),
        ("0 0 29 2 mon", False, 2073, date(2112, 2, 29)),
        ("0 0 29 2 sun#5", False, 2026, date(2032, 2, 29)),
        ("0 0 * 2 mon#5", True, 2073, date(2112, 2, 29)),
        ("0 0 31 2 mon", True, 2026, date(2026, 2, 2)),
        ("0 0 l 2 *", True, 2028, date(2028, 2, 29)),
        ("0 0 l 2 sat#4", False, 2026, date(2026, 2, 28)),
    ],
)
def test_rare_dates_are_found(expression, day_or, start, expected):
    trigger = Cron(expression, day_or=day_or)

    assert trigger.next_after(datetime(start, 1, 1, tzinfo=UTC)).date() == expected


def test_without_a_zone_the_clock_is_utc():
    assert Cron("0 9 * * *").next_after(START) == START.replace(hour=9)


def test_a_zone_is_given_to_an_expression_that_has_none_only():
    assert Cron("0 9 * * *").in_zone("Asia/Seoul") == Cron("0 9 * * *", timezone="Asia/Seoul")
    seoul = Cron("0 9 * * *", timezone="Asia/Seoul")
    assert seoul.in_zone("Europe/Paris") is seoul


@pytest.mark.parametrize("year", [1, 1899, 9901, 9999])
def test_outside_of_its_years_it_answers_at_once(year):
    fire_time = Cron("0 9 * * *", timezone="Asia/Seoul").next_after(
        datetime(year, 1, 1, tzinfo=UTC)
    )

    assert (fire_time is None) == (year > 9900)


@pytest.mark.parametrize(
    ("zone", "reason"),
    [
        ("Asia/Seol", "did you mean 'Asia/Seoul'?"),
        ("asia/seoul", "did you mean 'Asia/Seoul'?"),
        ("america/new york", "did you mean 'America/New_York'?"),
        ("", "tz database"),
        ("Asia", "unknown time zone"),
        ("../../etc/passwd", "unknown time zone"),
        ("/etc/localtime", "unknown time zone"),
        ("Asia/../Asia/Seoul", "unknown time zone"),
        ("posix/Asia/Seoul", "unknown time zone"),
        ("right/Asia/Seoul", "unknown time zone"),
        ("localtime", "unknown time zone"),
        ("Asia/Seoul\0", "unknown time zone"),
        ("\ud800", "unknown time zone"),
        pytest.param("A" * 100_000, "unknown time zone", id="long"),
        (9, "must be text"),
        ([], "must be text"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_name(zone, reason):
    with pytest.raises(InvalidTriggerError, match=re.escape(reason)) as refusal:
        Cron("0 9 * * *", timezone=zone)

    assert refusal.value.field == "timezone"
    assert len(str(refusal.value)) < 250


def test_expressions_are_equal_by_content():
    assert Cron(" 0  9 * * MON-FRI ") == Cron("0 9 * * mon-fri")
    assert hash(Cron("@daily")) == hash(Cron("0 0 * * *"))
    assert Cron("0 9 * * *") != Cron("0 9 * * *", timezone="UTC")
    assert Cron("0 9 1 * fri") != Cron("0 9 1 * fri", day_or=False)


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (Cron("* * * * *"), "every minute, UTC"),
        (Cron("*/5 * * * *"), "every 5 minutes, UTC"),
        (
            Cron("*/5 9-17 * * mon-fri"),
            "every 5 minutes during hours 9 to 17, Monday to Friday, UTC",
        ),
        (Cron("* * * * * */15"), "every 15 seconds, UTC"),
        (Cron("@hourly"), "every hour, on the hour, UTC"),
        (Cron("30 * * * *"), "at minute 30 of every hour, UTC"),
        (Cron("*/25 * * * *"), "at minutes 0, 25 and 50 of every hour, UTC"),
        (Cron("* 9 * * * 5"), "at second 5 of every minute of hour 9, UTC"),
        # No rhythm: in the repeated hour it stays silent.
        (
            Cron("0-59/20 0-23 * * *"),
            "at minutes 0, 20 and 40 of every hour, UTC",
        ),
        (Cron("0 9 * * *", timezone="Asia/Seoul"), "at 09:00 every day, Asia/Seoul"),
        (
            Cron("0 9 * * mon-fri", timezone="Asia/Seoul"),
            "at 09:00, Monday to Friday, Asia/Seoul",
        ),
        (
            Cron("0,30 9,17 * * sat,sun"),
            "at 09:00, 09:30, 17:00 and 17:30, on Saturday and Sunday, UTC",
        ),
        (Cron("0 9 * * * 30"), "at 09:00:30 every day, UTC"),
        (Cron("0 0 1 * *"), "at 00:00, on day 1 of the month, UTC"),
        (
            Cron("0 0 1,l 1-3 *"),
            "at 00:00, on day 1 and the last day of the month, in January to March, UTC",
        ),
        (Cron("0 0 * 6 *"), "at 00:00, every day, in June, UTC"),
        (Cron("0 0 * * mon#2"), "at 00:00, on the 2nd Monday of the month, UTC"),
        (Cron("0 0 13 * fri"), "at 00:00, on day 13 of the month or on Friday, UTC"),
        (
            Cron("0 0 13 * 3,5", day_or=False),
            "at 00:00, on day 13 of the month, only if it is Wednesday or Friday, UTC",
        ),
        (Cron("0 0 1-31 * mon"), "at 00:00 every day, UTC"),
        (Cron("0 0 1-31 * mon", day_or=False), "at 00:00, on Monday, UTC"),
    ],
)
def test_an_expression_says_itself_in_words(trigger, words):
    assert trigger.phrase() == words
    assert trigger.describe() == words[0].upper() + words[1:]

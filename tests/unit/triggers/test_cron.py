"""The meaning of cron expressions, and which ones are rejected."""

import re
from datetime import UTC, date, datetime

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron, parse_trigger

START = datetime(2026, 1, 1, tzinfo=UTC)

# (expression, the first fire times after 1 January 2026 00:00, a Thursday)
EXPRESSIONS = [
    # croniter's additions to crontab(5): last day, n-th weekday, seconds, wrapping ranges, n/step.
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
    # The last weekday, the weekday nearest to a day, days before the last; in lists too.
    ("0 0 lw * *", ["01-30 00:00", "02-27 00:00", "03-31 00:00", "04-30 00:00", "05-29 00:00"]),
    ("0 0 15W * *", ["01-15 00:00", "02-16 00:00", "03-16 00:00", "04-15 00:00"]),
    ("0 0 w15 * *", ["01-15 00:00", "02-16 00:00"]),
    ("0 0 1W 1,2,8 *", ["02-02 00:00", "08-03 00:00"]),
    ("0 0 31W * *", ["01-30 00:00", "03-31 00:00", "05-29 00:00", "07-31 00:00"]),
    ("0 0 l-3 * *", ["01-28 00:00", "02-25 00:00", "03-28 00:00", "04-27 00:00"]),
    ("0 0 L-30 * *", ["03-01 00:00", "05-01 00:00", "07-01 00:00"]),
    ("0 0 l-2w * *", ["01-29 00:00", "02-26 00:00", "03-30 00:00"]),
    ("0 0 1,15W,LW * *", ["01-15 00:00", "01-30 00:00", "02-01 00:00", "02-16 00:00"]),
    ("0 0,12 15W * *", ["01-15 00:00", "01-15 12:00", "02-16 00:00", "02-16 12:00"]),
    ("0 0 15W * * 0,30", ["01-15 00:00:00", "01-15 00:00:30", "02-16 00:00:00"]),
    ("0 0 15W * fri", ["01-02 00:00", "01-09 00:00", "01-15 00:00", "01-16 00:00"]),
    ("0 0 lw * */5", ["01-30 00:00", "02-27 00:00", "05-29 00:00", "07-31 00:00"]),
    ("0 0 29W 2 *", ["02-29 00:00"]),
    # The last weekday of a month, also with plain weekdays.
    ("0 0 * * 5L", ["01-30 00:00", "02-27 00:00", "03-27 00:00"]),
    ("0 0 * * fril,L5", ["01-30 00:00", "02-27 00:00", "03-27 00:00"]),
    ("0 0 * * 0L,7#1", ["01-04 00:00", "01-25 00:00", "02-01 00:00", "02-22 00:00"]),
    ("0 0 * * mon,friL", ["01-05 00:00", "01-12 00:00", "01-19 00:00", "01-26 00:00"]),
    ("0 0 * * sat,mon#1", ["01-03 00:00", "01-05 00:00", "01-10 00:00", "01-17 00:00"]),
    # Unlike in croniter, a range of one value is that value.
    ("5-5 0 * * *", ["01-01 00:05", "01-02 00:05"]),
    ("*/60 * * * *", ["01-01 01:00", "01-01 02:00"]),
    # As in crontab(5), a step may be larger than its field, and a day field that begins with *
    # requires that both day fields match: the first Monday, Mondays on odd days.
    ("0 7 */100,1-7 * mon", ["01-05 07:00", "02-02 07:00", "03-02 07:00"]),
    ("0 7 */32,1-7 * mon", ["01-05 07:00", "02-02 07:00", "03-02 07:00"]),
    ("0 7 1-7 * */10", ["01-04 07:00", "02-01 07:00", "03-01 07:00"]),
    ("0 7 */2 * mon", ["01-05 07:00", "01-19 07:00", "02-09 07:00"]),
    ("0 7 1-7 * *,mon", ["01-01 07:00", "01-02 07:00"]),
    ("*/90 * * * *", ["01-01 01:00", "01-01 02:00"]),
    ("5/1000 * * * *", ["01-01 00:05", "01-01 01:05"]),
]

REFUSED = [
    ("60 * * * *", "minute", "0 to 59"),
    ("-1 * * * *", "minute", "not a number"),
    ("*/0 * * * *", "minute", "step 0"),
    ("h/61 * * * *", "minute", "use Every"),
    ("1-2-3 * * * *", "minute", "not a number"),
    ("*-5 * * * *", "minute", "takes no range"),
    ("1,,2 * * * *", "minute", "not a number"),
    ("1.5 * * * *", "minute", "not a number"),
    ("\u0663 * * * *", "minute", "not a number"),
    ("r * * * *", "minute", "write H"),
    ("R/15 * * * *", "minute", "write H"),
    ("0 r(0-5) * * *", "hour", "write H"),
    ("h5 * * * *", "minute", "a form of H"),
    ("h(5) * * * *", "minute", "a form of H"),
    ("h-5 * * * *", "minute", "a form of H"),
    ("h(0-60) * * * *", "minute", "0 to 59"),
    ("h/0 * * * *", "minute", "step 0"),
    ("0 h(0-23)/25 * * *", "hour", "step 25 of H"),
    ("0 0 h(0-5) * *", "day of month", "1 to 31"),
    ("0 0 h(29-31) 2 *", "day of month", "do not always occur together"),
    ("0 0 31 h *", "day of month", "do not always occur together"),
    ("15w * * * *", "minute", "0 to 59"),
    ("0 24 * * *", "hour", "0 to 23"),
    ("0 noon * * *", "hour", "not a number"),
    ("0 l * * *", "hour", "0 to 23"),
    ("0 0 0 * *", "day of month", "1 to 31"),
    ("0 0 32 * *", "day of month", "1 to 31"),
    ("0 0 0w * *", "day of month", "1 to 31"),
    ("0 0 32w * *", "day of month", "1 to 31"),
    ("0 0 w * *", "day of month", "follows one day"),
    ("0 0 15w-20 * *", "day of month", "takes no range"),
    ("0 0 lw/2 * *", "day of month", "takes no range"),
    ("0 0 1 ? *", "month", "write *"),
    ("0 0 l/3 * *", "day of month", "stands alone"),
    ("0 0 1-l * *", "day of month", "stands alone"),
    ("0 0 l-0 * *", "day of month", "L-1 to L-30"),
    ("0 0 l-31 * *", "day of month", "L-1 to L-30"),
    ("0 0 * 0 *", "month", "1 to 12"),
    ("0 0 * 13 *", "month", "1 to 12"),
    ("0 0 * january *", "month", "not a number"),
    ("0 0 * foo *", "month", "jan to dec"),
    ("0 0 * * 8", "day of week", "0 to 7"),
    ("0 0 * * mon#6", "day of week", "#1 to #5"),
    ("0 0 * * mon#0", "day of week", "#1 to #5"),
    ("0 0 * * l", "day of week", "follows its day"),
    ("0 0 * * l8", "day of week", "0 to 7"),
    ("0 0 * * 5l-6", "day of week", "0 to 7"),
    ("0 0 * * 5l/3", "day of week", "0 to 7"),
    ("0 0 * * 5l#1", "day of week", "0 to 7"),
    ("0 0 * * lw", "day of week", "0 to 7"),
    ("0 0 * * * 60", "second", "0 to 59"),
    ("0 0 31 2 *", "day of month", "no such date"),
    ("0 0 30 2 *", "day of month", "no such date"),
    ("0 0 31 4,6 *", "day of month", "no such date"),
    ("0 0 31 2 */2", "day of month", "no such date"),
    ("0 0 31W 2 *", "day of month", "no such date"),
    ("0 0 30W 2 *", "day of month", "no such date"),
    ("0 0 L-29 2 *", "day of month", "no such date"),
    ("0 0 15w * */6", "day of month", "no such date"),
    ("", None, "0 fields"),
    ("* * * *", None, "4 fields"),
    ("* * * * * * 2026", None, "7 fields"),
    ("@reboot", None, "not a time"),
    ("@dayly", None, "@daily"),
    ("CRON_TZ=Europe/Berlin 0 9 * * *", None, "set timezone to 'Europe/Berlin'"),
    ("TZ=UTC @daily", None, "set timezone to 'UTC'"),
    pytest.param("0 " * 200, None, "at most 240", id="long"),
    pytest.param(f"{'h,' * 60}h * * * *", None, "at most 120", id="long, with an H"),
    (None, None, "must be text"),
    (["0"], None, "must be text"),
]


@pytest.mark.parametrize(("expression", "expected"), EXPRESSIONS)
def test_an_expression_has_the_listed_fire_times(expression, expected):
    trigger = Cron(expression)
    found, fire_time = [], START
    for text in expected:
        fire_time = trigger.next_after(fire_time)
        found.append(f"{fire_time:%m-%d %H:%M:%S}"[: len(text)])

    assert found == expected


@pytest.mark.parametrize(("expression", "field", "reason"), REFUSED)
def test_an_invalid_expression_is_rejected_with_its_field_and_the_reason(expression, field, reason):
    with pytest.raises(InvalidTriggerError, match=re.escape(reason)) as refusal:
        Cron(expression)

    assert refusal.value.field == field


def test_with_day_or_false_both_day_fields_must_match():
    trigger = Cron("0 0 13 * fri", day_or=False)

    assert trigger.next_after(START).date() == date(2026, 2, 13)


def test_an_nth_weekday_on_an_impossible_date_is_rejected():
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
        ("0 0 29w 2 mon", False, 2073, date(2112, 2, 29)),
        ("0 0 29w 2 *", True, 2096, date(2096, 2, 29)),
        ("0 0 29w 2 *", True, 2097, date(2104, 2, 29)),
        ("0 0 l-28 2 sun,tue#5", False, 2026, date(2032, 2, 1)),
    ],
)
def test_rare_dates_are_found(expression, day_or, start, expected):
    trigger = Cron(expression, day_or=day_or)

    assert trigger.next_after(datetime(start, 1, 1, tzinfo=UTC)).date() == expected


def test_the_default_zone_is_utc():
    assert Cron("0 9 * * *").next_after(START) == START.replace(hour=9)


def test_in_zone_keeps_the_zone_of_an_expression():
    assert Cron("0 9 * * *").in_zone("Asia/Seoul") == Cron("0 9 * * *", timezone="Asia/Seoul")
    seoul = Cron("0 9 * * *", timezone="Asia/Seoul")
    assert seoul.in_zone("Europe/Paris") is seoul


@pytest.mark.parametrize("year", [1, 1899, 9901, 9999])
def test_a_search_outside_the_years_ends_quickly(year):
    fire_time = Cron("0 9 * * *", timezone="Asia/Seoul").next_after(
        datetime(year, 1, 1, tzinfo=UTC)
    )

    assert (fire_time is None) == (year > 9900)


@pytest.mark.parametrize(
    ("zone", "reason"),
    [
        ("Asia/Seol", "did you mean 'Asia/Seoul'?"),
        # Similar letters, but hours apart.
        ("KST", "it must be a name of the tz database"),
        ("UTC+9", "it must be a name of the tz database"),
        ("utc", "did you mean 'UTC'?"),
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
def test_an_unknown_zone_is_rejected_with_the_nearest_name(zone, reason):
    with pytest.raises(InvalidTriggerError, match=re.escape(reason)) as refusal:
        Cron("0 9 * * *", timezone=zone)

    assert refusal.value.field == "timezone"
    assert len(str(refusal.value)) < 250


def test_expressions_are_equal_by_content():
    assert Cron(" 0  9 * * MON-FRI ") == Cron("0 9 * * mon-fri")
    assert hash(Cron("@daily")) == hash(Cron("0 0 * * *"))
    assert Cron("0 9 * * *") != Cron("0 9 * * *", timezone="UTC")
    assert Cron("0 9 1 * fri") != Cron("0 9 1 * fri", day_or=False)


@pytest.mark.parametrize("expression", ["0 9 * * *", "0 9 1 * *", "0 9 * * mon", "0 9 */2 * */3"])
def test_day_or_is_true_when_a_day_field_begins_with_a_star(expression):
    both = Cron(expression, day_or=False)

    assert both == Cron(expression)
    assert both.spec == expression
    assert parse_trigger("cron", f"{expression} day_and") == both
    assert Cron("0 9 1 * mon", day_or=False) != Cron("0 9 1 * mon")

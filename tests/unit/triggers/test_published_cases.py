"""Published cases of other implementations, with their sources.

``DIFFERENT`` lists the intended differences. Instants such as ``2024-01-15 09:00`` are in
UTC. day_or is given where a source needs it.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron
from celery_dynbeat.triggers.cron.expression import parse_expression

MICROSECOND = timedelta(microseconds=1)
# croniter restarts the step at the end of the week, and writes L5 for 5L.
OTHER_IN_CRONITER = ("sat-tue/2", "5L")

# crontab(5) of Vixie's cron and of Debian's: the example file, the note on the two day fields, and
# the forms that the text explains. From 1 January 2026, a Thursday.
CRONTAB_5 = [
    ("5 0 * * *", "2026-01-01", "2026-01-01 00:05", "2026-01-02 00:05"),
    ("15 14 1 * *", "2026-01-01", "2026-01-01 14:15", "2026-02-01 14:15"),
    ("0 22 * * 1-5", "2026-01-01", "2026-01-01 22:00", "2026-01-02 22:00", "2026-01-05 22:00"),
    ("23 0-23/2 * * *", "2026-01-01", "2026-01-01 00:23", "2026-01-01 02:23"),
    ("5 4 * * sun", "2026-01-01", "2026-01-04 04:05", "2026-01-11 04:05"),
    # The 1st, the 15th and each Friday.
    *[
        ("30 4 1,15 * 5", "2026-01-01", "2026-01-01 04:30", "2026-01-02 04:30", "2026-01-09 04:30"),
        ("30 4 1,15 * 5", "2026-01-10", "2026-01-15 04:30", "2026-01-16 04:30"),
    ],
    # Every fourth hour on the 1st and on each Monday; midnight of each Sunday on an uneven date.
    ("0 */4 1 * mon", "2026-01-01 20:00", "2026-01-05", "2026-01-05 04:00", "2026-01-05 08:00"),
    ("0 0 */2 * sun", "2026-01-01", "2026-01-11", "2026-01-25"),
    ("0 0 13 * */5", "2026-01-01", "2026-02-13", "2026-03-13"),
    ("0 4 8-14 * *", "2026-01-01", "2026-01-08 04:00", "2026-01-09 04:00"),
    # Lists, lists of ranges, steps of ranges and of ``*``.
    ("0 1,2,5,9 * * *", "2026-01-01", "2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 05:00"),
    ("0 0-4,8-12 * * *", "2026-01-01 04:00", "2026-01-01 08:00", "2026-01-01 09:00"),
    ("0 8-11 * * *", "2026-01-01 10:00", "2026-01-01 11:00", "2026-01-02 08:00"),
    ("0 */2 * * *", "2026-01-01", "2026-01-01 02:00", "2026-01-01 04:00"),
    ("*/25 * * * *", "2026-01-01", "2026-01-01 00:25", "2026-01-01 00:50", "2026-01-01 01:00"),
    # 0 and 7 are Sunday. Names may be in upper or lower case.
    *[(f"0 0 * * {sunday}", "2026-01-01", "2026-01-04") for sunday in ("0", "7", "Sun", "SUN")],
    ("0 0 * * 5-7", "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-09"),
    ("0 0 1 FEB,Mar *", "2026-01-01", "2026-02-01", "2026-03-01"),
    *[(name, "2026-01-02", "2027-01-01") for name in ("@yearly", "@annually")],
    *[(name, "2026-01-01", "2026-01-02") for name in ("@daily", "@midnight")],
    ("@monthly", "2026-01-01", "2026-02-01"),
    ("@weekly", "2026-01-01", "2026-01-04"),
    ("@hourly", "2026-01-01", "2026-01-01 01:00"),
]
# croniter 7: README.rst (usage, L, W), and tests/test_croniter.py (test_nearest_weekday_*,
# test_lwom_mixup_*, test_nth_*).
CRONITER = [
    ("*/5 * * * *", "2010-01-25 04:46", "2010-01-25 04:50", "2010-01-25 04:55"),
    ("2 4 1 * wed", "2010-01-25 04:46", "2010-01-27 04:02", "2010-02-01 04:02", "2010-02-03 04:02"),
    ("0 0 * * sat#1,sun#2", "2010-01-25 04:46", "2010-02-06", "2010-02-14"),
    ("0 0 * * 5#3,L5", "2010-01-25 04:46", "2010-01-29", "2010-02-19"),
    ("0 0 l * *", "2024-01-30", "2024-01-31", "2024-02-29"),
    ("0 0 l * *", "2023-02-01", "2023-02-28"),
    ("0 9 15W * *", "2024-01-01", "2024-01-15 09:00", "2024-02-15 09:00", "2024-03-15 09:00"),
    ("0 9 15W * *", "2024-06-01", "2024-06-14 09:00"),
    ("0 9 15W * *", "2024-09-01", "2024-09-16 09:00"),
    ("0 9 W15 * *", "2024-01-01", "2024-01-15 09:00"),
    ("0 9 1W * *", "2024-05-31", "2024-06-03 09:00"),
    ("0 9 31W * *", "2025-03-01", "2025-03-31 09:00"),
    ("0 9 30W * *", "2024-11-01", "2024-11-29 09:00"),
    *[
        ("0 0 1W * *", "2023-12-31", "2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01"),
        ("0 0 1W * *", "2024-04-01", "2024-05-01", "2024-06-03"),
    ],
    ("0 0 * * L6,6#1", "2021-03-01", "2021-03-06", "2021-03-27", "2021-04-03", "2021-04-24"),
    ("0 0 * * 1#4,L1", "2021-11-01", "2021-11-22", "2021-11-29", "2021-12-27", "2022-01-24"),
]
CRONITER_DAY_AND = [
    ("2 4 1 * wed", "2010-01-25 04:46", "2010-09-01 04:02", "2010-12-01 04:02", "2011-06-01 04:02"),
    ("1 1 1-7 * 2", "2024-07-12", "2024-08-06 01:01", "2024-09-03 01:01", "2024-10-01 01:01"),
]
# cronsim: README.md and tests/test_cronsim.py (TestIterator).
CRONSIM = [
    ("0 0 * 2 MON#5", "2026-01-01", "2044-02-29", "2072-02-29", "2112-02-29", "2140-02-29"),
    ("0 0 * 2 MON#5", "2160-01-01", "2168-02-29", "2196-02-29", "2208-02-29", "2236-02-29"),
    ("1 1 L * *", "2020-01-01", "2020-01-31 01:01"),
    ("1 1 LW 5 *", "2020-01-01", "2020-05-29 01:01"),
    ("1 1 * * 5L", "2020-01-01", "2020-01-31 01:01", "2020-02-28 01:01", "2020-03-27 01:01"),
    ("1 1 * * 5L", "2020-04-01", "2020-04-24 01:01", "2020-05-29 01:01", "2020-06-26 01:01"),
    ("1 1 * * 5L", "2020-07-01", "2020-07-31 01:01", "2020-08-28 01:01", "2020-09-25 01:01"),
    ("1 1 * * 5L", "2020-10-01", "2020-10-30 01:01", "2020-11-27 01:01", "2020-12-25 01:01"),
    ("1 1 * * 0L", "2020-01-01", "2020-01-26 01:01"),
    ("1 1 * * 7L", "2020-01-01", "2020-01-26 01:01"),
    ("1 1 * * 1#2", "2020-01-01", "2020-01-13 01:01"),
    ("1 1 1-7 * */7", "2020-01-01", "2020-01-05 01:01", "2020-02-02 01:01", "2020-03-01 01:01"),
    ("1 1 * * */3", "2020-01-01", "2020-01-01 01:01", "2020-01-04 01:01", "2020-01-05 01:01"),
    # From TestParse: plain weekdays with one that has a #.
    ("0 0 * * 1,2,3#1", "2019-12-31", "2020-01-01", "2020-01-06", "2020-01-07", "2020-01-13"),
]
# Quartz 2: the CronTrigger tutorial and the javadoc of CronExpression (W, LW), and
# CronExpressionTest.testLastDayOffset. Its weekdays count from 1, and are converted.
QUARTZ = [
    # The 15th on a Saturday, a Sunday and a Tuesday.
    ("0 0 15W * *", "2025-11-01", "2025-11-14"),
    ("0 0 15W * *", "2026-02-01", "2026-02-16"),
    ("0 0 15W * *", "2026-09-01", "2026-09-15"),
    # The 1st on a Saturday: the 3rd, because W does not leave the month.
    ("0 0 1W * *", "2026-07-31", "2026-08-03"),
    ("0 0 LW * *", "2026-05-01", "2026-05-29"),
    ("15 10 L-2 * *", "2010-10-01", "2010-10-29 10:15"),
    ("15 10 L-1 * *", "2010-10-01", "2010-10-30 10:15"),
    ("15 10 L-5W * *", "2010-10-01", "2010-10-26 10:15"),
    ("15 10 L-1W * *", "2010-10-01", "2010-10-29 10:15"),
    ("43 9 * * 5L", "2026-01-01", "2026-01-30 09:43"),
]
# PublishResult cases with ``?``: the first instant that counts, and the fire time.
# Cronos: tests/Cronos.Tests/CronExpressionFacts.cs (GetNextOccurrence_ReturnsCorrectDate, and the
# same for five fields). It puts the seconds first and allows ``?`` in any field. Here the seconds
# are at the end, and cases with ``?`` in a field that is not a day field are in REFUSED.
_SATURDAY_TO_TUESDAY = [
    ("2016-12-10", "2016-12-10"),
    ("2016-12-11", "2016-12-11"),
    ("2016-12-12", "2016-12-12"),
    ("2016-12-13", "2016-12-13"),
    ("2016-12-14", "2016-12-17"),
]
_EVERY_SECOND_OF_THEM = [
    ("2016-12-10", "2016-12-10"),
    ("2016-12-11", "2016-12-12"),
    ("2016-12-12", "2016-12-12"),
    ("2016-12-13", "2016-12-17"),
]
_ROUND_THE_MINUTE = [
    ("55-5", "17:35:42", "17:35:55"),
    ("55-5", "17:35:57", "17:35:57"),
    ("55-5", "17:35:59", "17:35:59"),
    ("55-5", "17:36:00", "17:36:00"),
    ("55-5", "17:36:05", "17:36:05"),
    ("55-5", "17:36:06", "17:36:55"),
    ("57-5/3", "17:36:06", "17:36:57"),
    ("57-5/3", "17:36:58", "17:37:00"),
    ("57-5/3", "17:37:01", "17:37:03"),
    ("57-5/3", "17:37:04", "17:37:57"),
    ("59-58", "17:37:04", "17:37:04"),
    ("59-58", "17:37:58", "17:37:58"),
    ("59-58", "17:37:59", "17:37:59"),
    ("59-58", "17:38:00", "17:38:00"),
]
CRONOS = [
    *[
        (f"* * * * ? {seconds}", f"2016-12-09 {earlier}", f"2016-12-09 {later}")
        for seconds, earlier, later in _ROUND_THE_MINUTE
    ],
    *[
        (f"* * ? * {days}{seconds}", *case)
        for seconds in (" *", "")
        for days, cases in (
            ("thu-sun", [("2016-12-09", "2016-12-09")]),
            ("sat-tue", _SATURDAY_TO_TUESDAY),
            ("sat-tue/2", _EVERY_SECOND_OF_THEM),
        )
        for case in cases
    ],
    *[
        (f"{expression}{seconds}", *case)
        for seconds in (" *", "")
        for expression, *case in (
            ("* * ? 11 *", "2016-10-09", "2016-11-01"),
            ("* * * * ?", "2016-12-09 16:46", "2016-12-09 16:46"),
            ("* * ? * *", "2016-03-09 16:46", "2016-03-09 16:46"),
            ("* * * * ?", "2016-12-30 16:46", "2016-12-30 16:46"),
            ("* * ? * *", "2016-12-09 02:46", "2016-12-09 02:46"),
            ("* * * * ?", "2016-12-09 16:09", "2016-12-09 16:09"),
            ("* * ? * *", "2099-12-09 16:46", "2099-12-09 16:46"),
        )
    ],
]
# robfig/cron: spec_test.go (TestActivation, TestNext), version 2 with the seconds first. Its
# unsatisfiable cases are in REFUSED.
ROBFIG = [
    ("30 08 ? Jul Sun 0", "2012-07-15 08:30", "2012-07-15 08:30"),
    ("30 08 15 Jul ? 0", "2012-07-15 08:30", "2012-07-15 08:30"),
    ("30 08 ? Jul Sun 0", "2012-07-16 08:30", "2012-07-22 08:30"),
    ("30 08 15 Jul ? 0", "2012-07-16 08:30", "2013-07-15 08:30"),
    ("30 08 ? Jul Sun", "2012-07-15 08:30", "2012-07-15 08:30"),
    ("30 08 15 Jul ?", "2012-07-15 08:30", "2012-07-15 08:30"),
    ("0 0 9 Apr-Oct ? 0", "2012-07-09 23:35", "2012-08-09"),
    ("0 0 29 Feb ? 0", "2012-07-09 23:35", "2016-02-29"),
    ("30 1 04 Nov ? 0", "2012-11-04", "2012-11-04 01:30"),
]
# Amazon EventBridge: the examples of its reference of cron expressions, without the year. Their
# meaning is given in words there. Its weekdays count from 1, and are converted.
EVENTBRIDGE = [
    ("0 10 * * ?", "2026-01-01 10:01", "2026-01-02 10:00"),
    ("15 12 * * ?", "2026-01-01", "2026-01-01 12:15"),
    ("0 18 ? * MON-FRI", "2026-01-02 18:01", "2026-01-05 18:00"),
    ("0 8 1 * ?", "2026-01-01 08:01", "2026-02-01 08:00"),
    ("0/15 * * * ?", "2026-01-01 23:46", "2026-01-02"),
    ("0/10 * ? * MON-FRI", "2026-01-02 23:51", "2026-01-05"),
    ("0/5 8-17 ? * MON-FRI", "2026-01-02 17:56", "2026-01-05 08:00"),
    ("15 10 ? * 5L", "2022-09-01", "2022-09-30 10:15"),
]
# Celery's t/unit/app/test_schedules.py (test_crontab_remaining_estimate, test_crontab_is_due): the
# keywords of crontab() as an expression. Both days must match.
CELERY = [
    ("* * * * *", "2010-09-11 14:30:15", "2010-09-11 14:31"),
    ("* * * * *", "2010-09-11 14:59:15", "2010-09-11 15:00"),
    ("5,42 * * * *", "2010-09-11 14:30:15", "2010-09-11 14:42"),
    ("5,10,15 * * * *", "2010-09-11 14:30:15", "2010-09-11 15:05"),
    ("5,42 12,17 * * *", "2010-09-11 14:30:15", "2010-09-11 17:05"),
    ("5,42 12 * * *", "2010-09-11 14:30:15", "2010-09-12 12:05"),
    ("30 14 * * sat", "2010-09-11 14:30:15", "2010-09-18 14:30"),
    ("5,42 * * * mon-fri", "2010-09-11 14:30:15", "2010-09-13 00:05"),
    ("30 14 18 * *", "2010-09-11 14:30:15", "2010-09-18 14:30"),
    ("5,42 * 29 * *", "2010-01-22 14:30:15", "2010-01-29 00:05"),
    ("30 14 18 * mon", "2010-01-18 14:30:15", "2010-10-18 14:30"),
    ("5,42 * 29 * sat", "2010-01-29 00:05:15", "2010-05-29 00:05"),
    ("5,42 * 18 * mon", "2010-01-11 00:05:15", "2010-01-18 00:05"),
    ("5,42 * 18 * mon", "2010-01-10 00:05:15", "2010-01-18 00:05"),
    ("30 14 29 * *", "2012-01-29 14:30:15", "2012-02-29 14:30"),
    ("30 14 29 * *", "2010-01-29 14:30:15", "2010-03-29 14:30"),
    ("30 14 29 1 fri", "2010-01-22 14:30:15", "2010-01-29 14:30"),
    ("5,42 * 29 1,4,7 wed,thu", "2010-01-29 14:30:15", "2010-04-29 00:05"),
    ("30 14 29 1-10 fri", "2010-01-29 14:30:15", "2010-10-29 14:30"),
    ("5,42 * 29 2-10 fri", "2010-01-29 14:30:15", "2010-10-29 00:05"),
    ("5,42 * 18 2-10 mon", "2010-01-11 00:05:15", "2010-10-18 00:05"),
    ("5,42 * 29 2-4 mon", "2010-01-29 00:05:15", "2010-03-29 00:05"),
    ("5,42 * 29 2-4 mon", "2010-02-28 00:05:15", "2010-03-29 00:05"),
    ("5,42 * 29 2-10 fri,sat", "2010-01-28 14:30:15", "2010-05-29 00:05"),
    ("30 14 29 2 *", "2012-02-29 14:30", "2016-02-29 14:30"),
    ("*/15 * * * *", "2010-05-10 10:00", "2010-05-10 10:15", "2010-05-10 10:30"),
    ("30 7 * * thu", "2010-04-30 07:30", "2010-05-06 07:30"),
    ("30 7 8-14 * thu", "2010-04-08 07:30", "2010-05-13 07:30"),
    ("0 22 26,27,28 2 *", "2013-07-04 10:00", "2014-02-26 22:00"),
    ("30 7 8-14 3 thu", "2009-03-12 07:30", "2010-03-11 07:30"),
]
# Jenkins' hudson.scheduler.CronTabTest (testCeil3): both day fields must match there too.
JENKINS = [("0 0 1 * 0", "2010-01-01 15:55", "2010-08-01")]

# Celery's crontab_parser (test_parse_composite and others): the values of a minute field.
MINUTES = [
    ("2-9/5", {2, 7}),
    ("2-10/5", {2, 7}),
    ("2-11/5,3", {2, 3, 7}),
    ("2-4/3,*/5,0-21/4", {0, 2, 4, 5, 8, 10, 12, 15, 16, 20, 25, 30, 35, 40, 45, 50, 55}),
    ("1-9/2", {1, 3, 5, 7, 9}),
    ("*/3", {minute * 3 for minute in range(20)}),
]
# The outcomes of an H. Jenkins' CronTabTest (testHash1, testHash2) hashes to the last and to the
# second of each range. croniter's tests/test_croniter_hash.py has the number of values.
HASHED = [
    (0, "H", (59,), (1,)),
    (1, "H(5-8)", (8,), (6,)),
    (2, "H/3", (3, 6, 9, 12, 15, 18, 21, 24, 27), (2, 5, 8, 11, 14, 17, 20, 23, 26)),
    (3, "H(1-10)/4", (4, 8), (2, 6, 10)),
    (0, "H(30-59)/10", (39, 49, 59), (31, 41, 51)),
    (0, "H(50-52)/10", (52,), (51,)),
    (0, "H/60", (59,), (1,)),
]
# Rejected in croniter's tests (test_hash_range_outside_field, test_nth_out_of_range, the W test of
# is_valid), cronsim's (TestValidation), Quartz's (testQtz96) and Celery's (test_crontab_spec_*).
REFUSED = [
    *("H(0-99) * * * *", "* H(20-30) * * *", "* * H(0-5) * *", "* * H(0-20)/5 * *"),
    *("* * * H(0-12) *", "* * * * H(0-8)", "* * * * * H(30-60)", "X X * * *"),
    *("0 0 * * 1#7", "0 0 * * 1#0", "0 9 0W * *", "0 9 32W * *", "1-1_0 * * * *", "*/0 * * * *"),
    *("* * 30 2 *", "* * 31 4 *", "* * * * 5L-6", "* * * * 5L#1", "* * * * 5L/3"),
    *("* * LL * *", "* * LWX * *", "* * 1-LL * *", "2/ * * * *", "1##1 * * * *", "\u00b9 * * * *"),
    *("60 * * * *", "0-100 * * * *", "* 24 * * *", "* 0-30 * * *", "* * * * fooday-barday"),
    *("* * * * 12", "* * 0 * *", "* * 0-10 * *", "* * 31,32 * *", "* * * 0-5 *", "* * * 12,13 *"),
    # croniter 7 rejects ? in other fields and with other items, Quartz only the second. Cronos
    # allows the first. The last two, from robfig/cron, never fire.
    *("? ? ? ? ? ?", "? * * * *", "0 ? * * *", "0 0 1 ? *", "0 0 * * * ?", "0 0 12 ? * MON"),
    *("0 0 ?/5 * *", "0 0 1,? * *", "0 0 ?,1 * 1", "0 0 ?-5 * *", "0 0 * * ?#2", "0 0 ?W * *"),
    *("0 0 ?? * *", "0 0 L-? * *", "0 0 H(?-5) * *", "0 0 30 Feb ?", "0 0 31 Apr ?"),
]
# (expression, the fire time of the source, our fire time from 1 November 2024)
DIFFERENT = [
    # croniter's test_nearest_weekday_end_of_month_boundary uses the 30th for the 31st.
    ("0 9 31W * *", "2024-11-29 09:00", "2024-12-31 09:00"),
    # croniter and Quartz reject lists with W or L, and W or L with plain days.
    ("0 9 1,15W * *", None, "2024-11-01 09:00"),
    ("43 9 1,5,29,L * *", None, "2024-11-01 09:43"),
    ("0 0 * * 5,L6", None, "2024-11-08 00:00"),
    # cronsim rejects names before L, and ranges that wrap.
    ("0 0 * * MONL", None, "2024-11-25 00:00"),
    ("0 0 30-2 * *", None, "2024-11-02 00:00"),
    # In croniter a range of one value is the whole field.
    ("0 0 * JAN-JAN *", "2024-11-02 00:00", "2025-01-01 00:00"),
]
# cronsim's TestDstTransitions: Riga, where 03:00 became 04:00 on 28 March 2021, and 04:00 became
# 03:00 on 31 October. Wall times with their offsets.
RIGA = [
    ("0 * * * *", "03-28 01:30+02", "03-28 02:00+02", "03-28 04:00+03"),
    ("0 * * * *", "10-31 02:30+03", "10-31 03:00+03", "10-31 03:00+02", "10-31 04:00+02"),
    ("*/30 * * * *", "03-28 02:10+02", "03-28 02:30+02", "03-28 04:00+03", "03-28 04:30+03"),
    ("*/30 * * * *", "10-31 03:10+03", "10-31 03:30+03", "10-31 03:00+02", "10-31 03:30+02"),
    ("*/15 * * * *", "03-28 02:40+02", "03-28 02:45+02", "03-28 04:00+03"),
    ("0 */2 * * *", "03-28 01:30+02", "03-28 02:00+02", "03-28 04:00+03", "03-28 06:00+03"),
    ("0 */2 * * *", "10-31 01:30+03", "10-31 02:00+03", "10-31 04:00+02", "10-31 06:00+02"),
    ("30 */2 * * *", "03-28 01:30+02", "03-28 02:30+02", "03-28 04:30+03"),
    ("0 */3 * * *", "10-31 01:30+03", "10-31 03:00+03", "10-31 03:00+02", "10-31 06:00+02"),
    ("0 1,2,3,4,5 * * *", "03-28 01:30+02", "03-28 02:00+02", "03-28 04:00+03", "03-28 05:00+03"),
    ("0 1,2,3,4,5 * * *", "10-31 01:30+03", "10-31 02:00+03", "10-31 03:00+03", "10-31 04:00+02"),
    ("30 1,2,3,4,5 * * *", "03-28 01:30+02", "03-28 02:30+02", "03-28 04:00+03", "03-28 04:30+03"),
    ("30 1,2,3,4,5 * * *", "10-31 01:30+03", "10-31 02:30+03", "10-31 03:30+03", "10-31 04:30+02"),
    ("0 2 * * *", "03-28 01:30+02", "03-28 02:00+02", "03-29 02:00+03"),
    ("0 3 * * *", "03-27 01:30+02", "03-27 03:00+02", "03-28 04:00+03", "03-29 03:00+03"),
    ("0 3 * * *", "10-31 01:30+03", "10-31 03:00+03", "11-01 03:00+02"),
    ("0 4 * * *", "03-27 01:30+02", "03-27 04:00+02", "03-28 04:00+03", "03-29 04:00+03"),
    ("0 4 * * *", "10-30 01:30+03", "10-30 04:00+03", "10-31 04:00+02", "11-01 04:00+02"),
    ("0 1-5 * * *", "03-28 01:30+02", "03-28 02:00+02", "03-28 04:00+03", "03-28 05:00+03"),
    ("0 1-23/2 * * *", "10-31 00:30+03", "10-31 01:00+03", "10-31 03:00+03", "10-31 05:00+02"),
    ("15 3 * * *", "03-27 00:00+02", "03-27 03:15+02", "03-28 04:00+03", "03-29 03:15+03"),
    ("15 3 * * *", "10-30 00:00+03", "10-30 03:15+03", "10-31 03:15+03", "11-01 03:15+02"),
    ("* * * * *", "03-28 02:58+02", "03-28 02:59+02", "03-28 04:00+03"),
    ("* * * * *", "10-31 03:58+03", "10-31 03:59+03", "10-31 03:00+02", "10-31 03:01+02"),
    ("* 1-6 * * *", "03-28 02:58+02", "03-28 02:59+02", "03-28 04:00+03"),
    ("* 1-6 * * *", "10-31 03:58+03", "10-31 03:59+03", "10-31 03:00+02", "10-31 03:01+02"),
]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize("case", [*CRONTAB_5, *CRONITER, *CRONSIM, *QUARTZ], ids=" ; ".join)
def test_an_expression_has_the_fire_times_of_its_source(case):
    trigger = Cron(case[0])

    for earlier, later in pairwise(case[1:]):
        assert trigger.next_after(instant(earlier)) == instant(later)


@pytest.mark.parametrize("case", [*CRONOS, *ROBFIG, *EVENTBRIDGE], ids=" ; ".join)
def test_a_question_mark_has_the_meaning_of_its_source(case):
    expression, earlier, later = case
    before, fire_time = instant(earlier) - MICROSECOND, instant(later)

    assert Cron(expression).next_after(before) == fire_time
    assert Cron(expression, day_or=False).next_after(before) == fire_time
    if not any(item in expression for item in OTHER_IN_CRONITER):
        assert croniter(expression, before.replace(microsecond=0)).get_next(datetime) == fire_time


@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        ("0 9 ? * mon", "0 9 * * mon"),
        ("0 9 15 * ?", "0 9 15 * *"),
        ("0 9 ? * ?", "0 9 * * *"),
        ("H H ? * 5L", "h h * * 5l"),
        (" 0  9 ?\t* mon 30", "0 9 * * mon 30"),
    ],
)
def test_the_normal_form_of_a_question_mark_is_a_star(asked, plain):
    assert Cron(asked) == Cron(plain)
    assert Cron(asked).spec == plain


@pytest.mark.parametrize(
    ("expression", "field"),
    [("0 0 12 ? * MON", "month"), ("? 0 * * *", "minute"), ("0 0 1,? * *", "day of month")],
)
def test_a_question_mark_outside_the_day_fields_is_rejected_with_the_rule(expression, field):
    with pytest.raises(InvalidTriggerError, match="stands alone in a day field") as refusal:
        Cron(expression)

    assert refusal.value.field == field


@pytest.mark.parametrize("case", [*CRONITER_DAY_AND, *CELERY, *JENKINS], ids=" ; ".join)
def test_both_day_fields_match_where_the_source_requires_it(case):
    trigger = Cron(case[0], day_or=False)

    for earlier, later in pairwise(case[1:]):
        assert trigger.next_after(instant(earlier)) == instant(later)


@pytest.mark.parametrize(("text", "values"), MINUTES)
def test_a_field_has_the_values_of_its_source(text, values):
    assert set(parse_expression(f"{text} * * * *").minute.values) == values


@pytest.mark.parametrize(("place", "text", "last", "second"), HASHED)
def test_the_outcomes_of_an_h_contain_the_values_of_its_source(place, text, last, second):
    fields = parse_expression(" ".join([*["*"] * place, text, *["*"] * (4 - place)]))
    outcomes = fields.fields[place].hashed_items[0].outcomes

    assert outcomes[-1] == last
    assert outcomes[1] == second


@pytest.mark.parametrize("expression", REFUSED)
def test_expressions_that_the_sources_reject_are_rejected(expression):
    with pytest.raises(InvalidTriggerError):
        Cron(expression)


@pytest.mark.parametrize(("expression", "others", "expected"), DIFFERENT)
def test_the_intended_differences_from_the_sources_hold(expression, others, expected):
    found = Cron(expression).next_after(instant("2024-11-01"))

    assert found == instant(expected)
    assert others is None or found != instant(others)


@pytest.mark.parametrize("case", RIGA, ids=" ; ".join)
def test_fire_times_around_a_clock_change_equal_those_of_cronsim(case):
    expression, start, *expected = case
    trigger, riga = Cron(expression, timezone="Europe/Riga"), ZoneInfo("Europe/Riga")
    fire_time = datetime.fromisoformat(f"2021-{start}:00")
    found = []
    for _ in expected:
        fire_time = trigger.next_after(fire_time)
        found.append(fire_time.astimezone(riga).strftime("%m-%d %H:%M%z")[:-2])

    assert found == expected

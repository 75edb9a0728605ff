"""Cron expressions in words."""

import pytest

from celery_dynbeat.triggers import Cron


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
        # Not an interval: it does not fire in the repeated hour.
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
        # Days that depend on the month.
        (
            Cron("0 9 LW * *", timezone="Asia/Seoul"),
            "at 09:00, on the last weekday of the month, Asia/Seoul",
        ),
        (Cron("0 9 15W * *"), "at 09:00, on the weekday nearest to day 15 of the month, UTC"),
        (Cron("0 9 L-3 * *"), "at 09:00, 3 days before the last day of the month, UTC"),
        (Cron("0 9 L-1 6 *"), "at 09:00, 1 day before the last day of the month, in June, UTC"),
        (
            Cron("0 9 1,15W,L-3W * *"),
            (
                "at 09:00, on day 1, the weekday nearest to day 15 and the weekday nearest to"
                " 3 days before the last day of the month, UTC"
            ),
        ),
        (Cron("0 9 * * friL"), "at 09:00, on the last Friday of the month, UTC"),
        (
            Cron("0 9 * * 5#3,L5"),
            "at 09:00, on the 3rd Friday and the last Friday of the month, UTC",
        ),
        (
            Cron("0 9 * * mon-fri,sunL"),
            "at 09:00, Monday to Friday and the last Sunday of the month, UTC",
        ),
        (
            Cron("0 9 15W * fri", day_or=False),
            "at 09:00, on the weekday nearest to day 15 of the month, only if it is Friday, UTC",
        ),
        # An H without a key is described as such.
        (Cron("H * * * *"), "at a minute (picked per schedule) of every hour, UTC"),
        (
            Cron("H/15 * * * *"),
            "at every 15th minute (start picked per schedule) of every hour, UTC",
        ),
        (
            Cron("H(0-29)/10 9 * * mon-fri"),
            (
                "at every 10th minute from 0 to 29 (start picked per schedule) of hour 9,"
                " Monday to Friday, UTC"
            ),
        ),
        (
            Cron("30,H(0-5) H * * *"),
            (
                "at minute 30 and a minute from 0 to 5 (picked per schedule) of an hour"
                " (picked per schedule), UTC"
            ),
        ),
        (
            Cron("*/5 H(22-2) * * *"),
            "every 5 minutes during an hour from 22 to 2 (picked per schedule), UTC",
        ),
        (
            Cron("0 9 H * *"),
            "at 09:00, on a day from 1 to 28 (picked per schedule) of the month, UTC",
        ),
        (
            Cron("0 9 * H(6-8) H(mon-sun)"),
            (
                "at 09:00, on a day of the week (picked per schedule), in a month from June to"
                " August (picked per schedule), UTC"
            ),
        ),
        (Cron("0 9 * * * H"), "at a second (picked per schedule) of minute 0 of hour 9, UTC"),
        (Cron("5 9 * * H").hashed_by("you"), "at 09:05, on Friday, UTC"),
    ],
)
def test_an_expression_is_described_in_words(trigger, words):
    assert trigger.phrase() == words
    assert trigger.describe() == words[0].upper() + words[1:]

"""The schedule of a Sentry monitor, and its slug."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron, Every, Once
from celery_dynbeat.process.sentry_monitors import schedule_of, slug_of


def test_a_plain_cron_expression_is_a_crontab():
    for expression in ("0 9 * * mon-fri", "*/5 0-6,20 1 jan,feb *"):
        assert schedule_of(Cron(expression)) == {"type": "crontab", "value": expression}


@pytest.mark.parametrize(
    "trigger",
    [
        Cron("H 9 * * *"),
        Cron("0 9 L * *"),
        Cron("0 9 * * fri#2"),
        Cron("0 9 * * * 30"),
        Cron("0 9 1 * fri", day_or=False),
        Every(timedelta(seconds=90)),
        Every(months=1),
        Once.after(timedelta(hours=1)),
    ],
)
def test_a_trigger_that_sentry_cannot_express_has_no_monitor(trigger):
    assert schedule_of(trigger) is None


def test_an_interval_has_the_largest_whole_unit():
    expected = {"type": "interval", "value": 2, "unit": "hour"}
    assert schedule_of(Every(timedelta(hours=2))) == expected
    assert schedule_of(Every(timedelta(minutes=90)))["value"] == 90


def test_a_slug_has_only_what_sentry_accepts():
    assert slug_of("Nightly report/EU") == "nightly-report-eu"
    assert len(slug_of("x" * 100)) == 50

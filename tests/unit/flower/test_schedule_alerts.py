"""The alert rules that the page of one schedule shows."""

from datetime import timedelta

from celery_dynbeat import AlertRules
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.flower.pages.alerts import alert_rules


def info(**values):
    return ScheduleInfo(**{**dict.fromkeys(ScheduleInfo.__slots__), **values})


def shown(schedule, **settings):
    return {
        rule.name: (rule.value, rule.is_default)
        for rule in alert_rules(schedule, Settings(**settings))
    }


def test_each_rule_says_whether_it_follows_the_settings():
    own = info(alerts=AlertRules(late_after=120, lost=False, to="ops"))

    rules = shown(own, alert_slow_after=timedelta(hours=3))

    assert rules["late_after"] == ("2 min", False)
    assert rules["lost"] == ("no", False)
    assert rules["to"] == ("ops", False)
    assert rules["slow_after"] == ("3 h", True)
    assert rules["after_failures"] == ("1", True)
    assert rules["silent_after"] == ("never", True)


def test_without_alerts_and_own_rules_nothing_is_shown():
    assert shown(info()) == {}
    assert shown(info(), alerts=True)["quarantined"] == ("yes", True)


def test_only_the_host_of_a_ping_url_is_shown():
    url = "https://HC-ping.com/5f0c-token?x"

    assert shown(info(ping_url=url)) == {"ping_url": ("https://hc-ping.com/...", False)}
    assert shown(info(ping_url="5f0c-token")) == {"ping_url": ("...", False)}

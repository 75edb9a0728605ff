"""The alert rules of a schedule: their checks, their JSON, and those that apply."""

from datetime import timedelta

import pytest

from celery_dynbeat import AlertRules, InvalidScheduleError
from celery_dynbeat.common.alert_kinds import NODE_KINDS, SEVERITIES, AlertKind
from celery_dynbeat.common.alert_rules import stored_rules
from celery_dynbeat.common.settings import Settings


def test_rules_survive_a_round_trip_through_json():
    rules = AlertRules(
        after_failures=3,
        lost=False,
        late_after=timedelta(minutes=2),
        frequent_above=5,
        frequent_within=timedelta(hours=1),
        to="ops",
    )

    assert rules.to_json() == {
        "after_failures": 3,
        "lost": False,
        "late_after": 120.0,
        "frequent_above": 5,
        "frequent_within": 3600.0,
        "to": "ops",
    }
    assert AlertRules.from_json(rules.to_json()) == rules
    assert AlertRules().to_json() == {}


def test_a_duration_may_be_a_number_of_seconds():
    assert AlertRules(slow_after=90) == AlertRules(slow_after=timedelta(seconds=90))


@pytest.mark.parametrize(
    "rules",
    [
        {"after_failures": -1},
        {"after_failures": 1_001},
        {"after_failures": True},
        {"after_failures": "3"},
        {"lost": 1},
        {"recovered": "no"},
        {"late_after": -1},
        {"late_after": "60"},
        {"late_after": True},
        {"slow_after": float("nan")},
        {"silent_after": float("inf")},
        {"silent_after": timedelta(days=36_526)},
        {"silent_after": 10**400},
        {"frequent_above": 5},
        {"frequent_above": 5, "frequent_within": 0},
        {"frequent_above": 10_001, "frequent_within": 60},
        {"frequent_above": 1.5, "frequent_within": 60},
        {"frequent_within": 60},
        {"to": ""},
        {"to": 5},
        {"to": "mailto://user:secret@example.com"},
    ],
)
def test_an_invalid_rule_is_rejected_with_its_name(rules):
    with pytest.raises(InvalidScheduleError, match=f"^alerts: {next(iter(rules))} = ") as caught:
        AlertRules.from_json(rules)

    assert caught.value.field == "alerts"


def test_an_unknown_rule_is_rejected_with_a_similar_name():
    with pytest.raises(InvalidScheduleError, match="did you mean after_failures"):
        AlertRules.from_json({"after_failure": 3})
    with pytest.raises(InvalidScheduleError, match="known are after_failures, lost"):
        AlertRules.from_json({5: 3})


def test_a_rule_that_is_not_set_follows_the_settings():
    settings = Settings(
        alert_after_failures=4, alert_late_after=timedelta(seconds=30), alert_recovered=False
    )

    effective = AlertRules(late_after=60).effective(settings)

    assert effective.after_failures == 4
    assert effective.late_after == timedelta(seconds=60)
    assert (effective.lost, effective.recovered) == (True, False)
    assert (effective.slow_after, effective.frequent_above) == (None, None)
    assert effective.to == "default"


def test_zero_means_never_independent_of_the_settings():
    settings = Settings(alert_late_after=timedelta(seconds=30), alert_lost=True)
    rules = AlertRules(after_failures=0, late_after=0, frequent_above=0, lost=False)

    effective = rules.effective(settings)

    assert (effective.after_failures, effective.late_after) == (None, None)
    assert effective.frequent_above is None
    assert effective.lost is False


@pytest.mark.parametrize(
    ("rules", "needs_checks"),
    [
        ({}, False),
        ({"late_after": 5}, False),
        ({"silent_after": 60}, True),
        ({"silent_after": 0}, False),
        ({"frequent_above": 1, "frequent_within": 60}, True),
    ],
)
def test_only_silent_and_frequent_need_regular_checks(rules, needs_checks):
    assert AlertRules.from_json(rules).effective(Settings()).needs_checks is needs_checks


@pytest.mark.parametrize("stored", [None, {}, [], 5, {"nonsense": 1}, {"late_after": "soon"}])
def test_stored_rules_that_cannot_be_read_do_not_apply(stored):
    assert stored_rules(stored) == AlertRules()


def test_late_slow_and_frequent_and_alerts_about_nodes_are_milder_than_the_others():
    mild = {kind for kind, severity in SEVERITIES.items() if severity == "warning"}

    assert mild == {AlertKind.LATE, AlertKind.SLOW, AlertKind.FREQUENT, *NODE_KINDS}
    assert set(SEVERITIES) == set(AlertKind)

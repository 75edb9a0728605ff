"""Which notice the alerts of a schedule are: one for a streak, one for its end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.common.alert_kinds import AlertKind, NoticeKind, OwnerNotice
from celery_dynbeat.planning.alerting import AlertState
from celery_dynbeat.planning.owner_notices import (
    NoticeState,
    after_notice,
    decide,
    opened,
    recovered,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FAILED, LOST = AlertKind.FAILED, AlertKind.LOST
PAUSED, QUARANTINED = AlertKind.PAUSED, AlertKind.QUARANTINED
OPENED, REPORTED, RECOVERED = OwnerNotice


def alert(kind, notice, *, ended=False, at=NOW):
    return NoticeState(
        id=1,
        kind=kind,
        opened_at=NOW - 10 * MINUTE,
        recovered_at=NOW - MINUTE if ended else None,
        notice=notice,
        notice_at=at if notice in (OPENED, RECOVERED) else None,
    )


@pytest.mark.parametrize(
    ("alerts", "expected"),
    [
        ([], None),
        ([alert(FAILED, OPENED)], NoticeKind.FAILING),
        ([alert(FAILED, OPENED), alert(LOST, OPENED)], NoticeKind.FAILING),
        # The owner knows the streak.
        ([alert(FAILED, OPENED), alert(LOST, REPORTED)], None),
        ([alert(FAILED, OPENED), alert(LOST, RECOVERED, ended=True, at=NOW + MINUTE)], None),
        ([alert(FAILED, REPORTED), alert(PAUSED, OPENED)], NoticeKind.PAUSED),
        ([alert(FAILED, OPENED), alert(PAUSED, OPENED)], NoticeKind.PAUSED),
        ([alert(PAUSED, OPENED), alert(QUARANTINED, OPENED)], NoticeKind.CANNOT_RUN),
        ([alert(FAILED, RECOVERED, ended=True)], NoticeKind.WORKS_AGAIN),
        ([alert(FAILED, RECOVERED, ended=True, at=NOW + MINUTE)], None),
        ([alert(PAUSED, RECOVERED, ended=True)], NoticeKind.CAN_RUN_AGAIN),
        # It still fails.
        ([alert(PAUSED, RECOVERED, ended=True), alert(FAILED, REPORTED)], None),
        # An alert from before the setting.
        ([alert(PAUSED, RECOVERED, ended=True), alert(FAILED, None)], NoticeKind.CAN_RUN_AGAIN),
        ([alert(FAILED, OPENED, ended=True), alert(PAUSED, REPORTED)], None),
        # One notice has reported the failure and its end.
        ([alert(FAILED, REPORTED, ended=True)], None),
        ([alert(FAILED, REPORTED, ended=True), alert(LOST, OPENED)], NoticeKind.FAILING),
    ],
)
def test_the_alerts_of_a_schedule_are_one_notice_or_none(alerts, expected):
    decision = decide(alerts, now=NOW)
    assert (decision and decision.kind) == expected


def test_a_failure_that_has_ended_says_until_when():
    decision = decide([alert(FAILED, OPENED, ended=True)], now=NOW)
    assert (decision.kind, decision.until) == (NoticeKind.FAILING, NOW - MINUTE)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (alert(FAILED, OPENED), (REPORTED, None)),
        (alert(FAILED, OPENED, ended=True), (REPORTED, None)),
        (alert(FAILED, RECOVERED, ended=True), (None, None)),
        (alert(FAILED, RECOVERED, ended=True, at=NOW + MINUTE), (RECOVERED, NOW + MINUTE)),
    ],
)
def test_the_state_after_a_notice(given, expected):
    assert after_notice(given, [given], now=NOW) == expected


def test_a_recovery_waits_for_the_other_ones_of_its_schedule():
    first = alert(FAILED, RECOVERED, ended=True)
    last = alert(PAUSED, RECOVERED, ended=True, at=NOW + MINUTE)
    assert decide([first, last], now=NOW) is None
    assert after_notice(first, [first, last], now=NOW) == (RECOVERED, NOW + MINUTE)
    later = NOW + MINUTE
    assert decide([replace(first, notice_at=later), last], now=later).kind == "works_again"


def state(notice=None, *, at=None, ended=False, opened_at=NOW):
    return AlertState(
        opened_at=opened_at,
        last_at=NOW,
        fact_count=1,
        recovered_at=NOW if ended else None,
        owner_notice=notice,
        owner_notice_at=at,
    )


@pytest.mark.parametrize(
    ("kind", "before", "expected"),
    [
        (FAILED, None, (OPENED, NOW)),
        (AlertKind.LATE, None, (None, None)),
        (FAILED, state(REPORTED), (REPORTED, None)),
        (FAILED, state(None), (None, None)),
        (FAILED, state(None, ended=True), (OPENED, NOW)),
        # The first failure has waited longer.
        (FAILED, state(OPENED, at=NOW - MINUTE, ended=True), (OPENED, NOW - MINUTE)),
        (FAILED, state(RECOVERED, at=NOW, ended=True), (REPORTED, None)),
        (PAUSED, state(RECOVERED, at=NOW, ended=True), (OPENED, NOW)),
        # The failure continues, and a notice has reported it.
        (FAILED, state(REPORTED, ended=True), (REPORTED, None)),
        (PAUSED, state(REPORTED, ended=True), (OPENED, NOW)),
        # Another failure.
        (FAILED, state(REPORTED, ended=True, opened_at=NOW - MINUTE), (OPENED, NOW)),
    ],
)
def test_an_opening_waits_and_an_owner_learns_it_once(kind, before, expected):
    after = opened(before, state(), kind=kind, due_at=NOW)
    assert (after.owner_notice, after.owner_notice_at) == expected


@pytest.mark.parametrize(
    ("before", "reports", "expected"),
    [
        (state(REPORTED), True, (RECOVERED, NOW)),
        (state(REPORTED), False, (REPORTED, None)),
        (state(OPENED, at=NOW - MINUTE), True, (OPENED, NOW - MINUTE)),
        # The owner must learn of the failure, although not of its end alone.
        (state(OPENED, at=NOW - MINUTE), False, (OPENED, NOW - MINUTE)),
        (state(None), True, (None, None)),
    ],
)
def test_only_a_reported_opening_has_a_notice_of_its_end(before, reports, expected):
    after = recovered(before, due_at=NOW, reports=reports, rule_applies=True)
    assert (after.owner_notice, after.owner_notice_at) == expected


@pytest.mark.parametrize("before", [state(REPORTED), state(OPENED, at=NOW), state(None)])
def test_an_alert_whose_rule_no_longer_applies_has_no_notice(before):
    after = recovered(before, due_at=NOW, reports=True, rule_applies=False)
    assert (after.owner_notice, after.owner_notice_at) == (None, None)

"""Applications with alerts, whose facts are evaluated when the test calls it."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from celery_dynbeat import signals
from celery_dynbeat.alerts.alert_pass import AlertPass
from celery_dynbeat.db.alert_models import Alert, AlertCheck, AlertFact
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.testing import ManualBeat
from tests.support.worker_stub import WorkerStub


def evaluation(dynbeat, failpoint=lambda _point: None, **settings):
    """Return the passes of alerts of one beat, with other settings than the application."""
    context = dynbeat.context
    return AlertPass(
        database=context.database,
        clock=context.clock,
        settings=replace(context.settings, **settings),
        failpoint=failpoint,
    )


def stored_alerts(dynbeat):
    """Return the rows of all alerts, in the order of their schedules and kinds."""
    query = select(Alert).order_by(Alert.schedule_id, Alert.kind)
    return dynbeat.context.database.run(lambda session: session.scalars(query).all())


def stored_facts(dynbeat):
    query = select(AlertFact).order_by(AlertFact.id)
    return dynbeat.context.database.run(lambda session: session.scalars(query).all())


def set_rules(dynbeat, name, *, watched=False, **rules):
    """Write the own alert rules of a schedule, and make beat check it if it is watched."""

    def work(session):
        schedule = session.scalars(select(Schedule).where(Schedule.name == name)).one()
        schedule.alerts = rules
        if watched:
            due_at = dynbeat.context.clock.now()
            session.merge(AlertCheck(schedule_id=schedule.id, due_at=due_at))

    dynbeat.context.database.run(work)


@pytest.fixture
def alerting(limited):
    """Make applications with alerts: schedules, beat, worker and evaluation."""

    def make(**settings):
        dynbeat = limited(**{"alerts": True, **settings})
        return SimpleNamespace(
            dynbeat=dynbeat,
            mine=dynbeat.schedules.for_owner("user:42"),
            beat=ManualBeat(dynbeat),
            worker=WorkerStub(dynbeat),
            alerts=evaluation(dynbeat),
            stored=lambda: stored_alerts(dynbeat),
            facts=lambda: stored_facts(dynbeat),
            set_rules=partial(set_rules, dynbeat),
            open=lambda: [row.kind for row in stored_alerts(dynbeat) if row.recovered_at is None],
        )

    return make


@pytest.fixture
def reported():
    """Give a list that grows with the name of each signal about an alert and its event."""
    events = []
    names = ("alert_opened", "alert_recovered", "run_late", "run_slow")

    def receive(event, signal, **_):
        events.append((signal.name, event))

    for name in names:
        getattr(signals, name).connect(receive)
    yield events
    for name in names:
        getattr(signals, name).disconnect(receive)

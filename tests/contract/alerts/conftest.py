"""An application with alerts, whose passes and messages a test makes."""

import os
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from sqlalchemy import event

from celery_dynbeat import signals
from celery_dynbeat.alerts import checks, nodes
from celery_dynbeat.alerts.sending import Sending
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store import nodes as node_rows
from celery_dynbeat.testing import ManualBeat
from tests.support.worker_stub import WorkerStub


class Servers:
    """Records the messages to each URL. ``errors`` maps a URL to the reason why it refuses."""

    def __init__(self):
        self.messages = []
        self.errors = {}

    def send(self, url, message, timeout):
        del timeout
        if url in self.errors:
            return self.errors[url]
        self.messages.append(SimpleNamespace(url=url, title=message.title, body=message.body))
        return None

    @property
    def titles(self):
        return [message.title for message in self.messages]


class Checks:
    """The checks of one beat: of nodes each time, and of schedules once a minute."""

    def __init__(self, context, clock, left_out):
        self._clock, self._checked_at = clock, None
        database, settings = context.database, context.settings
        self._nodes = nodes.NodeCheck(database=database, clock=clock, settings=settings)
        self._schedules = checks.ScheduleCheck(
            database=database, settings=settings, left_out=left_out
        )

    def run(self):
        now = self._clock.now()
        self._nodes.run(now)
        if self._checked_at is None or now - self._checked_at >= checks.EVERY:
            self._schedules.run(now)
            self._checked_at = now


class Alerting:
    """Schedules, a beat, a worker, and the alerts of one or two beats."""

    def __init__(self, dynbeat, clock, servers):
        self.dynbeat, self.clock, self.servers = dynbeat, clock, servers
        self.mine = dynbeat.schedules.for_owner("user:42")
        self.beat, self.worker = ManualBeat(dynbeat), WorkerStub(dynbeat)
        self.database = dynbeat.context.database
        self.left_out = LeftOut("the alert of schedule")
        self.passes = [self.new_pass()]
        self.sending = self.new_sending("b1")
        self.alive = {}

    def new_pass(self):
        return Checks(self.dynbeat.context, self.clock, self.left_out)

    def new_sending(self, node):
        return Sending(
            database=self.database,
            settings=self.dynbeat.context.settings,
            node=node,
            left_out=self.left_out,
            send=self.servers.send,
        )

    def send(self):
        """Send what is due."""
        self.sending.run(self.clock.now())

    def check(self):
        """Make a pass of each beat, a minute later."""
        self.clock.advance(checks.EVERY)
        for each in self.passes:
            each.run()

    def check_and_send(self):
        self.check()
        self.send()

    def send_runs(self):
        """Send what is due, and return the new runs."""
        before = len(self.beat.publisher.sent)
        self.beat.run_until_idle()
        return self.beat.publisher.sent[before:]

    def run(self, *, succeeds):
        """Let the next runs start and end. Beat then notes the recovery of a schedule."""
        self.worker.heartbeat()
        for run in self.send_runs():
            assert self.worker.start(run)
            self.worker.finish(run, Status.SUCCEEDED if succeeds else Status.FAILED)
        self.beat.run_until_idle()

    def alerts(self, **arguments):
        return list(self.dynbeat.schedules.alerts(**arguments))

    @property
    def open(self):
        return [(each.kind, each.schedule) for each in self.alerts()]

    def heartbeat(self, name, *, kind=NodeKind.BEAT, error=None, outages=None):
        values = node_rows.NodeHeartbeat(
            kind=kind,
            name=name,
            pid=os.getpid(),
            seen_at=self.clock.now(),
            error=error,
            outages=outages,
        )
        if not self.database.run(partial(node_rows.refresh, heartbeat=values)):
            started = {"heartbeat": values, "started_at": self.clock.now()}
            self.database.run(partial(node_rows.register, **started))

    def live_for(self, duration, *names, every=nodes.EVERY, **heartbeat):
        """Let time pass, in which the named beats send heartbeats and all beats check nodes."""
        end = self.clock.now() + duration
        while self.clock.now() < end:
            self.clock.advance(every)
            self.worker.heartbeat()
            for name in names:
                self.heartbeat(name, **heartbeat)
            for each in self.passes:
                each.run()


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def alerting(limited, clock, servers):
    """Make an application with alerts."""

    def make(**settings):
        return Alerting(limited(**{"alert_urls": ["json://a"], **settings}), clock, servers)

    return make


@pytest.fixture
def at_once(monkeypatch):
    """Let no time pass between two messages to one URL."""
    monkeypatch.setattr("celery_dynbeat.alerts.sending.INTERVAL", timedelta(0))


@pytest.fixture
def reported():
    """Give a list that grows with the name of each signal about an alert and its event."""
    events = []

    def receive(event, signal, **_):
        events.append((signal.name, event))

    for each in (signals.alert_opened, signals.alert_recovered):
        each.connect(receive)
    yield events
    for each in (signals.alert_opened, signals.alert_recovered):
        each.disconnect(receive)


class Executed(list):
    """The statements of the databases with which it is called."""

    def __call__(self, database):
        def record(_connection, _cursor, statement, *_):
            self.append(statement)

        event.listen(database.engine, "before_cursor_execute", record)


@pytest.fixture
def executed():
    return Executed()

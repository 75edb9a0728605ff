"""One incident with several faults at once, as metrics and alerts show it.

The broker is away, a task fails, an owner has thousands of failing schedules, a worker is killed,
and a row is damaged.

With ``DYNBEAT_RECORD_INCIDENT=FILE`` the phases last as long as the thresholds of the rules of
``examples/monitoring`` need, and the metrics are written to the file, which
``tests/acceptance/test_recorded_incident.py`` evaluates.
"""

import os
import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from celery_dynbeat import Every, Once
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.models import Alert, Run
from tests.faults.conftest import QUICK
from tests.support.applications import execute
from tests.support.scraping import Recording
from tests.support.sinks import HttpSink, MailSink
from tests.support.sites import site
from tests.support.waiting import holds_for, wait_until

RECORDING = os.environ.get("DYNBEAT_RECORD_INCIDENT")
CALM, MANY, FRAGILE = "user:calm", "user:many", "user:fragile"
FAILING = 1_000 if RECORDING else 5_000
TICKING = 10
#: Names of the metrics that the rules of examples/monitoring read.
RECORDED = frozenset({
    "dynbeat_alert_messages_dropped_total",
    "dynbeat_clock_offset_seconds",
    "dynbeat_database_scrape_success",
    "dynbeat_lag_seconds_bucket",
    "dynbeat_last_successful_pass_age_seconds",
    "dynbeat_oldest_due_age_seconds",
    "dynbeat_oldest_pending_run_age_seconds",
    "dynbeat_quarantined_schedules",
    "dynbeat_lost_runs",
})  # fmt: skip


@dataclass(frozen=True)
class Pace:
    """How long the phases of the incident last, in seconds."""

    interval: float
    healthy: float
    outage: float
    failures: float
    no_worker: float
    no_beat: float


QUICKLY = Pace(interval=1, healthy=3, outage=30, failures=0, no_worker=0, no_beat=0)
RECORDABLE = Pace(interval=5, healthy=90, outage=150, failures=100, no_worker=780, no_beat=100)
PACE = RECORDABLE if RECORDING else QUICKLY


class Receivers:
    """The servers that get the messages."""

    def __init__(self, stack):
        self.http = stack.enter_context(HttpSink().serving())
        self.mail = stack.enter_context(MailSink().serving())

    def urls(self):
        return [self.http.url, self.mail.url]


@pytest.fixture
def receivers():
    with ExitStack() as stack:
        yield Receivers(stack)


@pytest.fixture
def incident_site(fault_services, tmp_path, receivers):
    folder = tmp_path / "site"
    folder.mkdir()
    settings = {
        **QUICK,
        # The messages of 5,000 runs wait in the queue for longer than a few seconds.
        "dynbeat_resend_after": 60,
        "dynbeat_metrics": 0,
        "dynbeat_alert_urls": receivers.urls(),
        "dynbeat_alert_late_after": 10,
    }
    urls = {
        "database_url": fault_services.database_url,
        "broker_url": fault_services.broker_url,
    }
    with site(folder, **urls, **settings) as made:
        made.constants |= {"celery_dynbeat.alerts.sending.INTERVAL": 5}
        yield made


class Incident:
    """The processes of the incident, and its phases."""

    def __init__(self, made, recording):
        self._site = made
        self._recording = recording
        self.beats = [made.beat() for _ in range(2)]
        self._fragile = made.worker("-Q", "fragile", name="fragile@test", pool="threads")
        self.workers = [
            made.worker(name="calm@test", pool="threads"),
            made.worker("-Q", "many", name="many@test"),
        ]
        for name, process in zip(["beat1", "beat2"], self.beats, strict=True):
            recording.watch(name, process)

    def owner(self, name):
        return self._site.dynbeat.schedules.for_owner(name)

    def begin(self):
        """Let schedules run that work."""
        for number in range(TICKING):
            self.owner(CALM).create(f"tick {number}", task="probe.record", trigger=Every(1))
        self._stay(PACE.healthy)
        self._recording.mark("healthy")

    def damage_a_row(self):
        self.owner(CALM).create("damaged", task="probe.record", trigger=Every(1))
        database = "UPDATE dynbeat_schedule SET trigger_spec = 'P' WHERE name = 'damaged'"
        execute(self._site.dynbeat, database)

    def queue_without_a_worker(self):
        self._create_failing(CALM, ["waits"], queue="nowhere")

    def fail(self):
        """Let thousands of schedules of an owner fail."""
        self._create_failing(MANY, [f"import {number}" for number in range(FAILING)], queue="many")
        failed = "failed"
        self._wait_for_runs(MANY, failed, FAILING)
        self._stay(PACE.failures)
        self._recording.mark("failing")

    def kill_a_worker(self):
        gate = str(self._site.gate("fragile"))
        self.owner(FRAGILE).create(
            "held",
            task="probe.hold",
            trigger=Once.after(timedelta(seconds=0.5)),
            queue="fragile",
            kwargs={"gate": gate},
        )
        self._wait_for_runs(FRAGILE, "running", 1)
        self._stay(2 * PACE.interval)
        self._fragile.kill()
        self._wait_for_runs(FRAGILE, "lost", 1)
        self._stay(2 * PACE.interval)
        self._recording.mark("worker killed")

    def freeze_the_broker(self, broker_server):
        broker_server.freeze()
        self._stay(PACE.outage)
        self._recording.mark("broker away")
        # The damaged row, and the beats.
        self.wait_for_alerts("stopped", 2)
        broker_server.thaw()
        self.wait_for_alerts("stopped", 1, are_open=False)
        self._recording.mark("broker back")

    def wait_for_an_old_run(self):
        """Wait until the run of the queue without a worker is old."""
        created = self.owner(CALM).runs("waits")[0].fire_at
        self._stay(PACE.no_worker - (datetime.now(UTC) - created).total_seconds())
        self._recording.mark("no worker for a queue")

    def end_all_runs(self):
        """Stop all schedules, revoke the run without a worker, and wait for the others."""
        for name in (f"tick {number}" for number in range(TICKING)):
            self.owner(CALM).pause(name)
        # Revoked, and no worker will ever see the message.
        self.owner(CALM).cancel_run(self.owner(CALM).runs("waits")[0].id)
        wait_until(lambda: not self._unfinished(), within=60, message="runs are unfinished")

    def stop_the_beats(self):
        for beat in self.beats:
            beat.terminate()
        self._stay(PACE.no_beat)
        self._recording.mark("no beat")

    def wait_for_alerts(self, kind, number, *, are_open=True):
        """Return when there are as many alerts of a kind that are open, or have recovered."""
        wait_until(
            lambda: len(stored_alerts(self._site, kind=kind, are_open=are_open)) >= number,
            within=120,
            message=f"not {number} alerts {kind}",
            every=PACE.interval,
        )

    def _create_failing(self, owner, names, *, queue):
        task = "probe.fail"
        trigger = Once(datetime.now(UTC) + timedelta(seconds=2))
        rows = [
            {
                "owner": owner,
                "name": name,
                "task": task,
                "trigger": trigger,
                "queue": queue,
            }
            for name in names
        ]
        for first in range(0, len(rows), 1_000):
            self._site.dynbeat.schedules.create_many(rows[first : first + 1_000])

    def _stay(self, seconds):
        """Wait, and see that no process ends."""
        processes = [*self.beats, *self.workers]
        assert holds_for(
            lambda: all(each.exit_status is None for each in processes) or self._ended,
            seconds=seconds,
        ), self._site.report()

    @property
    def _ended(self):
        return all(beat.exit_status is not None for beat in self.beats)

    def _wait_for_runs(self, owner, status, number):
        wait_until(
            lambda: self._site.count_runs(Run.owner == owner, Run.status == status) == number,
            within=400,
            message=f"{owner}: not {number} runs {status}",
            every=PACE.interval,
        )

    def _unfinished(self):
        return self._site.count_runs(Run.status.in_(UNFINISHED))


def stored_alerts(made, *, kind=None, are_open=None):
    """Return the kind and what is unreported of the alerts of a kind that are open, or not."""
    statement = select(Alert.kind, Alert.unreported)
    if kind:
        statement = statement.where(Alert.kind == kind)
    if are_open is not None:
        ended = Alert.recovered_at
        statement = statement.where(ended.is_(None) if are_open else ended.is_not(None))
    return made.dynbeat.context.database.read(lambda session: session.execute(statement).all())


def expect_metrics(made, recording):
    """Compare the metrics of the beats with the tables."""
    runs = made.all_runs()
    rows = Counter(run.status for run in runs)
    sent = sum(rows.values()) - rows[Status.SKIPPED]
    assert recording.total("dynbeat_runs_dispatched_total") == sent
    assert recording.total("dynbeat_lag_seconds_count") == sent
    assert rows[Status.LOST] == 1
    skipped = sum(run.fire_count for run in runs if run.status == Status.SKIPPED)
    assert recording.total("dynbeat_runs_skipped_total") == skipped
    assert recording.total("dynbeat_quarantines_total") == 1
    opened = Counter(alert.kind for alert in stored_alerts(made))
    for kind, number in opened.items():
        assert recording.total("dynbeat_alerts_opened_total", reason=kind) >= number


@pytest.mark.timeout(2_400 if RECORDING else 900)
@pytest.mark.combination(database="postgresql", broker="redis")
def test_alerts_of_an_incident_are_sent_once_and_metrics_fit_the_tables(
    incident_site, receivers, broker_server
):
    with Recording(interval=PACE.interval).running() as recording:
        incident = Incident(incident_site, recording)
        incident.begin()
        incident.queue_without_a_worker()
        incident.damage_a_row()
        incident.fail()
        incident.kill_a_worker()
        incident.freeze_the_broker(broker_server)
        incident.wait_for_an_old_run()
        incident.end_all_runs()
        wait_until(
            lambda: len(stored_alerts(incident_site, kind="failing")) >= FAILING + 1,
            within=180,
            message="alerts are missing",
            every=PACE.interval,
        )
        wait_until(
            lambda: all(alert.unreported is None for alert in stored_alerts(incident_site)),
            within=60,
            message="alerts without a message",
            every=PACE.interval,
        )
        expect_metrics(incident_site, recording)
        incident.stop_the_beats()
        if RECORDING:
            recording.write(Path(RECORDING), names=RECORDED)

    # The 5,000 are few messages, and each URL got them.
    assert 0 < len(receivers.http.bodies) <= 30
    titles = " ".join(body["title"] for body in receivers.http.bodies)
    # Each message counts those that it is the first to report, also the schedule of the lost run.
    many = re.findall(r"([\d,]+) schedules (?:are failing|failed)", titles)
    single = re.findall(r"\S+ of \S+ (?:is failing|failed)", titles)
    counted = sum(int(number.replace(",", "")) for number in many) + len(single)
    assert counted == len(stored_alerts(incident_site, kind="failing")) >= FAILING + 1, titles
    assert "a beat cannot send runs" in titles
    assert len(receivers.mail.mails) == len(receivers.http.bodies)

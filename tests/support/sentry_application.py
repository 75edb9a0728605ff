"""An application with Sentry and the recipe; prints its check-ins. It patches Celery for good."""

import json
import sys
from datetime import timedelta
from typing import Any

import sentry_sdk
from celery import Celery
from celery.contrib.testing.worker import start_worker
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from celery_dynbeat import Dynbeat, Every
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.signals import RunRefused, run_refused
from celery_dynbeat.testing import ManualBeat
from tests.support.sentry_recipe import monitor
from tests.support.waiting import wait_until

#: Two of each monitored run: at its start and at its end. The lost run has no start here.
MONITORED_CHECK_INS = 9
check_ins: list[Any] = []
refused: list[str] = []


class RecordingTransport(Transport):
    """Records check-ins."""

    def capture_envelope(self, envelope: Envelope) -> None:
        """Record the check-ins of ``envelope``."""
        check_ins.extend(item.payload.json or {} for item in envelope if item.type == "check_in")


app = Celery("sentry", broker="memory://")
app.conf.dynbeat_database_url = sys.argv[1]
monitor(*(f"nightly-{end}" for end in ("ok", "fail", "retry", "twice", "lost", "user")))


@app.task(bind=True, name="t", max_retries=1)  # type: ignore[untyped-decorator]
def t(self: Any, end: str) -> None:
    """Succeed, fail or retry."""
    if end == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    if end == "fail":
        raise ValueError(end)


@run_refused.connect
def note_refused(event: RunRefused, **_: Any) -> None:
    """Note the run of a refused message."""
    refused.append(event.run_id)


def execute(dynbeat: Dynbeat, statement: str) -> None:
    """Execute SQL, as in a database shell."""
    with dynbeat.context.database.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def send_twice(dynbeat: Dynbeat, beat: ManualBeat) -> str:
    """Return the id of a run of which the broker has two messages."""
    schedules = dynbeat.schedules.for_owner("")
    schedules.create("nightly-twice", task="t", args=["ok"], trigger=Every(timedelta(hours=1)))
    run_id = schedules.run_now("nightly-twice").id
    beat.tick()
    execute(dynbeat, f"UPDATE dynbeat_run SET overdue_at = created_at WHERE id = '{run_id}'")
    beat.tick()
    return run_id


def lose(dynbeat: Dynbeat, publisher: Publisher) -> str:
    """Return the id of a run whose worker is dead."""
    schedules = dynbeat.schedules.for_owner("")
    schedules.create("nightly-lost", task="t", args=["ok"], trigger=Every(timedelta(hours=1)))
    run_id = schedules.run_now("nightly-lost").id
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'running', attempt = 1, worker = 'dead@host',"
        " overdue_at = NULL, sent_at = created_at, started_at = '2026-01-01 00:00:00.000000'"
        f" WHERE id = '{run_id}'",
    )
    # Its first pass looks for dead workers.
    ManualBeat(dynbeat, publisher, any_database=True).tick()
    return run_id


def main() -> None:
    """Run one schedule for each end, and others that are not monitored, in one process."""
    sentry_sdk.init(
        "http://key@127.0.0.1/1",
        transport=RecordingTransport,
        integrations=[CeleryIntegration(monitor_beat_tasks=True)],
    )
    dynbeat = Dynbeat(app)
    dynbeat.context.prepare()
    publisher = Publisher(app, now=dynbeat.context.clock.now)
    beat = ManualBeat(dynbeat, publisher, any_database=True)
    runs = {"nightly-twice": send_twice(dynbeat, beat)}
    with start_worker(app, perform_ping_check=False):
        for owner, name, end in (
            ("", "nightly-ok", "ok"),
            ("", "nightly-fail", "fail"),
            ("", "nightly-retry", "retry"),
            ("", "other", "ok"),
            ("user:1", "nightly-user", "ok"),
        ):
            schedules = dynbeat.schedules.for_owner(owner)
            schedules.create(name, task="t", args=[end], trigger=Every(timedelta(hours=1)))
            runs[name] = schedules.run_now(name).id
            beat.tick()
            wait_until(
                lambda: schedules.runs(name, status=("succeeded", "failed")),  # noqa: B023 - called here
                within=15,
            )
        runs["nightly-lost"] = lose(dynbeat, publisher)
        wait_until(lambda: refused == [runs["nightly-twice"]], within=15)
        # A check-in follows the write of the outcome.
        wait_until(lambda: len(check_ins) >= MONITORED_CHECK_INS, within=15)
    publisher.close()
    dynbeat.context.database.dispose()
    sys.stdout.write(json.dumps({"runs": runs, "check_ins": check_ins}))


if __name__ == "__main__":
    main()

"""Test support for applications: a frozen clock, and a beat and a worker that the test drives.

    clock = FrozenClock(datetime(2026, 11, 21, 9, tzinfo=UTC))
    dynbeat = Dynbeat(app, clock=clock)
    beat = ManualBeat(dynbeat, run_tasks=True)
    dynbeat.schedules.for_owner("user:42").create("digest", task=..., trigger=...)
    clock.advance(timedelta(days=1))
    beat.run_until_idle()
    assert [run.task for run in beat.publisher.sent] == ["mail.send_digest"]

The passes are the same as in a real beat, and use a real database. No broker is needed unless you
pass a real publisher. In pytest use the fixtures ``dynbeat_clock`` and ``dynbeat_beat`` of
``celery_dynbeat.pytest_plugin``.
"""

from celery_dynbeat.testing.beat import ManualBeat
from celery_dynbeat.testing.overriding import FrozenClock, delete_rows, override
from celery_dynbeat.testing.worker import RecordingPublisher

__all__ = ["FrozenClock", "ManualBeat", "RecordingPublisher", "delete_rows", "override"]

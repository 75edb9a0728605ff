"""The duties of beat about alerts. Each has a daemon thread, so that no pass of beat waits for it.

check nodes       every 10 s    missing beats and workers, beats that cannot send
check schedules   every minute  states of schedules and runs
send alerts       every 10 s    the only thread that delivers messages
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from celery_dynbeat.alerts import checks, nodes, sending
from celery_dynbeat.beat.duties import Duties
from celery_dynbeat.beat.refused import LeftOut
from celery_dynbeat.broker.outages import ReportedOutage
from celery_dynbeat.process.context import Context

#: The names of duties.
CHECK_NODES, CHECK_SCHEDULES, SEND = "check nodes", "check schedules", "send alerts"
#: ``close`` waits this many seconds in total. Any beat can repeat what was running.
CLOSE_TIMEOUT = 2.0


class AlertDuties:
    """The alerts of one beat, which has the name ``node``."""

    def __init__(self, context: Context, *, node: str) -> None:
        database, settings = context.database, context.settings
        self._clock = context.clock
        self._duties = Duties(database)
        self._left_out = LeftOut[int]("the alert of schedule")
        node_check = nodes.NodeCheck(database=database, clock=self._clock, settings=settings)
        schedule_check = checks.ScheduleCheck(
            database=database, settings=settings, left_out=self._left_out
        )
        sends = sending.Sending(
            database=database, settings=settings, node=node, left_out=self._left_out
        )
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=each, name=f"dynbeat-{each[0]}", daemon=True)
            for each in (
                (CHECK_NODES, node_check.run, nodes.EVERY),
                (CHECK_SCHEDULES, schedule_check.run, checks.EVERY),
                (SEND, sends.run, sending.EVERY),
            )
        ]

    def start(self) -> None:
        """Start the threads."""
        for each in self._threads:
            each.start()

    def report(self) -> list[ReportedOutage]:
        """Return the duties that fail, and the rows that are left out, for the row of this node."""
        return [*self._duties.report(), *self._left_out.report(self._clock.now())]

    def close(self) -> None:
        """Ask the threads to end, and wait for up to CLOSE_TIMEOUT. May be called twice."""
        self._closing.set()
        for each in self._threads:
            if each.is_alive():
                each.join(CLOSE_TIMEOUT / len(self._threads))

    def _repeat(self, name: str, work: Callable[[datetime], None], every: timedelta) -> None:
        pause = timedelta(0)
        while not self._closing.wait(pause.total_seconds()):
            pause = every
            try:
                now = self._clock.now()
                self._duties.run(name, work, now=now, default=None)
                pause = max(every, self._duties.wait(name, now))
            # The database is unreachable. The passes of beat report it.
            except Exception:  # noqa: BLE001, S112
                continue

"""The duties of beat about alerts. Each has a daemon thread, so that no pass of beat waits for it.

check nodes       every 10 s    missing beats and workers, beats that cannot send
check schedules   every minute  states of schedules and runs
send alerts       every 10 s    the only thread that delivers messages
"""

from celery_dynbeat.alerts import checks, nodes, sending
from celery_dynbeat.beat.duties import Duty, DutyThreads, failing
from celery_dynbeat.broker.outages import ReportedOutage
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.left_out import LeftOut

#: The names of duties.
CHECK_NODES, CHECK_SCHEDULES, SEND = "check nodes", "check schedules", "send alerts"


class AlertDuties:
    """The alerts of one beat, which has the name ``node``."""

    def __init__(self, context: Context, *, node: str) -> None:
        database, settings = context.database, context.settings
        self._clock = context.clock
        self._left_out = LeftOut[int]("the alert of schedule")
        node_check = nodes.NodeCheck(database=database, clock=self._clock, settings=settings)
        schedule_check = checks.ScheduleCheck(
            database=database, settings=settings, left_out=self._left_out
        )
        sends = sending.Sending(
            database=database, settings=settings, node=node, left_out=self._left_out
        )

        self._threads = DutyThreads(
            self._clock,
            [
                Duty(database, CHECK_NODES, node_check.run, every=nodes.EVERY),
                Duty(database, CHECK_SCHEDULES, schedule_check.run, every=checks.EVERY),
                Duty(database, SEND, sends.run, every=sending.EVERY),
            ],
        )

    def start(self) -> None:
        """Start the threads."""
        self._threads.start()

    def report(self) -> list[ReportedOutage]:
        """Return the duties that fail, and the rows that are left out, for the row of this node."""
        return [*failing(self._threads.duties), *self._left_out.report(self._clock.now())]

    def close(self) -> None:
        """Ask the threads to end, and wait a short time. May be called twice."""
        self._threads.close()

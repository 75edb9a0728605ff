"""The facts from which an explanation follows. Instants are aware and in UTC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from celery_dynbeat.api.results import ChangeInfo, HoldInfo, RunInfo, ScheduleInfo
from celery_dynbeat.broker.outages import PUBLISHING, ReportedOutage
from celery_dynbeat.common.owner_limits import Cap
from celery_dynbeat.common.states import Status, Wait
from celery_dynbeat.health.nodes import SeenNode
from celery_dynbeat.insights.explain.runs import ON_TIME
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.obstacles import before_sending
from celery_dynbeat.planning.quiet_hours import Quiet

#: The states of a run that has not started.
WAITING = (Status.PENDING, Status.SENT)
#: A run in such a status says less than a backfill, a rerun or an earlier run that waits.
_UNTROUBLED = (Status.RUNNING, Status.SUCCEEDED)
_OBSTACLES = (Wait.HOLD, Wait.QUIET, Wait.PREVIOUS, Wait.PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about one schedule at ``now``, by the clock of the database.

    ``runs`` are the newest, newest fire time first. ``skips`` are fire times that ``skip()`` took
    out, with the reasons; those that have passed may have no run yet. ``unfinished`` are the oldest
    runs that have not ended, oldest first. ``queue`` is the queue of its messages, or None if it is
    not known. ``refused_content`` is their content type if ``accept_content`` of the application
    refuses it. ``default_overlap`` comes from the settings. ``pause`` is the pause in force, if the
    audit has it. ``spec`` is None if the row cannot be read. ``cap`` is the limit for which
    ``newest`` waits, and ``ignores_quiet`` is true if it does not wait for the end of quiet hours.
    """

    now: datetime
    schedule: ScheduleInfo
    is_overdue: bool
    holds: Sequence[HoldInfo] = ()
    pause: ChangeInfo | None = None
    runs: Sequence[RunInfo] = ()
    skips: Mapping[datetime, str] = field(default_factory=dict)
    unfinished: Sequence[RunInfo] = ()
    cap: Cap | None = None
    queue: str | None = None
    refused_content: str | None = None
    beats: Sequence[SeenNode] = ()
    workers: Sequence[SeenNode] = ()
    default_overlap: str = "allow"
    spec: ScheduleSpec | None = None
    next_fire_at: datetime | None = None
    ignores_quiet: bool = False

    @property
    def overlap(self) -> str:
        """The policy of the schedule, or the default in the settings."""
        return self.schedule.overlap or self.default_overlap

    @property
    def quiet(self) -> Quiet | None:
        """The quiet hours of the schedule."""
        return None if self.spec is None else self.spec.quiet

    def is_quiet_for(self, run: RunInfo) -> bool:
        """Return whether an unfinished run waits for the end of a quiet time.

        Beat stores that in the run. A run that waits for a place asks first, without a record.
        """
        asks = run.waited_for == Wait.PLACE and run.is_waiting and not self.ignores_quiet
        return (asks or run.waited_for == Wait.QUIET) and self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether it is quiet now for the owner of the schedule."""
        return bool(before_sending(now=self.now, held_until=None, quiet=self.quiet))

    @property
    def is_finished(self) -> bool:
        """Whether the schedule has no fire time left."""
        return self.schedule.finished_at is not None

    @property
    def newest(self) -> RunInfo | None:
        """The newest run whose fire time has passed; if it is well, a run that an obstacle stops.

        A run that was sent or started less than ON_TIME ago counts only if there is no other run,
        because it usually ends like the previous run.
        """
        passed = [run for run in self.runs if run.fire_at <= self.now]
        settled = (run for run in passed if not self._may_end(run))
        newest = next(settled, passed[0] if passed else None)
        if newest is not None and newest.status in _UNTROUBLED:
            stopped = (run for run in self.unfinished if run.is_waiting)
            return next((run for run in stopped if run.waited_for in _OBSTACLES), newest)
        return newest

    def _may_end(self, run: RunInfo) -> bool:
        is_new = self.age(run.started_at or run.created_at) < ON_TIME
        return is_new and run.finished_at is None and not run.is_waiting

    @property
    def consumers(self) -> list[SeenNode]:
        """The living workers that consume the queue of the schedule."""
        living = [worker for worker in self.workers if worker.is_alive]
        if self.queue is None:
            return living
        return [each for each in living if each.queues is None or self.queue in each.queues]

    @property
    def capable(self) -> list[SeenNode]:
        """The living workers that consume the queue and have the task."""
        task = self.schedule.task
        return [each for each in self.consumers if each.tasks is None or task in each.tasks]

    def outage(self) -> ReportedOutage | None:
        """Return what prevents the messages of this schedule from being published, or None."""
        # Manual SQL can write any JSON.
        options: object = self.schedule.options
        exchange = options.get("exchange") if isinstance(options, Mapping) else None
        names = {self.queue, self.schedule.task, exchange}
        reported = (each for beat in self.beats if beat.is_alive for each in beat.outages)
        publishing = (each for each in reported if each.kind in PUBLISHING)
        return next((each for each in publishing if each.name in names), None)

    @property
    def is_late(self) -> bool:
        """Whether its fire time passed more than ON_TIME ago; ``is_overdue`` allows more."""
        due = self.schedule.next_run_at
        return due is not None and self.age(due) > ON_TIME

    def age(self, instant: datetime) -> timedelta:
        """Return how long ago ``instant`` was."""
        return self.now - instant

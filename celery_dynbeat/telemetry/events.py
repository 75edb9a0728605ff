"""The events of runs, schedules, holds, passes and alerts, as frozen dataclasses.

The code of a transition builds an event only if ``has_listeners`` is true for its type, and emits
it once (``telemetry``). ``schedule`` is the name of the schedule. Instants are aware and
in UTC. No event contains arguments or results of a task.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypedDict, dataclass_transform

from celery_dynbeat.common.events import Event


@dataclass(frozen=True, slots=True)
class Record:
    """The log record of an event. ``text`` is a ``%`` format of its fields.

    repr() of names, as in ``%(schedule)r``, escapes line breaks: no name can forge a log line.
    Name, level and text may depend on the event; without a level it is not logged. The record does
    not hold ``hidden`` fields at all. The traceback of the field ``exception`` is logged if the
    logger is enabled for ``traceback_level``.
    """

    name: Event | Callable[[Any], Event]
    level: int | Callable[[Any], int | None]
    text: str | Callable[[Any], str]
    hidden: frozenset[str] = frozenset()
    traceback_level: int = logging.DEBUG


def _text_of_dropped(event: Any) -> str:
    ids = ", ".join(run["run_id"] for run in event.runs)
    more = ", ..." if event.count > len(event.runs) else ""
    return f"%(count)s outcomes of runs dropped: %(reason)s ({ids}{more})"


def _warning_once(event: Any) -> int:
    return logging.INFO if event.repeated else logging.WARNING


def _text_of_failed_ping(event: Any) -> str:
    to = "" if event.host is None else " to %(host)s"
    return f"ping %(ping)s of run %(run_id)s{to} failed: %(reason)s"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Event:
    """Makes each subclass a frozen dataclass with keyword-only fields.

    ``log`` is the record of the event, if it is logged.
    """

    log: ClassVar[Record | None] = None

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class BatchKind(StrEnum):
    """The reason why a batch of runs is sent.

    ``OVERDUE`` runs are sent again, or sent by the sweep first: manual runs and
    runs of batches.
    """

    DUE = "due"
    OVERDUE = "overdue"


class SentRun(_Event):
    """A run whose message the broker has accepted.

    ``lag`` is how long after its fire time the run was sent. ``queue`` may be unknown. ``attempt``
    is the attempt that the message starts. ``sent_before`` is true if an earlier message of the run
    had already been sent.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int
    queue: str | None
    fire_at: datetime
    lag: timedelta
    origin: str
    sent_before: bool


class SentRuns(Sequence[SentRun]):
    """The sent runs of a batch, in the order of the messages.

    They are built when a listener reads them.
    """

    def __init__(self, build: Callable[[], Sequence[SentRun]]) -> None:
        self._build: Callable[[], Sequence[SentRun]] | None = build

    @cached_property
    def _runs(self) -> Sequence[SentRun]:
        # The function refers to the whole batch with its arguments.
        build, self._build = self._build, None
        return () if build is None else tuple(build())

    def __reduce__(self) -> tuple[type, tuple[Sequence[SentRun]]]:
        """Copy and pickle it as a tuple."""
        return tuple, (self._runs,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._runs)

    def __repr__(self) -> str:
        return repr(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[SentRun]:
        return iter(self._runs)

    def __getitem__(self, index: Any) -> Any:
        """Return a run, or the runs of a slice."""
        return self._runs[index]


class RunsSent(_Event):
    """Beat published a batch of ``claimed`` runs, and the broker accepted ``sent`` of them."""

    runs: Sequence[SentRun]
    kind: BatchKind
    claimed: int
    sent: int

    @property
    def again(self) -> bool:
        """Whether the sweep sent the runs."""
        return self.kind is BatchKind.OVERDUE


class FireTimesSkipped(_Event):
    """A policy skipped ``count`` fire times of a schedule.

    ``fire_at`` is the newest fire time.
    """

    owner: str
    schedule: str
    task: str
    fire_at: datetime
    count: int
    reason: str


class RunStarted(_Event):
    """A worker starts an attempt. ``waited`` is the time since its message was sent, or None.

    ``pings`` is true if the schedule may have a ping URL.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    queue: str | None
    fire_at: datetime | None
    attempt: int
    waited: timedelta | None
    pings: bool


class RunRefused(_Event):
    """The guard dropped a message that may not start its run.

    ``attempt`` is the attempt that the message would start, if known. ``duplicate`` is true if
    another message of the run has started the run or will start it. ``redelivered`` is true if the
    broker redelivered the message of a run that is still running, which the run notes.
    ``undecided`` is true if the guard failed, or could not reach the database for too long.
    """

    log: ClassVar = Record(
        lambda event: Event.RUN_REDELIVERED if event.redelivered else Event.RUN_REFUSED,
        lambda event: logging.ERROR if event.undecided else logging.INFO,
        "run %(run_id)s refused: %(reason)s (schedule %(schedule)r of owner %(owner)r)",
        # The name and the level already contain this.
        hidden=frozenset({"redelivered", "undecided"}),
    )

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int | None
    reason: str
    duplicate: bool
    redelivered: bool = False
    undecided: bool = False


class RunDeferred(_Event):
    """The guard could not decide what to do with a message, so it published a copy for later.

    The copy is due after ``seconds``. ``attempt`` is the attempt that the message would start, if
    known.
    """

    log: ClassVar = Record(
        Event.RUN_DEFERRED,
        logging.WARNING,
        "run %(run_id)s deferred by %(seconds)s s: %(reason)s",
    )

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int | None
    seconds: float
    reason: str


class RunEnded(_Event):
    """The end of an attempt was written to the history, with the new status of its run.

    ``status`` is a final status or ``retrying``. ``duration`` is how long the body took, or None if
    it did not run or its process died. If the message is gone, ``task`` is "" and ``owner`` is
    None. ``at`` is when the attempt ended. ``pings`` is true if the schedule may have a ping URL.
    """

    run_id: str
    owner: str | None
    schedule: str | None
    task: str
    status: str
    attempt: int | None
    duration: timedelta | None
    error: str | None
    at: datetime
    pings: bool


class RunNotTerminated(_Event):
    """A run that a newer run replaces continues, because this kind of pool cannot terminate it.

    ``repeated`` is true if this worker has already reported this for another run.
    """

    log: ClassVar = Record(
        Event.RUN_NOT_TERMINATED,
        _warning_once,
        "run %(run_id)s cannot be terminated by the %(pool)r pool: use -P prefork, or another"
        " overlap",
        hidden=frozenset({"repeated"}),
    )

    run_id: str
    owner: str
    schedule: str
    attempt: int | None
    pool: str
    repeated: bool


class OutcomeBuffered(_Event):
    """The end of an attempt waits in memory, because ``error`` prevented the write.

    ``until`` describes the condition for the next try, such as "the database is reachable".
    ``owner``, ``schedule`` and ``attempt`` are None if they are not known.
    """

    log: ClassVar = Record(
        Event.OUTCOME_BUFFERED,
        logging.WARNING,
        "outcome of run %(run_id)s buffered until %(until)s: %(error)s",
    )

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    status: str
    until: str
    error: str


class DroppedOutcome(TypedDict):
    """The end of an attempt that is not written. A field is None if the message is gone."""

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    status: str


class OutcomesDropped(_Event):
    """The ends of ``count`` attempts are not written. ``runs`` are the first of them."""

    log: ClassVar = Record(Event.OUTCOME_DROPPED, logging.ERROR, _text_of_dropped)

    count: int
    reason: str
    runs: list[DroppedOutcome]


class PoolCheckFailed(_Event):
    """A worker could not compare its running runs with its pool. It tries again."""

    log: ClassVar = Record(
        Event.POOL_CHECK_FAILED,
        logging.WARNING,
        "runs of %(node)s not compared with its pool: %(error)s",
    )

    node: str
    error: str


class RunLost(_Event):
    """The worker of a run has died. If ``sent_again`` is true, beat sends the run again.

    ``schedule_id`` is None if the schedule was deleted.
    """

    log: ClassVar = Record(
        Event.RUN_LOST,
        logging.WARNING,
        lambda event: (
            f"run %(run_id)s is {'sent again' if event.sent_again else 'lost'}: %(reason)s"
            " (worker %(worker)r)"
        ),
    )

    run_id: str
    schedule_id: int | None
    owner: str
    schedule: str
    task: str
    attempt: int
    worker: str | None
    reason: str
    sent_again: bool
    at: datetime


class ReplacedRunLost(RunLost):
    """The worker of a run died, and a newer run was to replace that run. The run is revoked."""

    log: ClassVar = Record(
        Event.RUN_LOST,
        logging.WARNING,
        "run %(run_id)s is revoked: %(reason)s (worker %(worker)r)",
    )


class RunUnpublishable(_Event):
    """A run has failed, because its message can never be sent.

    Its schedule is quarantined, unless it was edited since. ``attempt`` is in the message.
    """

    log: ClassVar = Record(
        Event.RUN_UNPUBLISHABLE,
        logging.ERROR,
        "run %(run_id)s of schedule %(schedule)r of owner %(owner)r has failed, because it cannot"
        " be published: %(error)s",
    )

    run_id: str
    owner: str
    schedule: str
    attempt: int
    error: str


class RunDeclined(_Event):
    """The application's own code did not send a run. ``attempt`` is in the message."""

    log: ClassVar = Record(Event.RUN_DECLINED, logging.INFO, "run %(run_id)s not sent: %(reason)s")

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int
    reason: str


class ScheduleQuarantined(_Event):
    """A schedule cannot be planned or published.

    ``error`` is the text that the row stores. The log contains the traceback of ``exception``, if
    there is one.
    """

    log: ClassVar = Record(
        Event.SCHEDULE_QUARANTINED,
        logging.ERROR,
        "schedule %(schedule_id)s (%(schedule)r of owner %(owner)r) is quarantined: %(error)s",
        traceback_level=logging.ERROR,
    )

    schedule_id: int
    owner: str
    schedule: str
    error: str
    exception: Exception | None = None
    at: datetime


class SchedulePaused(_Event):
    """A schedule was paused. If ``automatic`` is true, its last ``failures`` runs had failed."""

    log: ClassVar = Record(
        Event.SCHEDULE_PAUSED,
        lambda event: logging.WARNING if event.automatic else None,
        "schedule %(schedule)r of owner %(owner)r is paused: %(failures)s failures in a row",
        # The error of a task can contain its arguments.
        hidden=frozenset({"reason"}),
    )

    schedule_id: int
    owner: str
    schedule: str
    task: str
    actor: str
    reason: str
    automatic: bool
    failures: int | None = None
    at: datetime


class TriggerUnsupported(_Event):
    """A due schedule has a kind of trigger that this version does not support."""

    log: ClassVar = Record(
        Event.TRIGGER_UNSUPPORTED,
        logging.WARNING,
        "schedule %(schedule)r of owner %(owner)r does not run: unsupported trigger kind"
        " %(trigger_kind)r; this version supports %(supported)s. Start a beat of a newer version,"
        " or correct trigger_kind",
    )

    schedule_id: int
    owner: str
    schedule: str
    trigger_kind: str
    supported: str


class OwnerCostly(_Event):
    """The schedules of an owner take a long time to plan. Other owners come first for some time."""

    log: ClassVar = Record(
        Event.OWNER_COSTLY,
        logging.WARNING,
        "schedules of owner %(owner)r take long to plan: other owners come first for"
        " %(second_for)s",
    )

    owner: str
    second_for: timedelta


class SchedulesHeld(_Event):
    """The due schedules of held owners wait for the end of the hold. ``schedules`` is a count."""

    log: ClassVar = Record(
        Event.SCHEDULES_HELD, logging.INFO, "%(schedules)s due schedules of held owners wait"
    )

    schedules: int


class PausesEnded(_Event):
    """Beat has resumed schedules at the end of their pause. ``schedules`` is a count."""

    log: ClassVar = Record(
        Event.PAUSES_ENDED, logging.INFO, "%(schedules)s schedules resumed: their pause has ended"
    )

    schedules: int


class CalendarInForce(_Event):
    """All schedules of a calendar are planned with its ``version``.

    ``after`` is the time since the edit.
    """

    log: ClassVar = Record(
        Event.CALENDAR_IN_FORCE,
        logging.INFO,
        "version %(version)s of the calendar %(calendar)r is in force for all its schedules"
        " %(after)s after the edit",
    )

    calendar: str
    version: int
    after: timedelta


class TerminationFailed(_Event):
    """``count`` runs continue although newer runs replace them.

    ``repeated`` is true if the previous failure had the same reason.
    """

    log: ClassVar = Record(
        Event.TERMINATE_FAILED,
        lambda event: logging.DEBUG if event.repeated else logging.WARNING,
        "%(count)s replaced runs continue: %(reason)s",
    )

    count: int
    reason: str
    repeated: bool


class ScheduleRecovered(_Event):
    """A run of a schedule that had been failing since ``failing_since`` succeeded."""

    schedule_id: int
    owner: str
    schedule: str
    failing_since: datetime


class HoldStarted(_Event):
    """A hold started. If ``owner`` is None, it holds everything.

    If ``until`` is None, it lasts until it is released.
    """

    owner: str | None
    actor: str
    reason: str
    until: datetime | None


class HoldReleased(_Event):
    """A hold was released. If ``owner`` is None, it had held everything."""

    owner: str | None
    actor: str
    reason: str
    until: datetime | None


class RetriesResent(_Event):
    """Beat sends ``count`` retries again.

    The retries had not started within ``resend_after`` after they were due.
    """

    log: ClassVar = Record(
        Event.RETRIES_RESENT,
        logging.WARNING,
        "%(count)s retries did not start within %(resend_after)s after they were due and are sent"
        " again",
    )

    count: int
    resend_after: timedelta


class PassEnded(_Event):
    """A pass of beat ended. ``error`` is the class of its error, or None if the pass succeeded.

    ``reason`` is a summary of the error. The next try is in ``retry_seconds``.
    """

    log: ClassVar = Record(
        Event.PASS_FAILED,
        lambda event: None if event.error is None else logging.ERROR,
        "pass failed, next try in %(retry_seconds).1f s: %(reason)s",
    )

    duration: timedelta
    error: str | None
    is_database_error: bool
    reason: str | None = None
    retry_seconds: float | None = None
    exception: Exception | None = None


class PassRecovered(_Event):
    """A pass of beat succeeded after ``failures`` passes that failed."""

    log: ClassVar = Record(Event.PASS_RECOVERED, logging.INFO, "beat works again")

    failures: int


class DutyFailed(_Event):
    """A duty of beat failed: rescue, pruning and others. Passes and other duties continue.

    ``reason`` is a summary of the error. ``failures`` counts the failures in a row. The next try is
    in ``retry_seconds``.
    """

    log: ClassVar = Record(
        Event.DUTY_FAILED,
        logging.ERROR,
        "the duty %(duty)r failed, next try in %(retry_seconds).0f s: %(reason)s",
    )

    duty: str
    reason: str
    failures: int
    retry_seconds: float
    exception: Exception | None = None


class RowLeftOut(_Event):
    """Beat leaves out a row for some minutes, and tries it again.

    The database refuses each change of the row, or the row needs a newer tz database. ``kind`` is
    "schedule", "run" or "the alert of schedule", and ``id`` is an id. The event is sent once, until
    the row is accepted.
    """

    log: ClassVar = Record(
        Event.ROW_LEFT_OUT,
        logging.ERROR,
        "%(kind)s %(id)s (%(schedule)r of owner %(owner)r) is left out and tried again later:"
        " %(reason)s",
    )

    kind: str
    id: str
    owner: str
    schedule: str
    reason: str
    exception: Exception | None = None


class PublishFailed(_Event):
    """A run was not published. Beat tries again, or quarantines the schedule if ``permanent``."""

    run_id: str
    owner: str
    schedule: str
    task: str
    permanent: bool


class NotificationReceived(_Event):
    """A change notification woke beat."""


class HistoryPruned(_Event):
    """Beat deleted ``count`` rows from ``table``, which is "run" or "change"."""

    log: ClassVar = Record(
        Event.HISTORY_PRUNED,
        logging.DEBUG,
        "%(count)s rows of table %(table)s older than %(older_than)s deleted",
    )

    table: str
    count: int
    older_than: timedelta


class AlertOpened(_Event):
    """An alert opened. If it is about the installation, ``schedule_id`` is 0 and names are empty.

    ``kind`` is one of the kinds in docs/how-to/monitor.md. ``run_id`` is the run that the alert
    is about, if any.
    """

    log: ClassVar = Record(
        Event.ALERT_OPENED,
        logging.INFO,
        "alert %(kind)s of schedule %(schedule)r of owner %(owner)r",
    )

    kind: str
    schedule_id: int
    owner: str
    schedule: str
    task: str
    opened_at: datetime
    run_id: str | None
    cause: str


class AlertRecovered(AlertOpened):
    """An alert has ended. ``cause`` is why it had opened."""

    log: ClassVar = Record(
        Event.ALERT_RECOVERED,
        logging.INFO,
        "alert %(kind)s of schedule %(schedule)r of owner %(owner)r has ended",
    )


class AlertMessageSent(_Event):
    """A URL has accepted a message about alerts. ``url`` is its position in the setting, from 1."""

    log: ClassVar = Record(Event.ALERT_SENT, logging.INFO, "%(alerts)s alerts sent to URL %(url)s")

    url: int
    alerts: int


class AlertMessageDropped(_Event):
    """Beat has stopped trying to deliver alerts to a URL, which has refused them for a day."""

    log: ClassVar = Record(
        Event.ALERT_DROPPED,
        logging.ERROR,
        "%(alerts)s alerts were not delivered to URL %(url)s of dynbeat_alert_urls: %(error)s",
    )

    url: int
    alerts: int
    error: str


class PingsDropped(_Event):
    """A worker dropped ``count`` pings of runs. ``reason`` says why.

    ``repeated`` is true if the previous ping was dropped for the same reason.
    """

    log: ClassVar = Record(
        Event.PING_DROPPED,
        lambda event: None if event.repeated else logging.WARNING,
        "%(count)s pings of runs dropped: %(reason)s",
        hidden=frozenset({"repeated"}),
    )

    count: int
    reason: str
    repeated: bool = False


class PingFailed(_Event):
    """A ping was not accepted, or its URL is not allowed.

    ``host`` is the origin of the URL, or None if the URL was not read. ``repeated`` says that the
    previous ping to this host also failed. ``owner`` and ``schedule`` are None if the message is
    gone.
    """

    log: ClassVar = Record(
        Event.PING_FAILED, _warning_once, _text_of_failed_ping, hidden=frozenset({"repeated"})
    )

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    ping: str
    host: str | None
    reason: str
    repeated: bool

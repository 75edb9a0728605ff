"""What happens to a run, a schedule, a hold, a pass or an alert: one frozen dataclass each.

The code of a transition builds an event only if ``has_listeners`` is true for its type, and emits
it once (``telemetry.emitting``). ``schedule`` is the name of the schedule. Instants are aware and
in UTC. No event contains arguments or results of a task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, TypedDict


class BatchKind(StrEnum):
    """Why a batch of runs is sent. ``OVERDUE``: again, or for the first time after ``run_now``."""

    DUE = "due"
    OVERDUE = "overdue"
    BACKFILL = "backfill"
    RERUN = "rerun"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRun:
    """A run whose message the broker has accepted.

    ``lag`` is how long after its fire time the message was sent. ``queue`` None: unknown.
    ``attempt`` is the one that the message starts. ``sent_before``: an earlier message of the run
    was sent too.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int
    queue: str | None
    scheduled_for: datetime
    lag: timedelta
    origin: str
    sent_before: bool


class SentRuns(Sequence[SentRun]):
    """The sent runs of a batch, in the order of the messages. Built when a listener reads them."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSent:
    """A batch of ``claimed`` runs was published, and ``sent`` of them were accepted."""

    runs: Sequence[SentRun]
    kind: BatchKind
    claimed: int
    sent: int

    @property
    def again(self) -> bool:
        """Whether the sweep sent the runs."""
        return self.kind is BatchKind.OVERDUE


@dataclass(frozen=True, slots=True, kw_only=True)
class FireTimesSkipped:
    """A policy skipped ``count`` fire times of a schedule. ``scheduled_for`` is the newest."""

    owner: str
    schedule: str
    task: str
    scheduled_for: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A worker starts an attempt of a run. ``waited``: since its message was sent, if known.

    ``pings``: the schedule may have a ping URL.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    queue: str | None
    scheduled_for: datetime | None
    attempt: int
    waited: timedelta | None
    pings: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRefused:
    """The guard dropped a message that may not start its run.

    ``attempt`` is the one that the message starts, if known. ``duplicate``: another message of the
    run has started it, or will. ``redelivered``: the broker delivered the message again while the
    run is running, and the run notes that. ``undecided``: the guard failed, or could not reach the
    database for too long.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int | None
    reason: str
    duplicate: bool
    redelivered: bool = False
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeferred:
    """The guard could not decide about a message, and published a copy for a later start.

    The copy starts after ``seconds``. ``attempt`` is the one that the message starts, if known.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int | None
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The end of an attempt is written to the history, with the new status of its run.

    ``status`` is a final status or ``retrying``. ``duration`` is that of the body; None if the
    body did not run, or its process died. ``task`` "" and ``owner`` None: unknown, because the
    message is gone. ``at`` is when the attempt ended. ``pings``: the schedule may have a ping URL.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotTerminated:
    """A run that a newer run replaces continues: this kind of pool cannot terminate it.

    ``repeated``: this worker has reported it of another run.
    """

    run_id: str
    owner: str
    schedule: str
    attempt: int | None
    pool: str
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeBuffered:
    """The end of an attempt waits in memory: it was not written, because of ``error``.

    ``until`` says for what it waits. None: the message is gone.
    """

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    status: str
    until: str
    error: str


class DroppedOutcome(TypedDict):
    """The end of an attempt that is not written. None: the message is gone."""

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomesDropped:
    """The ends of ``count`` attempts are not written. ``runs`` are the first of them."""

    count: int
    reason: str
    runs: list[DroppedOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomesHandedOver:
    """A pool process ends, and its main process writes ``count`` ends of attempts."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCheckFailed:
    """A worker could not compare its running runs with its pool. It tries again."""

    node: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLost:
    """The worker of a run died. ``sent_again``: beat sends the run once more.

    ``schedule_id`` None: the schedule was deleted.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedRunLost(RunLost):
    """The worker of a run died that a newer run was to replace. The run is revoked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUnpublishable:
    """A run has failed, because its message can never be sent.

    Its schedule is quarantined, unless it was edited since. ``attempt`` is that of the message.
    None: unknown, because the row of the run cannot be read.
    """

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeclined:
    """The application's own code did not send a run. ``attempt`` is that of the message."""

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRun:
    """The oldest due run of a schedule, and how late it is. Jitter and holds do not count.

    ``run_id`` None: the run is not made yet, because its queue is refused. ``has_own_rule``: the
    schedule's own alert rules say from when a run is late.
    """

    run_id: str | None
    schedule_id: int
    late_by: timedelta
    has_own_rule: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsLate:
    """A claim found runs that are late by more than a second."""

    runs: Sequence[LateRun]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQuarantined:
    """A schedule cannot be planned or published.

    ``owner`` and ``schedule`` None: they cannot be read. ``error`` is the text that the row stores.
    ``exception`` None: its traceback may contain a value of the row.
    """

    schedule_id: int
    owner: str | None
    schedule: str | None
    error: str
    exception: Exception | None = None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePaused:
    """A schedule was paused. ``automatic``: because its last ``failures`` runs failed."""

    schedule_id: int
    owner: str
    schedule: str
    task: str
    actor: str
    reason: str
    automatic: bool
    failures: int | None = None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerUnsupported:
    """A due schedule has a kind of trigger that this version does not support."""

    schedule_id: int
    owner: str
    schedule: str
    trigger_kind: str
    supported: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerCostly:
    """The schedules of an owner take long to plan. The other owners come first for a time."""

    owner: str
    second_for: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesHeld:
    """The due schedules of held owners wait for the end of the hold. ``schedules`` is a count."""

    schedules: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationFailed:
    """``count`` runs that newer runs replace continue. ``repeated``: for the same reason again."""

    count: int
    reason: str
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecovered:
    """A run of a schedule succeeded whose earlier runs had failed since ``failing_since``."""

    schedule_id: int
    owner: str
    schedule: str
    failing_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUnreadable:
    """Beat cannot read the history of a schedule, and does not correct its ``failing_since``."""

    schedule_id: int
    owner: str
    schedule: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldStarted:
    """A hold started. ``owner`` None: it holds everything. ``until`` None: until its release."""

    owner: str | None
    actor: str
    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReleased:
    """A hold was released. ``owner`` None: it held everything."""

    owner: str | None
    actor: str
    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesResent:
    """Beat sends ``count`` retries again.

    They did not start within ``resend_after`` after they were due.
    """

    count: int
    resend_after: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnded:
    """A pass of beat ended. ``error`` is the class of its error, None if it succeeded.

    ``reason`` is the summary of the error. The next try is in ``retry_seconds``.
    """

    duration: timedelta
    error: str | None
    is_database_error: bool
    reason: str | None = None
    retry_seconds: float | None = None
    exception: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecovered:
    """A pass of beat succeeded after ``failures`` passes that failed."""

    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed:
    """A run was not published. ``permanent``: its schedule is quarantined. Else beat retries."""

    run_id: str
    owner: str
    schedule: str
    task: str
    permanent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationReceived:
    """A change notification woke beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPruned:
    """Beat deleted ``count`` rows of ``table``, which is "run" or "change"."""

    table: str
    count: int
    older_than: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFactsStored:
    """Facts for alerts were stored. Beat evaluates them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOpened:
    """An alert was opened. One about beats or workers has ``schedule_id`` 0, and empty names.

    ``kind`` is one of the kinds of docs/reference/alerts.md. ``run_id`` is the last run that it is
    about, if any. ``value`` is how late or how slow that run was. ``detail`` is the error, if any.
    """

    kind: str
    schedule_id: int
    owner: str
    schedule: str
    task: str
    opened_at: datetime
    run_id: str | None
    value: timedelta | None
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecovered(AlertOpened):
    """The subject of an alert has recovered from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessageSent:
    """All URLs of a target have accepted a message about alerts."""

    target: str
    severity: str
    message_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessageDropped:
    """Beat no longer tries to deliver a message about alerts."""

    target: str
    severity: str
    message_id: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PingsDropped:
    """A worker does not send ``count`` pings of runs, for ``reason``.

    ``repeated``: nor the one before them, for the same reason.
    """

    count: int
    reason: str
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFailed:
    """A ping was not accepted, or its URL is not allowed.

    ``host`` is the origin of the URL, None if it was not read. ``repeated``: the ping before it to
    this host failed, too. ``owner`` and ``schedule`` None: the message is gone.
    """

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    ping: str
    host: str | None
    reason: str
    repeated: bool

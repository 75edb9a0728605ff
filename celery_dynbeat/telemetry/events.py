"""The events of runs, schedules, holds, passes and alerts, as frozen dataclasses.

The code of a transition builds an event only if ``has_listeners`` is true for its type, and emits
it once (``telemetry``). ``schedule`` is the name of the schedule. Instants are aware and
in UTC. No event contains arguments or results of a task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, FrozenInstanceError, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, NoReturn, TypedDict, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Event:
    """Makes each subclass a frozen dataclass with keyword-only fields.

    ``dataclass`` compiles six methods for a frozen class, which takes 0.4 ms. A beat or a worker
    defines forty, so they share these methods.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False, match_args=False)(cls)

    def __init__(self, **values: Any) -> None:
        names = self.__dataclass_fields__.keys()
        if values.keys() != names:
            wrong = {name for name in names - values.keys() if not hasattr(self, name)}
            if wrong := wrong | (values.keys() - names):
                msg = f"{type(self).__name__}: missing or unknown: {', '.join(sorted(wrong))}"
                raise TypeError(msg)
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        msg = f"cannot assign to field {name!r}"
        raise FrozenInstanceError(msg)

    def __delattr__(self, name: str) -> NoReturn:
        msg = f"cannot delete field {name!r}"
        raise FrozenInstanceError(msg)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Event) and (
            type(self) is type(other) and self._values() == other._values()
        )

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        pairs = zip(self.__dataclass_fields__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={each!r}' for name, each in pairs)})"


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
    scheduled_for: datetime
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

    ``scheduled_for`` is the newest fire time.
    """

    owner: str
    schedule: str
    task: str
    scheduled_for: datetime
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
    scheduled_for: datetime | None
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

    count: int
    reason: str
    runs: list[DroppedOutcome]


class OutcomesHandedOver(_Event):
    """A pool process ends, and its main process writes ``count`` ends of attempts."""

    count: int


class PoolCheckFailed(_Event):
    """A worker could not compare its running runs with its pool. It tries again."""

    node: str
    error: str


class RunLost(_Event):
    """The worker of a run has died. If ``sent_again`` is true, beat sends the run again.

    ``schedule_id`` is None if the schedule was deleted.
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


class ReplacedRunLost(RunLost):
    """The worker of a run died, and a newer run was to replace that run. The run is revoked."""


class RunUnpublishable(_Event):
    """A run has failed, because its message can never be sent.

    Its schedule is quarantined, unless it was edited since. ``attempt`` is in the message.
    """

    run_id: str
    owner: str
    schedule: str
    attempt: int
    error: str


class RunDeclined(_Event):
    """The application's own code did not send a run. ``attempt`` is in the message."""

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int
    reason: str


class LateRun(_Event):
    """The oldest due run of a schedule, and how late it is. Window and holds do not count.

    If ``run_id`` is None, the run does not exist yet, because its queue is refused.
    """

    run_id: str | None
    schedule_id: int
    late_by: timedelta


class RunsLate(_Event):
    """A claim found runs that are late by more than a second."""

    runs: Sequence[LateRun]
    at: datetime


class ScheduleQuarantined(_Event):
    """A schedule cannot be planned or published.

    ``error`` is the text that the row stores. The log contains the traceback of ``exception``, if
    there is one.
    """

    schedule_id: int
    owner: str
    schedule: str
    error: str
    exception: Exception | None = None
    at: datetime


class SchedulePaused(_Event):
    """A schedule was paused. If ``automatic`` is true, its last ``failures`` runs had failed."""

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

    schedule_id: int
    owner: str
    schedule: str
    trigger_kind: str
    supported: str


class OwnerCostly(_Event):
    """The schedules of an owner take a long time to plan. Other owners come first for some time."""

    owner: str
    second_for: timedelta


class SchedulesHeld(_Event):
    """The due schedules of held owners wait for the end of the hold. ``schedules`` is a count."""

    schedules: int


class PausesEnded(_Event):
    """Beat has resumed schedules at the end of their pause. ``schedules`` is a count."""

    schedules: int


class CalendarInForce(_Event):
    """All schedules of a calendar are planned with its ``version``.

    ``after`` is the time since the edit.
    """

    calendar: str
    version: int
    after: timedelta


class TerminationFailed(_Event):
    """``count`` runs continue although newer runs replace them.

    ``repeated`` is true if the previous failure had the same reason.
    """

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

    count: int
    resend_after: timedelta


class PassEnded(_Event):
    """A pass of beat ended. ``error`` is the class of its error, or None if the pass succeeded.

    ``reason`` is a summary of the error. The next try is in ``retry_seconds``.
    """

    duration: timedelta
    error: str | None
    is_database_error: bool
    reason: str | None = None
    retry_seconds: float | None = None
    exception: Exception | None = None


class PassRecovered(_Event):
    """A pass of beat succeeded after ``failures`` passes that failed."""

    failures: int


class DutyFailed(_Event):
    """A duty of beat failed: rescue, pruning and others. Passes and other duties continue.

    ``reason`` is a summary of the error. ``failures`` counts the failures in a row. The next try is
    in ``retry_seconds``.
    """

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

    table: str
    count: int
    older_than: timedelta


class AlertOpened(_Event):
    """An alert opened. If it is about the installation, ``schedule_id`` is 0 and names are empty.

    ``kind`` is one of the kinds in docs/how-to/monitor.md. ``run_id`` is the run that the alert
    is about, if any.
    """

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


class AlertMessageSent(_Event):
    """A URL has accepted a message about alerts. ``url`` is its position in the setting, from 1."""

    url: int
    alerts: int


class AlertMessageDropped(_Event):
    """Beat has stopped trying to deliver alerts to a URL, which has refused them for a day."""

    url: int
    alerts: int
    error: str


class PingsDropped(_Event):
    """A worker dropped ``count`` pings of runs. ``reason`` says why.

    ``repeated`` is true if the previous ping was dropped for the same reason.
    """

    count: int
    reason: str
    repeated: bool = False


class PingFailed(_Event):
    """A ping was not accepted, or its URL is not allowed.

    ``host`` is the origin of the URL, or None if the URL was not read. ``repeated`` says that the
    previous ping to this host also failed. ``owner`` and ``schedule`` are None if the message is
    gone.
    """

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    ping: str
    host: str | None
    reason: str
    repeated: bool

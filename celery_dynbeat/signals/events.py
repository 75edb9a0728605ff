"""The arguments of the signals: one frozen dataclass for each kind of event.

``schedule`` is the name of the schedule. Instants are aware and in UTC. None of them contains
arguments or results of a task.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRun:
    """A run whose message the broker has accepted.

    ``lag`` is how long after its fire time the message was sent. ``queue`` None: unknown.
    ``sent_before``: an earlier message of the run was sent too.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    queue: str | None
    scheduled_for: datetime
    lag: timedelta
    origin: str
    sent_before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSent:
    """A batch of runs was sent. ``again``: these runs were sent before, and did not start."""

    runs: tuple[SentRun, ...]
    again: bool


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
    """A worker starts an attempt of a run. ``waited``: since its message was sent, if known."""

    run_id: str
    owner: str
    schedule: str
    task: str
    queue: str | None
    scheduled_for: datetime | None
    attempt: int
    waited: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRefused:
    """The guard dropped a message that may not start its run.

    ``duplicate``: another message of the run has started it, or will.
    """

    run_id: str
    owner: str
    schedule: str
    task: str
    reason: str
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeferred:
    """The guard could not decide about a message, and published a copy for a later start."""

    run_id: str
    owner: str
    schedule: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The end of an attempt is written to the history, with the new status of its run.

    ``status`` is a final status or ``retrying``. ``duration`` is that of the body; None if the
    body did not run, or its process died. ``task`` "" and ``owner`` None: unknown, because the
    message is gone.
    """

    run_id: str
    owner: str | None
    schedule: str | None
    task: str
    status: str
    attempt: int | None
    duration: timedelta | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLost:
    """The worker of a run died. ``sent_again``: beat sends the run once more."""

    run_id: str
    owner: str
    schedule: str
    task: str
    attempt: int
    worker: str | None
    reason: str
    sent_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQuarantined:
    """A schedule cannot be planned or published. ``owner`` None: its row cannot be read."""

    schedule_id: int
    owner: str | None
    schedule: str | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePaused:
    """A schedule was paused. ``automatic``: because its runs failed."""

    owner: str
    schedule: str
    task: str
    actor: str
    reason: str
    automatic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecovered:
    """A run of a schedule succeeded whose earlier runs had failed since ``failing_since``."""

    schedule_id: int
    owner: str
    schedule: str
    failing_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldChanged:
    """A hold started or was released. ``owner`` None: the hold of everything."""

    owner: str | None
    actor: str
    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesResent:
    """Beat sends ``count`` retries again that the broker has lost."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnded:
    """A pass of beat ended. ``error`` is the class of its error, None if it succeeded."""

    duration: timedelta
    error: str | None
    is_database_error: bool


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
    """Beat deleted ``count`` old rows of ``table``, which is "run" or "change"."""

    table: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChanged:
    """An alert of a schedule was opened, or the schedule recovered from it.

    An alert about beats or workers has the ``schedule_id`` 0, and empty names.
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
class AlertMessageEnded:
    """A message was accepted by all URLs of its target, or dropped (``error``)."""

    target: str
    severity: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PingsDropped:
    """A worker does not send ``count`` pings of runs. ``reason`` is that of the log record."""

    count: int
    reason: str

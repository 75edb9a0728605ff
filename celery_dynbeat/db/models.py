"""The tables. Each rule that must hold is a named constraint.

A manual INSERT works, because every column with a sensible default has a server default, and beat
plans an enabled row that has no next run.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column

from celery_dynbeat import db
from celery_dynbeat.common.alert_kinds import AlertKind, Report
from celery_dynbeat.common.states import REQUESTED_ORIGINS, Origin, Status
from celery_dynbeat.common.text import NAME_LENGTH, NOTE_LENGTH
from celery_dynbeat.db import PREFIX, TableNames
from celery_dynbeat.db.types import (
    ExactText,
    Json,
    LongText,
    RunId,
    RunInstant,
    UtcDateTime,
    Window,
    utc_now,
)


class NodeKind(StrEnum):
    """The kind of a node."""

    BEAT = "beat"
    WORKER = "worker"


class Base(DeclarativeBase):
    """The declarative base of the package, with one naming convention for constraints."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        },
    )


BigId = BigInteger().with_variant(Integer, "sqlite")
EMPTY_LIST = text("('[]')")
EMPTY_OBJECT = text("('{}')")
#: Characters of the name of a calendar.
CALENDAR_NAME_LENGTH = 100
#: The columns of a schedule in seconds.
DURATIONS = ("catch_up_window", "expires_after", "finish_within", "max_run_time")


def _known(column: str, values: Iterable[str]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Schedule(Base):
    """A schedule of an owner: its task, trigger and policies, and its next fire time.

    ``next_run_at`` is NULL when the schedule is paused, finished or quarantined. The row is then
    not in the index that beat reads. An enabled row without next_run_at, finished_at and error is
    unplanned.
    """

    __tablename__ = "dynbeat_schedule"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    # "" is the application itself. NOT NULL, because two NULLs never collide in a unique
    # constraint.
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    task: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    args: Mapped[list[Any]] = mapped_column(Json("array"), server_default=EMPTY_LIST)
    kwargs: Mapped[dict[str, Any]] = mapped_column(Json("object"), server_default=EMPTY_OBJECT)
    options: Mapped[dict[str, Any]] = mapped_column(Json("object"), server_default=EMPTY_OBJECT)
    trigger_kind: Mapped[str] = mapped_column(ExactText(32))
    trigger_spec: Mapped[str] = mapped_column(Text)
    # The first name of a renamed schedule, which seeds the hashes of H and the window. NULL means
    # that `name` does.
    hash_name: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    timezone: Mapped[str] = mapped_column(ExactText(64), server_default="UTC")
    # The trigger names no time zone: `timezone` follows the owner's.
    inherits_timezone: Mapped[bool] = mapped_column(server_default=false())
    # The quiet hours of the owner and everybody, as planning.quiet_hours reads them.
    quiet_hours: Mapped[str | None] = mapped_column(Text)
    # The anchor of an interval that has none in its spec. NULL means start_at, or else created_at.
    anchor_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    enabled: Mapped[bool] = mapped_column(server_default=true())
    # Why the schedule is paused. NULL means that it is not paused, or that no reason was given.
    paused_reason: Mapped[str | None] = mapped_column(Text)
    # When beat resumes the paused schedule. NULL means that it stays paused until resume().
    paused_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    start_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    max_runs: Mapped[int | None]
    run_count: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # NULL means that the setting dynbeat_catch_up applies.
    catch_up: Mapped[str | None] = mapped_column(ExactText(16))
    # These and max_run_time are in seconds. Here and below, NULL means that the setting of the same
    # name applies.
    catch_up_window: Mapped[float | None] = mapped_column(Double)
    expires_after: Mapped[float | None] = mapped_column(Double)
    # Without a setting. NULL means no limit.
    finish_within: Mapped[float | None] = mapped_column(Double)
    # Seconds, or a share of the time up to the next fire time.
    window: Mapped[float | str | None] = mapped_column(Window)
    max_run_time: Mapped[float | None] = mapped_column(Double)
    overlap: Mapped[str | None] = mapped_column(ExactText(16))
    on_lost: Mapped[str | None] = mapped_column(ExactText(16))
    # 0 means never, regardless of the setting.
    pause_after_failures: Mapped[int | None]
    # The retry policy, as Retry.to_json returns it.
    retry: Mapped[dict[str, Any] | None] = mapped_column(Json("object"))
    # The first fire time that is neither sent nor recorded as skipped. A paused or quarantined
    # schedule keeps it, so that the fire times it misses can be recorded.
    next_fire_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When beat claims the schedule: next_fire_at, after quiet hours and the offset in the window.
    next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When beat found the due schedule held. next_run_at is then the end of the hold.
    held_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The fire times that skip() took out, with the reasons, until beat records that they passed.
    skips: Mapped[dict[str, str] | None] = mapped_column(Json("object"))
    # The newest fire time that became a run. NULL means that there is none yet.
    last_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When the first run of the current series of failed or lost runs ended. NULL means that the
    # last ended run succeeded.
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When the schedule had no further fire time. NULL means that it is not finished.
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Why the row is quarantined. NULL means that it is not quarantined.
    error: Mapped[str | None] = mapped_column(LongText)
    description: Mapped[str] = mapped_column(ExactText(1024), server_default="")
    tags: Mapped[list[str]] = mapped_column(
        Json("array", is_searched=True), server_default=EMPTY_LIST
    )
    # Where a worker reports the start and the end of each run. It can contain a token.
    ping_url: Mapped[str | None] = mapped_column(Text)
    # "config" means that the row follows an entry of Celery's beat_schedule. "" means that the API
    # created it.
    managed_by: Mapped[str] = mapped_column(ExactText(16), server_default="")
    version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())

    __table_args__ = (
        UniqueConstraint("owner", "name"),
        CheckConstraint("name <> ''", name="name_given"),
        # A timedelta of NaN or of more seconds cannot be read.
        *(
            CheckConstraint(f"{name} >= 0 AND {name} < 1e10", name=f"{name}_in_range")
            for name in DURATIONS
        ),
        _known("catch_up", ("latest", "all", "none")),
        _known("overlap", ("allow", "skip", "buffer_one", "cancel_previous")),
        _known("on_lost", ("record", "rerun")),
        CheckConstraint(
            "next_run_at IS NULL OR (enabled AND finished_at IS NULL AND error IS NULL)",
            name="next_run_only_when_live",
        ),
    )


class Run(Base):
    """One fire time of one schedule; its id is the Celery task id.

    A ``skipped`` row represents one or more fire times that a policy skipped. ``fire_count`` is
    their number, and ``fire_at`` is the newest of them.
    """

    __tablename__ = "dynbeat_run"

    id: Mapped[str] = mapped_column(RunId, primary_key=True)
    # NULL after the schedule is deleted. The history remains, with owner and name.
    schedule_id: Mapped[int | None] = mapped_column(
        BigId,
        ForeignKey("dynbeat_schedule.id", ondelete="SET NULL"),
    )
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    task: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    fire_at: Mapped[datetime] = mapped_column(RunInstant)
    fire_count: Mapped[int] = mapped_column(server_default="1")
    status: Mapped[str] = mapped_column(ExactText(16))
    origin: Mapped[str] = mapped_column(ExactText(16), server_default=Origin.SCHEDULE)
    # The number of starts of the task's body for any reason, which is the number of the current
    # attempt. `retries` is Celery's own counter.
    attempt: Mapped[int] = mapped_column(server_default="0")
    retries: Mapped[int] = mapped_column(server_default="0")
    # The number of attempts that their task has postponed. They do not count as attempts that may
    # have killed their worker.
    postponements: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(RunInstant, server_default=utc_now())
    # When the sweep sends the run again, for its present attempt or for the retry of a failed
    # attempt. NULL after its start.
    overdue_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # The queue of the first message. NULL if the run was not sent, or the queue is not known.
    queue: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    # When the run's first message was sent. NULL means that none has been sent yet.
    sent_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # When the current attempt started. NULL means that it has not started yet.
    started_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # When the run ended. NULL means that it has not ended yet.
    finished_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # What the run waits for, or last waited for, and since when it could be sent. NULL in
    # ``ready_at`` means that the run did not wait, or still waits.
    waited_for: Mapped[str | None] = mapped_column(ExactText(16))
    # When a run that waited could be sent. NULL means that it did not wait, or still waits.
    ready_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # The key by which a limit counts the run, if a limit applies.
    running_key: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    # Whether a caller asked that the first attempt does not wait for the end of quiet hours.
    ignores_quiet_hours: Mapped[bool] = mapped_column(default=False, server_default=false())
    # When the retry is due, while the run is retrying. On an ended run: when maintenance corrects
    # failing_since of its schedule (store.failing).
    retry_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # When a newer run replaced this one (overlap). No worker starts this run again.
    cancelled_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # The name of the worker that executes or executed the current attempt. NULL means that there is
    # none yet.
    worker: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    # The id of the pool process that executes or executed the current attempt. NULL means that
    # there is none yet, or that it is not known.
    worker_pid: Mapped[int | None]
    # The attempt during which the broker delivered the run's message again. If this is the current
    # attempt and its worker loses it, the run is sent again, independent of on_lost.
    redelivered_attempt: Mapped[int | None]
    # The batch that the run belongs to. The ids of its runs and its own id begin with one instant.
    batch_id: Mapped[str | None] = mapped_column(RunId)
    # The run whose fire time a rerun runs again. It may be pruned: not a foreign key.
    rerun_of: Mapped[str | None] = mapped_column(RunId)
    # The fire time of that run, which the task receives. fire_at is unique for a schedule,
    # so the fire_at of a rerun is a free microsecond after the fire time.
    nominal_at: Mapped[datetime | None] = mapped_column(RunInstant)
    # Why the run failed, or was lost, skipped, revoked or expired. NULL means that there was no
    # error.
    error: Mapped[str | None] = mapped_column(LongText)
    # The traceback of the exception. NULL means that there is no traceback.
    traceback: Mapped[str | None] = mapped_column(LongText)
    # One line for each earlier attempt that failed or was lost (store.runs.error_line).
    earlier_errors: Mapped[str | None] = mapped_column(LongText)
    # The task's note about the run, from note().
    note: Mapped[str | None] = mapped_column(ExactText(NOTE_LENGTH))

    __table_args__ = (
        # This constraint makes a second run for a fire time impossible.
        UniqueConstraint("schedule_id", "fire_at"),
        _known("status", Status),
        _known("origin", Origin),
        # Only a run whose next attempt has not started can be overdue.
        CheckConstraint(
            "overdue_at IS NULL OR status IN ('pending', 'sent', 'retrying')",
            name="overdue_only_unstarted",
        ),
    )


class Hold(Base):
    """A temporary stop of all schedules of an owner, or of all schedules if ``owner`` is NULL.

    There is one row for each scope. A release, or ``until_at``, ends the stop.
    """

    __tablename__ = "dynbeat_hold"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    # The held owner. NULL means that all owners are held.
    owner: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    # True if ``owner`` is NULL, otherwise NULL, because two NULLs never collide in a unique
    # constraint.
    everything: Mapped[bool | None] = mapped_column()
    actor: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    reason: Mapped[str] = mapped_column(ExactText(1024), server_default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    # NULL means until release().
    until_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (UniqueConstraint("owner"), UniqueConstraint("everything"))


class Change(Base):
    """One edit of a schedule, of an owner, or of everything, for the audit.

    ``owner`` NULL means everything; ``name`` "" means the owner. ``old_values`` and
    ``new_values`` hold the fields that the edit changed.
    """

    __tablename__ = "dynbeat_change"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    # The owner of the schedule or the data. NULL means that the edit concerns all owners.
    owner: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    action: Mapped[str] = mapped_column(ExactText(32))
    actor: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    reason: Mapped[str] = mapped_column(ExactText(1024), server_default="")
    # The changed fields before the edit, as in ScheduleInfo.to_dict(). NULL means that there were
    # none.
    old_values: Mapped[dict[str, Any] | None] = mapped_column(Json("object"))
    # The changed fields after the edit. NULL means that there are none.
    new_values: Mapped[dict[str, Any] | None] = mapped_column(Json("object"))


class Owner(Base):
    """The settings for all schedules of an owner. Calls that depend on it lock this row."""

    __tablename__ = "dynbeat_owner"

    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), primary_key=True)
    # The time zone of triggers that name none. NULL means that the setting dynbeat_timezone
    # applies.
    timezone: Mapped[str | None] = mapped_column(ExactText(64))
    # The quiet hours of the owner, as QuietRule.to_json returns them, or NULL.
    quiet_hours: Mapped[dict[str, Any] | None] = mapped_column(Json("object"))


class Application(Base):
    """The name of the application that the tables belong to. Its first beat writes the only row.

    A beat of another application does not start. ``beat_schedule`` is the digest of the entries of
    Celery's ``beat_schedule`` and their rows when they last agreed. None means that the rows must
    be written.
    """

    __tablename__ = "dynbeat_application"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    # The digest of the entries of beat_schedule and of the versions of their rows, when they last
    # agreed. NULL means that the next beat writes the entries.
    beat_schedule: Mapped[str | None] = mapped_column(ExactText(64))
    # The digest of the entries alone, of the beat that wrote the rows.
    entries_digest: Mapped[str | None] = mapped_column(ExactText(64))
    # The release of the tz database of the first beat, or of the last `dynbeat replan`.
    tz_release: Mapped[str | None] = mapped_column(ExactText(16))

    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)


class Lock(Base):
    """A row that processes lock, so that only one of them does a duty. They insert it.

    Work that needs no transaction is done by the node ``leased_by`` until ``leased_until``. A duty
    that works through the history has done everything before ``done_until``.
    """

    __tablename__ = "dynbeat_lock"

    name: Mapped[str] = mapped_column(ExactText(32), primary_key=True)
    # The beat that sends the messages about alerts. NULL means that no beat has sent one.
    leased_by: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    leased_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The end of the minutes that the rollup has counted. NULL means that it has counted none, or
    # that this is another duty.
    done_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Node(Base):
    """A running beat or worker. A node that starts under the same name replaces its predecessor.

    ``seen_at`` is the last heartbeat: runs on this node are not lost. ``progressed_at`` is the last
    progress: a successful pass of beat, or an iteration of the worker's loop. ``error`` is what
    prevents progress. ``notifier`` is how a beat receives notifications. It is None for a worker.
    ``outages`` are the queues, exchanges and tasks that a beat cannot publish to, as
    ``celery_dynbeat.broker.outages`` reports them. ``clock_offset`` is the clock of the node's host
    minus the database's clock, in seconds.
    """

    __tablename__ = "dynbeat_node"

    kind: Mapped[str] = mapped_column(ExactText(16), primary_key=True)
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), primary_key=True)
    pid: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # When the node last made progress, which is a successful pass of beat, or a turn of the
    # worker's loop. If this is old and seen_at is recent, the process is alive but makes no
    # progress. NULL means that it has made none yet.
    progressed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The error of beat's last pass, if it could still be written. NULL means that the pass
    # succeeded.
    error: Mapped[str | None] = mapped_column(LongText)
    # How a beat currently receives notifications: postgresql, broker or polling. NULL means that
    # the node is a worker.
    notifier: Mapped[str | None] = mapped_column(ExactText(16))
    # A JSON array of at most ten entries. The type is not JSON, because no query searches in it.
    outages: Mapped[str | None] = mapped_column(LongText)
    # The clock of the host minus the clock of the database, in seconds, at the last heartbeat. NULL
    # means that it is not known.
    clock_offset: Mapped[float | None] = mapped_column(Double)
    # JSON arrays with the queues that a worker consumes and the names of its tasks. NULL means that
    # they are not known. Only the health check reads them, and they are long.
    queues: Mapped[str | None] = mapped_column(LongText, deferred=True)
    # The names of a worker's tasks, as a JSON array. NULL means that they are not known, for the
    # same reasons as queues.
    tasks: Mapped[str | None] = mapped_column(LongText, deferred=True)
    # The digest of a beat's beat_schedule, and when a beat with this digest started first. Of two
    # releases, the one that was seen later is the newer one.
    entries_digest: Mapped[str | None] = mapped_column(ExactText(64))
    # When a beat with this digest started first. Of two different digests, the one with the later
    # instant belongs to the newer release. NULL means that the node is a worker.
    entries_seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When the node deregistered. A redelivered run of it starts without the node timeout.
    stopped_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (_known("kind", NodeKind),)


class Alert(Base):
    """The last alert of one kind of a schedule, or of the installation: open, or recovered.

    ``unreported`` is what no message has reported yet.
    """

    __tablename__ = "dynbeat_alert"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    # NO_SCHEDULE is the installation. Not NULL: two NULLs never collide in a unique constraint.
    # Without a foreign key, because its check would lock the schedule, which beat then skips.
    schedule_id: Mapped[int] = mapped_column(BigId)
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    task: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(ExactText(16))
    opened_at: Mapped[datetime] = mapped_column(UtcDateTime)
    cause: Mapped[str] = mapped_column(LongText)
    # The run that shows the cause. NULL means that there is none.
    run_id: Mapped[str | None] = mapped_column(RunId)
    # When the alert ended. NULL means that it is open.
    recovered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # What no message has reported yet: opened or recovered. NULL means that everything has been
    # reported.
    unreported: Mapped[str | None] = mapped_column(ExactText(16))
    # When a message last reported the alert. NULL means that none has.
    reported_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("schedule_id", "kind"),
        _known("kind", AlertKind),
        _known("unreported", Report),
    )


class Calendar(Base):
    """A shared calendar of the application. Triggers name it, and beat reads its days.

    An edit that changes the days increments ``version``. Beat then plans the schedules that use the
    calendar again. ``in_force_at`` is when beat finished planning all of them with this version, or
    NULL until then.
    """

    __tablename__ = "dynbeat_calendar"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(ExactText(CALENDAR_NAME_LENGTH), unique=True)
    # A JSON object: each date and its note, or "". The type is not JSON, because no query searches
    # in it, and a process parses each text once.
    dates: Mapped[str] = mapped_column(LongText)
    # Days of the week that are not business days: "sat,sun". "": none.
    weekend: Mapped[str] = mapped_column(ExactText(32), server_default="sat,sun")
    version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    updated_by: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    # When beat finished planning all schedules with this version. NULL means that beat has not
    # finished yet.
    in_force_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ScheduleCalendar(Base):
    """A schedule whose trigger or quiet hours name a calendar.

    ``planned_with`` is the version of the calendar with which the schedule was last planned. A
    lower one than the version of the calendar means that beat plans the schedule again.
    """

    __tablename__ = "dynbeat_schedule_calendar"

    schedule_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("dynbeat_schedule.id", ondelete="CASCADE"), primary_key=True
    )
    calendar_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("dynbeat_calendar.id", ondelete="RESTRICT"), primary_key=True
    )
    planned_with: Mapped[int]


class Rollup(Base):
    """The runs of one queue that ended in one minute. A skipped fire time is not a run.

    The row of the minute ``store.rollups.TOTALS`` has the sums of all minutes of its queue.
    """

    __tablename__ = "dynbeat_rollup"

    minute: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    # "" if no run was sent, or the queue is not known.
    queue: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), primary_key=True)
    # The runs of which a message was sent.
    sent: Mapped[int] = mapped_column(BigInteger)
    # The runs by status. ``other`` are the revoked and expired ones, and those that their task
    # skipped.
    succeeded: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    lost: Mapped[int] = mapped_column(BigInteger)
    other: Mapped[int] = mapped_column(BigInteger)
    # The lags of the runs that their schedule made: sum and maximum in seconds, and a JSON object
    # with the number of lags in each bucket, by its upper bound.
    lag_seconds: Mapped[float] = mapped_column(Double)
    lag_max: Mapped[float] = mapped_column(Double)
    lags: Mapped[Mapping[str, int]] = mapped_column(Json("object"))
    # The same for the times from start to end of the succeeded and failed runs.
    run_seconds: Mapped[float] = mapped_column(Double)
    run_times: Mapped[Mapping[str, int]] = mapped_column(Json("object"))


__all__ = ["REQUESTED_ORIGINS", "Origin"]

SCHEDULES = cast("Table", Schedule.__table__)
RUNS = cast("Table", Run.__table__)
NODES = cast("Table", Node.__table__)
APPLICATIONS = cast("Table", Application.__table__)
CHANGES = cast("Table", Change.__table__)
HOLDS = cast("Table", Hold.__table__)
LOCKS = cast("Table", Lock.__table__)
OWNERS = cast("Table", Owner.__table__)
ALERTS = cast("Table", Alert.__table__)
CALENDARS = cast("Table", Calendar.__table__)
LINKS = cast("Table", ScheduleCalendar.__table__)
ROLLUPS = cast("Table", Rollup.__table__)

# Here, so that the process pays at its start, and not in its first query.
configure_mappers()


def use_names(table_names: TableNames) -> None:
    """Give the tables the schema and the prefix of this process. The first choice counts.

    Raises ConfigurationError if another choice was made before.
    """
    if not db.choose(table_names):
        return
    # The keys of the metadata stay: foreign keys refer to them.
    for key, table in Base.metadata.tables.items():
        table.schema = table_names.schema
        table.name = table_names.of(key.removeprefix(PREFIX))

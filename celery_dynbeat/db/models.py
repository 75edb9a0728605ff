"""The tables. Rules that must hold are constraints here, each with a name.

A row typed by hand works: every column that is not a decision has a server default, and beat
plans an enabled row that has no next run.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, LongText, RunId, UtcDateTime

NAME_LENGTH = 255


class Origin(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"


class NodeKind(StrEnum):
    """What a living process is."""

    BEAT = "beat"
    WORKER = "worker"


class Base(DeclarativeBase):
    """The metadata of the package, with one rule for the names of constraints."""

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
# JSON on PostgreSQL keeps the order of keys; tags are searched.
Tags = JSON().with_variant(postgresql.JSONB, "postgresql")
EMPTY_LIST = text("('[]')")
EMPTY_OBJECT = text("('{}')")


def _json_check(column: str) -> CheckConstraint:
    # The other databases check the JSON of their own accord.
    constraint = CheckConstraint(f"json_valid({column})", name=f"{column}_json")
    constraint.ddl_if(dialect="sqlite")
    return constraint


class Schedule(Base):
    """One rule of one owner: what to run, when, and when next.

    ``next_run_at`` is NULL when the schedule is paused, finished or broken, so it leaves the
    index that beat reads. An enabled row without next_run_at, finished_at and error is unplanned.
    """

    __tablename__ = "dynbeat_schedule"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    # "" is the application's own. Not NULL: two NULLs never collide in a unique constraint.
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    task: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    args: Mapped[list[Any]] = mapped_column(JSON, server_default=EMPTY_LIST)
    kwargs: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY_OBJECT)
    options: Mapped[dict[str, Any]] = mapped_column(JSON, server_default=EMPTY_OBJECT)
    trigger_kind: Mapped[str] = mapped_column(ExactText(32))
    trigger_spec: Mapped[str] = mapped_column(Text)
    timezone: Mapped[str] = mapped_column(ExactText(64), server_default="UTC")
    # What an interval without an anchor of its own counts from; NULL: start_at, else created_at.
    anchor_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    enabled: Mapped[bool] = mapped_column(server_default=true())
    paused_reason: Mapped[str | None] = mapped_column(Text)
    start_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    max_runs: Mapped[int | None]
    run_count: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # NULL: the setting dynbeat_catch_up decides.
    catch_up: Mapped[str | None] = mapped_column(ExactText(16))
    # Seconds, all four. NULL, here and below: the setting of that name decides.
    catch_up_window: Mapped[float | None] = mapped_column(Double)
    expires_after: Mapped[float | None] = mapped_column(Double)
    jitter: Mapped[float | None] = mapped_column(Double)
    max_run_time: Mapped[float | None] = mapped_column(Double)
    overlap: Mapped[str | None] = mapped_column(ExactText(16))
    on_lost: Mapped[str | None] = mapped_column(ExactText(16))
    # 0: never, whatever the setting says.
    pause_after_failures: Mapped[int | None]
    # The first fire time that is neither sent nor recorded as skipped. A paused or broken schedule
    # keeps it, so that what passes meanwhile can be told.
    next_fire_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When beat takes it up: next_fire_at and its jitter.
    next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(LongText)
    description: Mapped[str] = mapped_column(ExactText(1024), server_default="")
    tags: Mapped[list[str]] = mapped_column(Tags, server_default=EMPTY_LIST)
    # "config": the row follows an entry of Celery's beat_schedule. "": made through the API.
    managed_by: Mapped[str] = mapped_column(ExactText(16), server_default="")
    version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())

    __table_args__ = (
        UniqueConstraint("owner", "name"),
        CheckConstraint("name <> ''", name="name_given"),
        CheckConstraint("task <> ''", name="task_given"),
        CheckConstraint("run_count >= 0", name="run_count_positive"),
        CheckConstraint("max_runs IS NULL OR max_runs > 0", name="max_runs_positive"),
        CheckConstraint("catch_up IN ('latest', 'all', 'none')", name="catch_up_known"),
        CheckConstraint("catch_up_window IS NULL OR catch_up_window > 0", name="window_positive"),
        CheckConstraint("expires_after IS NULL OR expires_after > 0", name="expiry_positive"),
        CheckConstraint("jitter IS NULL OR jitter >= 0", name="jitter_positive"),
        CheckConstraint("max_run_time IS NULL OR max_run_time > 0", name="run_time_positive"),
        CheckConstraint(
            "overlap IN ('allow', 'skip', 'buffer_one', 'cancel_previous')", name="overlap_known"
        ),
        CheckConstraint("on_lost IN ('record', 'rerun')", name="on_lost_known"),
        CheckConstraint(
            "pause_after_failures IS NULL OR pause_after_failures >= 0", name="failures_positive"
        ),
        CheckConstraint(
            "next_run_at IS NULL OR (enabled AND finished_at IS NULL AND error IS NULL)",
            name="next_run_only_when_live",
        ),
        _json_check("args"),
        _json_check("kwargs"),
        _json_check("options"),
        _json_check("tags"),
    )


class Run(Base):
    """One fire time of one schedule; its id is the Celery task id.

    ``skipped`` rows stand for fire times that policy decided not to send; there ``fire_count`` says
    for how many, and ``scheduled_for`` is the newest of them.
    """

    __tablename__ = "dynbeat_run"

    id: Mapped[str] = mapped_column(RunId, primary_key=True)
    # NULL once the schedule is deleted: history survives, with owner and name.
    schedule_id: Mapped[int | None] = mapped_column(
        BigId,
        ForeignKey("dynbeat_schedule.id", ondelete="SET NULL"),
    )
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    task: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    scheduled_for: Mapped[datetime] = mapped_column(UtcDateTime)
    fire_count: Mapped[int] = mapped_column(server_default="1")
    status: Mapped[str] = mapped_column(ExactText(16))
    origin: Mapped[str] = mapped_column(ExactText(16), server_default=Origin.SCHEDULE)
    # Starts of the body so far, whatever caused them: what tells one attempt from another.
    # `retries` is Celery's own counter.
    attempt: Mapped[int] = mapped_column(server_default="0")
    retries: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    # When a run that has not started is published again; NULL from its start on.
    overdue_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    sent_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When Celery's retry is to begin; while the run is retrying.
    retry_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When a newer run was to take the place of this one (overlap): nobody begins it again.
    cancelled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    worker: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    worker_pid: Mapped[int | None]
    # The attempt during which the broker delivered the run's message again. While it is the
    # present attempt: if the worker loses it, the run is sent again, whatever on_lost says.
    redelivered_attempt: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(LongText)
    traceback: Mapped[str | None] = mapped_column(LongText)

    __table_args__ = (
        # The device that makes a double impossible.
        UniqueConstraint("schedule_id", "scheduled_for"),
        CheckConstraint(
            "status IN ({})".format(", ".join(f"'{status}'" for status in Status)),
            name="status_known",
        ),
        CheckConstraint(
            "origin IN ({})".format(", ".join(f"'{origin}'" for origin in Origin)),
            name="origin_known",
        ),
        CheckConstraint("fire_count > 0", name="fire_count_positive"),
        # Only a run that has not started can be overdue.
        CheckConstraint(
            "overdue_at IS NULL OR status IN ('pending', 'sent')",
            name="overdue_only_unstarted",
        ),
    )


class Backfill(Base):
    """Past fire times of a schedule that somebody asked to be run after all.

    ``next_fire_at`` is the first one still to be dealt with; ``next_run_at`` is when beat goes on,
    NULL once it has ended.
    """

    __tablename__ = "dynbeat_backfill"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    schedule_id: Mapped[int] = mapped_column(
        BigId,
        ForeignKey("dynbeat_schedule.id", ondelete="CASCADE"),
    )
    start_at: Mapped[datetime] = mapped_column(UtcDateTime)
    end_at: Mapped[datetime] = mapped_column(UtcDateTime)
    batch_size: Mapped[int]
    # Fire times: in all, made into runs, and passed over because they had a run.
    total: Mapped[int]
    made: Mapped[int] = mapped_column(server_default="0")
    present: Mapped[int] = mapped_column(server_default="0")
    next_fire_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancelled: Mapped[bool] = mapped_column(server_default=false())

    __table_args__ = (
        CheckConstraint("batch_size > 0", name="batch_size_positive"),
        CheckConstraint("start_at <= end_at", name="span_ordered"),
    )


class Owner(Base):
    """An owner whose number of schedules is limited: the row that creates lock to take turns."""

    __tablename__ = "dynbeat_owner"

    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), primary_key=True)


class Application(Base):
    """The application whose schedules these are. One row, which its first beat writes.

    A beat of another application refuses to start.
    """

    __tablename__ = "dynbeat_application"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())

    __table_args__ = (
        CheckConstraint("id = 1", name="one_row"),
        CheckConstraint("name <> ''", name="name_given"),
    )


class Node(Base):
    """A living beat or worker. A node that starts under the same name replaces its predecessor.

    ``seen_at`` is the last sign of life: what runs there is not lost. ``progressed_at`` is the last
    sign of progress: a pass of beat that worked, a turn of the worker's loop. ``error`` is what
    keeps it from making any. ``notifier`` is how a beat receives notifications; None: a worker.
    ``outages`` are the queues, exchanges and tasks that a beat cannot publish to, as
    ``celery_dynbeat.broker.outages`` reports them.
    """

    __tablename__ = "dynbeat_node"

    kind: Mapped[str] = mapped_column(ExactText(16), primary_key=True)
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), primary_key=True)
    pid: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    progressed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(LongText)
    notifier: Mapped[str | None] = mapped_column(ExactText(16))
    # A JSON array of ten entries at most. Text: nothing searches in it.
    outages: Mapped[str | None] = mapped_column(LongText)
    # Set at an orderly end: its runs need not wait for the time-out.
    stopped_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        CheckConstraint(
            "kind IN ({})".format(", ".join(f"'{kind}'" for kind in NodeKind)),
            name="kind_known",
        ),
    )


__all__ = [
    "NAME_LENGTH",
    "Application",
    "Backfill",
    "Base",
    "Node",
    "NodeKind",
    "Origin",
    "Owner",
    "Run",
    "Schedule",
]

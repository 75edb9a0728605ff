"""The tables of alerts: facts, alerts, schedules that need regular checks, and messages."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import CheckConstraint, Double, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from celery_dynbeat.common.alert_kinds import (
    SCHEDULE_KINDS,
    AlertKind,
    OwnerNotice,
    Severity,
    Unsent,
)
from celery_dynbeat.db.models import EMPTY_LIST, NAME_LENGTH, Base, BigId, rename_tables
from celery_dynbeat.db.types import ExactText, Json, LongText, RunId, UtcDateTime, utc_now

if TYPE_CHECKING:
    from sqlalchemy import Table

#: This is not the id of a schedule.
NO_SCHEDULE = 0


def _known(column: str, values: Iterable[str]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def _is_finite(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} BETWEEN -1e12 AND 1e12", name=f"{column}_finite")


class AlertFact(Base):
    """A fact about a schedule that no beat has evaluated yet. The evaluation deletes the row."""

    __tablename__ = "dynbeat_alert_fact"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(ExactText(16))
    # Without a foreign key, because its check would lock the schedule. A worker that has locked the
    # run would wait for an edit of the schedule, which may wait for the run, and beat's claim skips
    # a locked row.
    schedule_id: Mapped[int] = mapped_column(BigId)
    run_id: Mapped[str | None] = mapped_column(RunId)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    # Seconds that the run was late or took, or a number of runs.
    value: Mapped[float | None] = mapped_column(Double)

    __table_args__ = (_known("kind", SCHEDULE_KINDS), _is_finite("value"))


class Alert(Base):
    """The last alert of one kind of a schedule: open, or recovered.

    The schedule NO_SCHEDULE has the alerts about beats and workers. Its owner and name are empty.
    ``run_id`` and ``value`` come from the last fact. ``fact_count`` is the number of facts since
    ``opened_at``. ``unsent`` is what no message reports yet, since ``unsent_at``. The API deletes
    the alerts of a schedule with the schedule. If manual SQL deletes a schedule, beat deletes its
    alerts.
    """

    __tablename__ = "dynbeat_alert"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    # Without a foreign key, as above, because the evaluation inserts many alerts in one
    # transaction.
    schedule_id: Mapped[int] = mapped_column(BigId)
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    kind: Mapped[str] = mapped_column(ExactText(16))
    opened_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # The name is not "count", because SQLAlchemy's rows have a method of this name.
    fact_count: Mapped[int] = mapped_column(server_default="1")
    run_id: Mapped[str | None] = mapped_column(RunId)
    value: Mapped[float | None] = mapped_column(Double)
    detail: Mapped[str | None] = mapped_column(LongText)
    # The name of the target of the messages.
    target: Mapped[str] = mapped_column(ExactText(64))
    recovered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    unsent: Mapped[str | None] = mapped_column(ExactText(16))
    unsent_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # When beat last checked whether the alert has recovered. NULL means that it has recovered. The
    # index of open alerts therefore contains no others, even on MySQL, which has no partial
    # indexes.
    checked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # An instant before opened_at belongs to an earlier alert. Beat never writes it.
    acknowledged_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    acknowledged_by: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    # Until then no message reports the alert. Beat removes it when the time has passed.
    snoozed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    snoozed_by: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    # The last message that reports the alert. Without a foreign key, because messages are pruned
    # first.
    message_id: Mapped[int | None] = mapped_column(BigId)
    # The notice to the owner, and when it can be sent. Written only with dynbeat_recipient.
    owner_notice: Mapped[str | None] = mapped_column(ExactText(16))
    owner_notice_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("schedule_id", "kind"),
        _known("kind", AlertKind),
        _known("unsent", Unsent),
        CheckConstraint("fact_count BETWEEN 1 AND 1000000000", name="fact_count_in_range"),
        _is_finite("value"),
        CheckConstraint(
            "(checked_at IS NULL) = (recovered_at IS NOT NULL)", name="checked_while_open"
        ),
        CheckConstraint("(unsent IS NULL) = (unsent_at IS NULL)", name="unsent_since"),
        _known("owner_notice", OwnerNotice),
        CheckConstraint(
            "(owner_notice_at IS NULL) = (owner_notice IS NULL OR owner_notice = 'reported')",
            name="owner_notice_since",
        ),
    )


class AlertCheck(Base):
    """The next check of a schedule for alerts that no event causes: silent and frequent.

    The API deletes the row with its schedule, and the check deletes rows of missing schedules.
    """

    __tablename__ = "dynbeat_alert_check"

    # Without a foreign key, as above, because beat inserts many rows in one transaction.
    schedule_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AlertMessage(Base):
    """A message to the URLs of one target, or with the notices to one owner.

    ``next_try_at`` is NULL if the message was sent or dropped, or if its owner has no recipient.
    """

    __tablename__ = "dynbeat_alert_message"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    target: Mapped[str] = mapped_column(ExactText(64))
    # The newest message of the target when this one was written; 0: there was none. Unique for a
    # target, so that two beats cannot both write the next message.
    previous_id: Mapped[int | None] = mapped_column(BigId)
    severity: Mapped[str] = mapped_column(ExactText(16))
    payload: Mapped[dict[str, Any]] = mapped_column(Json("object"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    attempts: Mapped[int] = mapped_column(server_default="0")
    next_try_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The beat that sends the message, and until when no other beat tries.
    leased_by: Mapped[str | None] = mapped_column(ExactText(NAME_LENGTH))
    leased_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Marks of the URLs that accepted the message, for the next try: see alerts.url_marks.
    delivered: Mapped[list[Any]] = mapped_column(Json("array"), server_default=EMPTY_LIST)
    error: Mapped[str | None] = mapped_column(LongText)
    sent_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    dropped_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        _known("severity", Severity),
        CheckConstraint(
            "next_try_at IS NULL OR (sent_at IS NULL AND dropped_at IS NULL)",
            name="tried_until_ended",
        ),
    )


ALERT_FACTS = cast("Table", AlertFact.__table__)
ALERTS = cast("Table", Alert.__table__)
ALERT_CHECKS = cast("Table", AlertCheck.__table__)
MESSAGES = cast("Table", AlertMessage.__table__)
# A process without alerts does not import this module, so the other tables may already have their
# names.
rename_tables()

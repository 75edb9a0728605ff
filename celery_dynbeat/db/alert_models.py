"""The table of alerts."""

from datetime import datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import CheckConstraint, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from celery_dynbeat.common.alert_kinds import AlertKind, Report
from celery_dynbeat.db.models import NAME_LENGTH, Base, BigId, rename_tables
from celery_dynbeat.db.types import ExactText, LongText, RunId, UtcDateTime

if TYPE_CHECKING:
    from sqlalchemy import Table


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
        CheckConstraint(
            "kind IN ({})".format(", ".join(f"'{kind}'" for kind in AlertKind)), name="kind_known"
        ),
        CheckConstraint(
            "unreported IN ({})".format(", ".join(f"'{part}'" for part in Report)),
            name="unreported_known",
        ),
    )


ALERTS = cast("Table", Alert.__table__)
# A process without alerts does not import this module, so the other tables may already have their
# names.
rename_tables()

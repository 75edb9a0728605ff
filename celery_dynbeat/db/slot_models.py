"""The tables of slots. Only installations with a limit on the runs of an owner have rows."""

from datetime import datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import false
from sqlalchemy.orm import Mapped, mapped_column

from celery_dynbeat.db.models import NAME_LENGTH, Base, BigId, rename_tables
from celery_dynbeat.db.types import ExactText, RunId, UtcDateTime

if TYPE_CHECKING:
    from sqlalchemy import Table


class Slot(Base):
    """A run of an owner whose runs are limited. Beat deletes the row after the end of the run.

    While ``admitted_at`` is NULL, the run waits. It is then ``pending`` without ``overdue_at``.
    """

    __tablename__ = "dynbeat_slot"

    # The order of the runs of an owner.
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    # Without a foreign key, because a prune would read this table for each run.
    run_id: Mapped[str] = mapped_column(RunId, unique=True)
    owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH))
    # Whether a backfill or a rerun of many made the run. If so, other runs of the owner come first.
    is_requested: Mapped[bool] = mapped_column(server_default=false())
    # When the waiting run expires. NULL means that it does not expire, or that it was admitted.
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    admitted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class SlotScope(Base):
    """An owner or a group of owners that had waiting runs. Beats lock this row, to admit runs."""

    __tablename__ = "dynbeat_slot_scope"

    name: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), primary_key=True)
    # The owner of the group that got the last slot. The owners take turns.
    last_owner: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")


SLOTS = cast("Table", Slot.__table__)
SLOT_SCOPES = cast("Table", SlotScope.__table__)
# Most processes do not import this module, so the other tables may already have their names.
rename_tables()

"""The table of the rollup."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import BigInteger, Double
from sqlalchemy.orm import Mapped, mapped_column

from celery_dynbeat.db.models import NAME_LENGTH, Base, rename_tables
from celery_dynbeat.db.types import ExactText, Json, UtcDateTime

if TYPE_CHECKING:
    from sqlalchemy import Table


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


ROLLUPS = cast("Table", Rollup.__table__)
# A process that needs no rollup does not import this module, so the other tables may already have
# their names.
rename_tables()

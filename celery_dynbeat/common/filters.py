"""The orders and filters of lists. A filter is one object from the call to SQL.

``api.filters`` checks the filters. None matches any value. ``since`` and ``until`` are half-open:
since <= time < until. ``text`` is a part of the owner or of the name.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from celery_dynbeat.common.states import UNFINISHED

#: A status, or several: ``"failed"``, ``("failed", "lost")``.
StatusFilter: TypeAlias = str | Collection[str]


class Order(StrEnum):
    """The order of a list, as its cursors name it."""

    OWNER = "name"
    NAME = "name of all owners"
    NEXT_RUN_AT = "next_run_at"
    FIRE_TIME = "fire_time"
    RUN_ID = "run_id"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFilter:
    """The filter of schedules.

    ``now`` and ``overdue_before`` are needed for the states held and overdue: a schedule is overdue
    if its next_run_at is before that instant. The list fills them in.
    """

    owner: str | None = None
    owner_prefix: str | None = None
    task: str | None = None
    enabled: bool | None = None
    tag: str | None = None
    state: str | None = None
    name_prefix: str | None = None
    text: str | None = None
    now: datetime | None = None
    overdue_before: datetime | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether the filter has no condition on the owner."""
        return self.owner is None and self.owner_prefix is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """The filter of runs. ``since`` and ``until`` are compared with the fire time.

    ``schedule_id`` is the id of the schedule that now has this ``owner`` and ``name``. The list
    fills it in.
    """

    owner: str | None = None
    name: str | None = None
    status: StatusFilter | None = None
    task: str | None = None
    origin: str | None = None
    worker: str | None = None
    text: str | None = None
    batch_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    schedule_id: int | None = None

    @property
    def statuses(self) -> tuple[str, ...]:
        """The statuses, () for any."""
        return (self.status,) if isinstance(self.status, str) else tuple(self.status or ())

    @property
    def is_unfinished(self) -> bool:
        """Whether only unfinished runs match. Those of a batch are read from its history."""
        return (
            self.batch_id is None and bool(self.statuses) and set(self.statuses) <= set(UNFINISHED)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilter:
    """The filter of changes. ``since`` and ``until`` are compared with ``changed_at``."""

    owner: str | None = None
    name: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None

"""The columns of a schedule as plain values, for a row that no session holds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeAlias

from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import Row


# A Schedule is not used, because SQLAlchemy's tracking of each attribute takes half of the time of
# a create().
@dataclass(kw_only=True)
class ScheduleColumns:
    """A row of ``dynbeat_schedule`` before its INSERT, with the defaults of a new schedule.

    ``id`` exists only after the INSERT.
    """

    id: int = field(init=False)
    owner: str
    name: str
    task: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    trigger_kind: str
    trigger_spec: str
    hash_name: str | None = None
    timezone: str
    inherits_timezone: bool = False
    quiet_hours: str | None = None
    anchor_at: datetime | None
    enabled: bool = True
    paused_reason: str | None = None
    paused_until: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    run_count: int = 0
    catch_up: str | None = None
    catch_up_window: float | None = None
    expires_after: float | None = None
    finish_within: float | None = None
    window: float | str | None = None
    max_run_time: float | None = None
    overlap: str | None = None
    on_lost: str | None = None
    pause_after_failures: int | None = None
    retry: dict[str, Any] | None = None
    next_fire_at: datetime | None = None
    next_run_at: datetime | None = None
    held_at: datetime | None = None
    skips: dict[str, str] | None = None
    last_run_at: datetime | None = None
    failing_since: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    description: str = ""
    tags: list[str] = field(default_factory=list)
    # Without a repr, because the value can contain a token.
    ping_url: str | None = field(default=None, repr=False)
    managed_by: str = ""
    version: int = 1
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: Row) -> "ScheduleColumns":
        """Return the columns of a selected row, with its id."""
        values = row._asdict()
        schedule_id = values.pop("id")
        columns = cls(**values)
        columns.id = schedule_id
        return columns

    @classmethod
    def edited(cls, row: Schedule, values: Mapping[str, Any]) -> "ScheduleColumns":
        """Return the columns of ``row`` after an edit to ``values``; ``row`` does not change."""
        return cls(**{name: values.get(name, getattr(row, name)) for name in _NAMES})

    def insert_values(self) -> dict[str, Any]:
        """Return the values for an INSERT."""
        return dict(vars(self))


ScheduleRow: TypeAlias = Schedule | ScheduleColumns


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of a column are the same for a task.

    Python's ``[1] == [True] == [1.0]`` does not hold in JSON.
    """
    if isinstance(one, (list, dict)) and isinstance(other, (list, dict)):
        return one == other and _json(one) == _json(other)
    return bool(one == other)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


_NAMES = tuple(each.name for each in fields(ScheduleColumns) if each.init)

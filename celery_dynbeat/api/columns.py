"""The columns of a schedule as plain values, for a row that no session holds."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_dynbeat.db.models import SCHEDULES, Schedule
from celery_dynbeat.db.statements import Row

if TYPE_CHECKING:
    _Columns = Schedule
else:
    # A Schedule is not used, because SQLAlchemy's tracking of each attribute takes half of the time
    # of a create().
    _Columns = object

#: The columns of a schedule in an INSERT. The database makes the id.
_NAMES = tuple(column.name for column in SCHEDULES.columns if column.name != "id")
#: The values of a new schedule, without its lists and objects.
_DEFAULTS: Mapping[str, Any] = {
    **{column.name: None for column in SCHEDULES.columns if column.nullable},
    "inherits_timezone": False,
    "enabled": True,
    "run_count": 0,
    "version": 1,
    "description": "",
    "managed_by": "",
}


class ScheduleColumns(_Columns):
    """A row of ``dynbeat_schedule`` before its INSERT, with the defaults of a new schedule.

    ``id`` exists only after the INSERT.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(_DEFAULTS, args=[], kwargs={}, options={}, tags=[])
        vars(self).update(values)

    @classmethod
    def of(cls, row: Row) -> "ScheduleColumns":
        """Return the columns of a selected row, with its id."""
        return cls(**row._asdict())

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

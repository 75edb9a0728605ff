"""The indexes of the tables, the constraints of column types, and the character set on MySQL.

Only data definition imports this module. Queries name or imply their index, so beat and workers
import neither this module nor the dialects of databases that they do not use.
"""

from typing import Any

from sqlalchemy import ColumnElement, Index, and_, literal_column, not_

from celery_dynbeat.db.models import Alert, Base, Change, Hold, Run, Schedule, ScheduleCalendar
from celery_dynbeat.db.type_checks import type_checks
from celery_dynbeat.db.types import MYSQL

#: All tables with their indexes and constraints. A test compares the migrations with it.
METADATA = Base.metadata


def _partial(name: str, *columns: Any, where: ColumnElement[bool]) -> Index:
    """Index the rows that match ``where``. MySQL has no partial indexes and indexes all rows."""
    return Index(name, *columns, postgresql_where=where, sqlite_where=where)


def _only_on(dialects: tuple[str, ...], index: Index) -> None:
    index.ddl_if(dialect=dialects)  # type: ignore[arg-type]  # the annotation lacks tuples


_MYSQL = tuple(sorted(MYSQL))

# The claim reads the start of this index. It does not contain rows that can never be due.
_partial(
    "ix_dynbeat_schedule_due",
    Schedule.next_run_at,
    Schedule.id,
    where=Schedule.next_run_at.is_not(None),
)
# On MySQL the three columns select the few rows that match.
_partial(
    "ix_dynbeat_schedule_unplanned",
    Schedule.enabled,
    Schedule.finished_at,
    Schedule.next_run_at,
    where=and_(
        Schedule.enabled,
        Schedule.next_run_at.is_(None),
        Schedule.finished_at.is_(None),
        Schedule.error.is_(None),
    ),
)

# The schedules in a rare state by owner and name. MySQL has no partial indexes. On MySQL, an index
# selects the schedules in the state. The index of the unplanned schedules also selects paused and
# finished schedules.
for _state, _is_in_state in {
    "paused": not_(Schedule.enabled),
    "finished": Schedule.finished_at.is_not(None),
    "quarantined": Schedule.error.is_not(None),
    "failing": Schedule.failing_since.is_not(None),
}.items():
    _only_on(
        ("postgresql", "sqlite"),
        _partial(
            f"ix_dynbeat_schedule_{_state}", Schedule.owner, Schedule.name, where=_is_in_state
        ),
    )
_only_on(_MYSQL, Index("ix_dynbeat_schedule_failing", Schedule.failing_since))
_only_on(
    _MYSQL,
    Index("ix_dynbeat_schedule_quarantined", Schedule.error, mysql_length=1, mariadb_length=1),
)
# The names of all owners that begin with a text.
Index("ix_dynbeat_schedule_name", Schedule.name, Schedule.owner)

Index("ix_dynbeat_run_owner_fire_at", Run.owner, Run.fire_at)
_partial("ix_dynbeat_run_overdue", Run.overdue_at, where=Run.overdue_at.is_not(None))
# Unfinished runs by schedule: overlap, cancel and the search for lost runs read them. Within a
# schedule, the order is by id and therefore by time, so that a query of very many runs gets the
# newest runs.
_partial(
    "ix_dynbeat_run_newest_unfinished",
    Run.finished_at,
    Run.schedule_id,
    Run.id,
    where=Run.finished_at.is_(None),
)
# The ended runs of a minute. On MySQL, the index above also has the ended runs.
_only_on(
    ("postgresql", "sqlite"),
    _partial("ix_dynbeat_run_finished_at", Run.finished_at, where=Run.finished_at.is_not(None)),
)
# A worker compares its unfinished runs with its pool.
_partial(
    "ix_dynbeat_run_worker",
    Run.worker,
    Run.finished_at,
    where=and_(Run.worker.is_not(None), Run.finished_at.is_(None)),
)
# The runs that count for a limit, and those that wait for a place, oldest first. The status comes
# first, so that a query reads no ended runs on MySQL.
_partial(
    "ix_dynbeat_run_place",
    Run.status,
    Run.running_key,
    Run.overdue_at,
    Run.id,
    where=and_(Run.running_key.is_not(None), Run.finished_at.is_(None)),
)
_partial("ix_dynbeat_run_retry_at", Run.retry_at, where=Run.retry_at.is_not(None))

# The failed and lost runs of all owners, newest last. Only PostgreSQL can use it, see
# Capabilities.has_partial_indexes; elsewhere a page scans the newest runs.
Index(
    "ix_dynbeat_run_failed",
    Run.id,
    postgresql_where=Run.status.in_([literal_column("'failed'"), literal_column("'lost'")]),
).ddl_if(dialect="postgresql")
_partial("ix_dynbeat_run_rerun_of", Run.rerun_of, where=Run.rerun_of.is_not(None))
_partial("ix_dynbeat_hold_until_at", Hold.until_at, where=Hold.until_at.is_not(None))
# Few schedules are held. Beat compares them with the holds.
_partial(
    "ix_dynbeat_schedule_held_at",
    Schedule.held_at,
    Schedule.id,
    where=Schedule.held_at.is_not(None),
)
# Beat resumes the schedules whose pause has ended. A pause without an end is not in this index.
_partial(
    "ix_dynbeat_schedule_paused_until",
    Schedule.paused_until,
    Schedule.id,
    where=Schedule.paused_until.is_not(None),
)
# Each order of changes() is the order of an index. Prune reads the first.
Index("ix_dynbeat_change_changed_at", Change.changed_at, Change.id)
_partial(
    "ix_dynbeat_change_actor",
    Change.actor,
    Change.changed_at,
    Change.id,
    where=Change.actor != "",
)
Index("ix_dynbeat_change_owner", Change.owner, Change.changed_at, Change.id)
Index("ix_dynbeat_change_owner_name", Change.owner, Change.name, Change.changed_at, Change.id)

# The open alerts by id, which have NULL, and the newest recoveries.
Index("ix_dynbeat_alert_recovered_at", Alert.recovered_at, Alert.id)
_partial(
    "ix_dynbeat_alert_unreported", Alert.unreported, Alert.id, where=Alert.unreported.is_not(None)
)
# The last report, for the interval between messages.
Index("ix_dynbeat_alert_reported_at", Alert.reported_at)
Index("ix_dynbeat_alert_owner", Alert.owner, Alert.id)

# The schedules that are planned with an old version of a calendar. The foreign key also uses
# this index.
Index(
    "ix_dynbeat_schedule_calendar_planned",
    ScheduleCalendar.calendar_id,
    ScheduleCalendar.planned_with,
    ScheduleCalendar.schedule_id,
)

for _key, _table in METADATA.tables.items():
    for _column in tuple(_table.columns):
        for _check in type_checks(_column, table=_key):
            _table.append_constraint(_check)
    for _dialect in MYSQL:
        _table.dialect_kwargs[f"{_dialect}_charset"] = "utf8mb4"

"""The Core tables, for statements that do not need the ORM.

The statements of each pass and of each run use them: with ORM entities they took twice as long.
"""

from typing import TYPE_CHECKING, cast

from celery_dynbeat.db.models import Application, Backfill, Node, Run, Schedule

if TYPE_CHECKING:
    from sqlalchemy import Table

SCHEDULES = cast("Table", Schedule.__table__)
RUNS = cast("Table", Run.__table__)
NODES = cast("Table", Node.__table__)
APPLICATIONS = cast("Table", Application.__table__)
BACKFILLS = cast("Table", Backfill.__table__)

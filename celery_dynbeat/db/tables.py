"""The Core tables, for statements that do not need the ORM.

The statements of each pass and of each run use them: with ORM entities they took twice as long.
"""

from typing import TYPE_CHECKING, cast

from celery_dynbeat.db.alert_models import Alert, AlertEvent, AlertMessage, AlertWatch
from celery_dynbeat.db.models import (
    Application,
    Change,
    Hold,
    Node,
    Owner,
    Request,
    Run,
    Schedule,
)

if TYPE_CHECKING:
    from sqlalchemy import Table

SCHEDULES = cast("Table", Schedule.__table__)
RUNS = cast("Table", Run.__table__)
NODES = cast("Table", Node.__table__)
APPLICATIONS = cast("Table", Application.__table__)
CHANGES = cast("Table", Change.__table__)
HOLDS = cast("Table", Hold.__table__)
OWNERS = cast("Table", Owner.__table__)
REQUESTS = cast("Table", Request.__table__)
ALERT_EVENTS = cast("Table", AlertEvent.__table__)
ALERTS = cast("Table", Alert.__table__)
ALERT_WATCHES = cast("Table", AlertWatch.__table__)
ALERT_MESSAGES = cast("Table", AlertMessage.__table__)

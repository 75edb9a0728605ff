"""Queries on the facts that beat evaluates to alerts."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.db import batches
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import ALERT_EVENTS


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert facts that all have the same columns: kind, schedule_id, run_id, at, value.

    They join the transaction of the state change, so that neither is without the other.
    """
    if rows:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Schedule})
        batches.insert(connection, ALERT_EVENTS, rows)

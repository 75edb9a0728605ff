"""Batches: the runs that one call of ``backfill()`` or ``rerun_many()`` has recorded."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.results import BatchResult
from celery_dynbeat.api.results.base import as_json
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import MAX_BATCH
from celery_dynbeat.process.context import Context


def check_pace(per_minute: object) -> None:
    """Raise InvalidScheduleError unless ``per_minute`` is a number of runs."""
    checks.check_integer("per_minute", per_minute, minimum=1, maximum=MAX_BATCH)


def recorded(
    context: Context,
    session: Session,
    result: BatchResult,
    *,
    owner: str | None,
    name: str | None,
    action: Action,
    at: datetime,
    **given: Any,
) -> BatchResult:
    """Write the batch to the audit, notify beat of it and return it."""
    new = {key: as_json(value) for key, value in {**given, **result.to_dict()}.items()}
    edit = audit.Edit(owner=owner, name=name or "", action=action, new=new)
    audit.record(context, session, [edit], now=at)
    if result.created:
        context.notifier.notify(session)
    return result

"""The ping URL of the schedule of a run."""

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import RUNS, SCHEDULES

_STATEMENT = (
    select(SCHEDULES.c.ping_url)
    .join(RUNS, RUNS.c.schedule_id == SCHEDULES.c.id)
    .where(RUNS.c.id == bindparam("run"))
)


def read(session: Session, *, run_id: str) -> str | None:
    """Return the URL, or None if the schedule has no URL or is gone. Reads two primary keys."""
    url: str | None = session.scalar(_STATEMENT, {"run": run_id})
    return url

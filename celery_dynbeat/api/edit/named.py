"""The base of an owner's calls, each of which names a schedule."""

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.edit import edits
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.process.context import Context


class OwnerCalls(Calls):
    """Calls on the schedules of one owner, each by its name."""

    owner: str

    def __init__(self, context: Context, owner: str) -> None:
        super().__init__(context, checks.check_owner(owner))
        self.owner = owner

    def _lock(self, session: Session, name: str, expected_version: int | None) -> Schedule:
        return edits.lock(session, owner=self.owner, name=name, expected_version=expected_version)

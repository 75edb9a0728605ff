"""Cancel a backfill, or a request to run many runs again."""

from celery_dynbeat.flower.base.action import ActionHandler, Confirmation
from celery_dynbeat.flower.base.messages import Message

_DETAILS = ("Its runs that have not started are revoked. Runs that have started continue.",)


class CancelBackfillAction(ActionHandler):
    """Cancel the backfill that the form names: ``owner``, ``name`` and ``id``."""

    def confirmation(self) -> Confirmation:
        """Ask first: a cancelled backfill cannot continue."""
        question = f"Cancel the backfill of {self.field('name')}?"
        return Confirmation(question=question, button="Cancel the backfill", details=_DETAILS)

    def act(self) -> Message:
        """Cancel it."""
        mine = self.for_owner(self.field("owner"))
        info = mine.cancel_backfill(self.field("name"), self.number("id"))
        return Message(f"The backfill of {info.name} is {info.status}: {info.made} runs were made.")


class CancelRerunAction(ActionHandler):
    """Cancel the request that the form names by its ``id``."""

    def confirmation(self) -> Confirmation:
        """Ask first: a cancelled request cannot continue."""
        info = self.schedules.get_rerun(self.number("id"))
        left = info.total - info.made - info.left_out
        question = f"Cancel the rerun of {left:,} more runs?"
        return Confirmation(question=question, button="Cancel the rerun", details=_DETAILS)

    def act(self) -> Message:
        """Cancel it."""
        info = self.schedules.cancel_rerun(self.number("id"))
        return Message(f"The rerun is {info.status}: {info.made} runs were made.")

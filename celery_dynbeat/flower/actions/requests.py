"""Cancel a backfill, or a request to run many runs again."""

from celery_dynbeat.flower.base.action import ActionHandler, Confirmation
from celery_dynbeat.flower.base.messages import Message

_DETAILS = (
    "Its runs that have not started are revoked. Runs that have already started will continue.",
)


class CancelRequestAction(ActionHandler):
    """Cancel the request that the form names by its ``id``."""

    def confirmation(self) -> Confirmation:
        """Ask first, because a cancelled request cannot continue."""
        info = self.schedules.get_request(self.number("id"))
        question = f"Cancel the {info.kind}{f' of {info.name}' if info.name else ''}?"
        left = f"{info.total - info.created - info.excluded:,} of {info.total:,} are left."
        button = f"Cancel the {info.kind}"
        return Confirmation(question=question, button=button, details=(left, *_DETAILS))

    def act(self) -> Message:
        """Cancel it."""
        info = self.schedules.cancel_request(self.number("id"))
        return Message(f"The {info.kind} is {info.status}: {info.created} runs were created.")

"""Hold and release everything, or one owner.

A form without the field ``owner`` means everything: ``""`` is the application itself.
"""

from celery_dynbeat.api.control.holds import HoldCalls
from celery_dynbeat.api.results import HoldInfo
from celery_dynbeat.flower.base.action import ActionHandler, Confirmation
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.messages import Message


class _OfOwner(ActionHandler):
    """An action on everything, or on one owner."""

    @property
    def owner(self) -> str | None:
        """The owner that the form names; None means everything."""
        return self.field("owner") if "owner" in self.request.body_arguments else None

    @property
    def scope(self) -> HoldCalls:
        """The calls of everything, or of the owner that the form names."""
        return self.schedules if self.owner is None else self.for_owner(self.owner)

    @property
    def whose(self) -> str:
        """What the action concerns."""
        return "Everything" if self.owner is None else owner_label(self.owner)


class HoldAction(_OfOwner):
    """Stop the schedules until a release, or until a time."""

    def confirmation(self) -> Confirmation:
        """Ask for the reason and the end."""
        scope = "all schedules" if self.owner is None else f"the schedules of {self.whose}"
        return Confirmation(
            question=f"Hold {scope}?",
            button="Hold",
            details=(
                "Beat starts no fire times until the release. Manual runs still start.",
                "After the release, catch_up decides which missed fire times run.",
            ),
            no_end="released",
        )

    def act(self) -> Message:
        """Hold, with the reason that the confirmation asked for."""
        hold = self.scope.hold(reason=self.field("reason").strip(), until=self.until)
        return Message(f"{self.whose} is held{self._end(hold)}.")

    def _end(self, hold: HoldInfo) -> str:
        if hold.until_at is None:
            return " until it is released"
        return f" until {local_time(hold.until_at, self.zone.common)}"


class ReleaseAction(_OfOwner):
    """End the hold of everything, or of the owner that the form names."""

    def act(self) -> Message:
        """End the hold. The page shows who holds and why."""
        ended = self.scope.release()
        return Message(f"{self.whose} {'is released' if ended else 'was not held'}.")


def owner_label(owner: str) -> str:
    """Return an owner for a sentence."""
    return owner or "(application)"

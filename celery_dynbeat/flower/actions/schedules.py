"""Pause, resume, run and delete schedules, and skip a fire time.

The field ``schedule`` names one schedule, or several: see base/selection.py. A form of a list has
the field ``ask``, so that a person confirms the number. ``version`` counts for one schedule only.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import ClassVar

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import counted, shorten
from celery_dynbeat.flower.actions import selected
from celery_dynbeat.flower.base import selection
from celery_dynbeat.flower.base.action import ActionHandler, Confirmation
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.messages import Message
from celery_dynbeat.flower.base.selection import ScheduleKey


class ScheduleAction(ActionHandler):
    """An action on each of the schedules that the form names."""

    #: "Pause", "paused".
    verb: ClassVar[str]
    done: ClassVar[str]
    #: The text of the confirmation below the question.
    effect: ClassVar[str] = ""
    is_destructive: ClassVar[bool] = False
    #: The choice without an end, if the confirmation asks when the effect ends.
    no_end: ClassVar[str] = ""

    @property
    def keys(self) -> Sequence[ScheduleKey]:
        """The schedules of the form. Raises InvalidScheduleError."""
        return selection.decode(self.fields("schedule"))

    def confirmation(self) -> Confirmation | None:
        """Ask for several schedules, for a list, and before what cannot be undone."""
        keys = self.keys
        if len(keys) == 1 and not self.field("ask") and not self.is_destructive:
            return None
        what = counted(len(keys), "schedule") if len(keys) > 1 else f"“{keys[0]}”"
        return Confirmation(
            question=f"{self.verb} {what}?",
            button=f"{self.verb} {counted(len(keys), 'schedule')}",
            details=selected.names(keys) if len(keys) > 1 else (),
            effect=self.effect,
            is_destructive=self.is_destructive,
            no_end=self.no_end,
        )

    def act(self) -> Message:
        """Act on each schedule. The error of a single one is raised."""
        keys = self.keys
        if len(keys) == 1:
            self.act_on(keys[0], self.version)
            return selected.report(selected.Outcome(keys, (), ()), done=self.done)
        outcome = selected.for_each(keys, lambda key: self.act_on(key, None))
        return selected.report(outcome, done=self.done)

    def act_on(self, key: ScheduleKey, version: int | None) -> None:
        """Act on one schedule. ``version`` is the one that the viewer saw."""
        raise NotImplementedError


class PauseAction(ScheduleAction):
    """Pause schedules, until a person resumes them or until a time."""

    verb, done = "Pause", "paused"
    effect = "Runs that have not started are revoked."
    no_end = "resumed"

    def act(self) -> Message:
        """Pause them, and say when the pause ends."""
        until, message = self.until, super().act()
        if until is None:
            return message
        return replace(message, text=f"{message.text} Until {local_time(until, self.zone.common)}.")

    def act_on(self, key: ScheduleKey, version: int | None) -> None:
        """Pause one, with the reason and the end of the confirmation."""
        self.for_owner(key.owner).pause(
            key.name,
            until=self.until,
            reason=self.field("reason").strip(),
            expected_version=version,
        )


class ResumeAction(ScheduleAction):
    """Resume schedules."""

    verb, done = "Resume", "resumed"
    effect = "Fire times missed during the pause are skipped."

    def act_on(self, key: ScheduleKey, version: int | None) -> None:
        """Resume one."""
        self.for_owner(key.owner).resume(key.name, expected_version=version)


class RunNowAction(ScheduleAction):
    """Run schedules once, with their stored arguments."""

    verb, done = "Run", "requested a run of"
    effect = "Each schedule runs once now with its stored arguments. Its fire times do not change."

    def act_on(self, key: ScheduleKey, version: int | None) -> None:
        """Run one, at any version."""
        del version
        self.for_owner(key.owner).run_now(key.name)


class DeleteAction(ScheduleAction):
    """Delete schedules."""

    verb, done = "Delete", "deleted"
    effect = "Runs that have not started are revoked. The history stays until it is pruned."
    is_destructive = True

    def act_on(self, key: ScheduleKey, version: int | None) -> None:
        """Delete one."""
        self.for_owner(key.owner).delete(key.name, expected_version=version)


class SkipNextAction(ActionHandler):
    """Skip the fire time in the field ``fire_time``, or else the next fire time."""

    def act(self) -> Message:
        """Skip it."""
        [key, *others] = selection.decode(self.fields("schedule"))
        if others:
            msg = "Skip next works on one schedule at a time."
            raise InvalidScheduleError(msg, field="schedule")
        mine = self.for_owner(key.owner)
        fire_at = fire_time(self.field("fire_time")) or next(
            (each.at for each in mine.upcoming(key.name, count=1)), None
        )
        if fire_at is None:
            return Message(f"“{key}” has no fire time to skip.", "warning")
        info = mine.skip(key.name, fire_at, expected_version=self.version)
        return Message(f"“{key}” skips {local_time(fire_at, self.zone.of(info.timezone))}.")


def fire_time(given: str) -> datetime | None:
    """Return the fire time that the viewer saw.

    In the meantime, another fire time can have become the next one.

    Raises InvalidScheduleError for a text that is not an instant.
    """
    try:
        return datetime.fromisoformat(given) if given else None
    except ValueError as error:
        msg = f"fire_time = {shorten(given)}: must be an instant in ISO 8601"
        raise InvalidScheduleError(msg, field="fire_time") from error


class UnskipAction(ActionHandler):
    """Undo the skip of the fire time in the field ``fire_time``."""

    def act(self) -> Message:
        """Undo the skip."""
        [key, *_] = selection.decode(self.fields("schedule"))
        fire_at = fire_time(self.field("fire_time"))
        if fire_at is None:
            msg = "fire_time is missing; pass the skipped fire time"
            raise InvalidScheduleError(msg, field="fire_time")
        info = self.for_owner(key.owner).unskip(key.name, fire_at)
        return Message(f"“{key}” runs again at {local_time(fire_at, self.zone.of(info.timezone))}.")

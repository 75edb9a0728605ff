"""Acknowledge and snooze the alerts that a form selects: ``alert=ID ...``."""

from collections.abc import Callable

from celery_dynbeat.common.errors import DynbeatError, InvalidScheduleError
from celery_dynbeat.common.text import counted
from celery_dynbeat.flower.base.action import ActionHandler
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.messages import Message
from celery_dynbeat.flower.pages.alerts import MAX_SELECTED, SNOOZES


class _AlertsAction(ActionHandler):
    """An action on alerts. Each alert is its own transaction."""

    def each(self, call: Callable[[int], object], done: str) -> Message:
        """Call ``call`` with each selected alert, and return what succeeded and the first error."""
        ids = self.numbers("alert")
        if not 0 < len(ids) <= MAX_SELECTED:
            rule = f"Select at least one alert, and at most {MAX_SELECTED}."
            raise InvalidScheduleError(rule, field="alert")
        errors = []
        for alert_id in ids:
            try:
                call(alert_id)
            except DynbeatError as error:
                if len(ids) == 1:
                    raise
                errors.append(str(error))
        number = len(ids) - len(errors)
        text = f"{counted(number, 'alert')} {'is' if number == 1 else 'are'} {done}."
        if not errors:
            return Message(text)
        return Message(f"{text} {len(errors)} failed: {errors[0]}.", "warning")


class AcknowledgeAction(_AlertsAction):
    """Acknowledge: no message reports the alerts again until they recover."""

    def act(self) -> Message:
        """Acknowledge them."""
        return self.each(self.schedules.acknowledge_alert, "acknowledged")


class SnoozeAction(_AlertsAction):
    """Snooze for the time in the field ``for``, or end the snooze without it."""

    def act(self) -> Message:
        """Snooze them."""
        given = self.field("for")
        if given and given not in SNOOZES:
            rule = f"for: choose one of {', '.join(SNOOZES)}, or nothing to end the snooze."
            raise InvalidScheduleError(rule, field="for")
        length = SNOOZES.get(given)
        until = None if length is None else self.dynbeat.context.clock.now() + length
        shown = "" if until is None else local_time(until, self.zone.common)
        done = f"snoozed until {shown}" if shown else "no longer snoozed"
        return self.each(lambda alert_id: self.schedules.snooze_alert(alert_id, until=until), done)

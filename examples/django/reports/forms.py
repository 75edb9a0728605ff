"""The form for a new report."""

from typing import Any

from django import forms
from project.celery import dynbeat

from celery_dynbeat import (
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    Trigger,
)

EXAMPLES = "every hour, weekdays at 9, first of the month at 9:30 pm, or a cron expression"


class ReportForm(forms.Form):
    """A title, and a rule in words or as a cron expression."""

    title = forms.CharField(max_length=80)
    rule = forms.CharField(max_length=200, help_text=EXAMPLES)

    def __init__(self, *args: Any, owner: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._schedules = dynbeat.schedules.for_owner(owner)

    def clean_rule(self) -> Trigger:
        """Return the trigger. An error of the rule is shown at its field."""
        mine = self._schedules
        try:
            # Only a date needs the zone: other rules follow the zone of the owner.
            trigger = Trigger.from_words(self.cleaned_data["rule"], date_timezone=mine.timezone())
            mine.preview(trigger, count=1)
        except (InvalidTriggerError, InvalidScheduleError, OwnerLimitError) as error:
            raise forms.ValidationError(str(error)) from error
        return trigger

"""The form for a new report."""

from typing import Any

from django import forms
from project.celery import dynbeat

from celery_dynbeat import InvalidScheduleError, InvalidTriggerError, OwnerLimitError

WORDS = {
    "every hour": "PT1H",
    "daily at 9": "0 9 * * *",
    "weekdays at 9": "0 9 * * mon-fri",
    "first of the month": "0 9 1 * *",
}


class ReportForm(forms.Form):
    """A title, and a rule in words or as a cron expression."""

    title = forms.CharField(max_length=80)
    rule = forms.CharField(max_length=200, help_text=f"{', '.join(WORDS)}, or a cron expression")

    def __init__(self, *args: Any, owner: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._schedules = dynbeat.schedules.for_owner(owner)

    def clean_rule(self) -> str:
        """Return the trigger as text. An error of the rule is shown at its field."""
        rule = self.cleaned_data["rule"]
        trigger = WORDS.get(rule.strip().lower(), rule)
        try:
            self._schedules.preview("report", trigger, count=1)
        except (InvalidTriggerError, InvalidScheduleError, OwnerLimitError) as error:
            raise forms.ValidationError(str(error)) from error
        return trigger

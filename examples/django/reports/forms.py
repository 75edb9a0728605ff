"""The form for a new report."""

from typing import Any

from django import forms
from project.celery import dynbeat

from celery_dynbeat import InvalidArgumentError, Trigger

EXAMPLES = "a cron expression such as 0 9 * * mon-fri, or a duration such as PT1H"


class ReportForm(forms.Form):
    """A title, and a rule as a cron expression or a duration."""

    title = forms.CharField(max_length=80)
    rule = forms.CharField(max_length=200, help_text=EXAMPLES)

    def __init__(self, *args: Any, owner: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._schedules = dynbeat.schedules.for_owner(owner)

    def clean_rule(self) -> Trigger:
        """Return the trigger. An error of the rule is shown at its field."""
        mine = self._schedules
        try:
            # A rule without a zone follows the zone of the owner.
            trigger = Trigger.from_text(self.cleaned_data["rule"])
            mine.preview(trigger, count=1)
        except InvalidArgumentError as error:
            raise forms.ValidationError(str(error)) from error
        return trigger

"""The form for a new report."""

from typing import ClassVar

from django import forms

from celery_dynbeat.django.forms import TriggerField
from reports.models import Report


class ReportForm(forms.ModelForm):
    """A title, and a rule: a preset, a cron expression or a duration."""

    rule = TriggerField(label="When")

    class Meta:
        """The rule is in the schedule."""

        model = Report
        fields: ClassVar = ["title"]

"""A field of a project's own model for a rule."""

from typing import Any

from django.db import models

from celery_dynbeat.django import forms


class TriggerTextField(models.TextField):
    """The text of a trigger. Its form field is TriggerField."""

    def formfield(self, **kwargs: Any) -> Any:
        """Return the field of a form."""
        # TextField adds a widget, which would replace that of TriggerField.
        return models.Field.formfield(self, **{"form_class": forms.TriggerField, **kwargs})

    def clean(self, value: Any, model_instance: Any) -> Any:
        """Return the text as the form field does: ``full_clean()`` checks the rule."""
        value = super().clean(value, model_instance)
        return forms.TriggerField(required=not self.blank).clean(value)

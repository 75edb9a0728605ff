"""Parts of a form: a field for a rule, and the errors of calls at their fields.

from celery_dynbeat.django.forms import TriggerField, errors_in

class ReminderForm(forms.Form):
    rule = TriggerField()

with errors_in(form), transaction.atomic():
    mine.create("reminder", task="remind", trigger=form.cleaned_data["rule"])
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_dynbeat.api.texts import RULE, text_of
from celery_dynbeat.common.errors import (
    ConflictError,
    DynbeatError,
    InvalidArgumentError,
    InvalidTriggerError,
    LimitError,
    NotFoundError,
)
from celery_dynbeat.triggers import Trigger

#: The labels of ``<dynbeat-rule>``.
LABELS = {
    "at": _("at"),
    "custom": _("Own rule"),
    "daily": _("Every day"),
    "days": _("Days of the week"),
    "every": _("Every"),
    "hours": _("hours"),
    "last": _("last day"),
    "minutes": _("minutes"),
    "monthDay": _("on day"),
    "monthly": _("Every month"),
    "never": _("It never fires."),
    "next": _("Next"),
    "number": _("Number"),
    "once": _("Once"),
    "preset": _("How often"),
    "rule": _("Rule"),
    "seconds": _("seconds"),
    "unavailable": _("There is no preview."),
    "unit": _("Unit"),
    "unitDays": _("days"),
    "weekdays": _("Monday to Friday"),
    "weekly": _("Every week"),
    "zone": _("Time zone"),
    "zoneHint": _("default"),
}


class RuleInput(forms.Textarea):
    """The element ``<dynbeat-rule>``. Without scripts, it is a text area.

    The page loads ``{{ form.media }}``. ``preview_url`` is the URL of a preview, if there is one,
    and ``zone`` the time zone of rules without one.
    """

    media = forms.Media(css={"all": ["dynbeat/rule.css"]}, js=["dynbeat/rule.js"])

    def __init__(
        self, attrs: dict[str, Any] | None = None, *, preview_url: str = "", zone: str = ""
    ) -> None:
        super().__init__({"rows": 2, **(attrs or {})})
        self.preview_url, self.zone = preview_url, zone

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> Any:
        """Return the element, with the text area inside."""
        return format_html(
            '<dynbeat-rule name="{}" preview-url="{}" zone="{}" data-labels="{}">{}</dynbeat-rule>',
            name,
            self.preview_url,
            self.zone,
            json.dumps({key: str(label) for key, label in LABELS.items()}),
            super().render(name, value, attrs, renderer),
        )


class TriggerField(forms.CharField):
    """A rule. Its value is the text of the trigger, which ``create`` and ``update`` take.

    An instant without a zone is in Django's current time zone.
    """

    widget = RuleInput

    def clean(self, value: Any) -> str:
        """Return the text. Raises ValidationError for a text that is no rule."""
        text: str = super().clean(value)
        if text in self.empty_values:
            return text
        try:
            return Trigger.from_text(text, timezone=_zone()).to_text()
        except InvalidTriggerError as error:
            raise forms.ValidationError(user_message(error), code=error.code) from error


def _zone() -> str | None:
    # A fixed offset has no name of the tz database.
    return getattr(timezone.get_current_timezone(), "key", None)


def user_message(error: DynbeatError) -> str:
    """Return ``error.user_message`` in the language of the request."""
    return error.worded(gettext)


@contextmanager
def errors_in(form: Any, *, worded: Callable[[DynbeatError], str] = user_message) -> Iterator[None]:
    """Show the errors that calls raise in the block at the fields of ``form``.

    An error of the rule stands at the field of the rule, and an error without a field above the
    form. In front of ``transaction.atomic()``, the transaction is rolled back. ``worded`` returns
    the text of an error.
    """
    try:
        yield
    except (InvalidArgumentError, ConflictError, LimitError, NotFoundError) as error:
        name = text_of(error)
        if name == RULE:
            rules = [each for each in form.fields if is_rule(form.fields[each])]
            name = next(iter(rules), "")
        form.add_error(name if name in form.fields else None, worded(error))


def is_rule(field: Any) -> bool:
    """Return whether a field of a form is a rule."""
    return isinstance(field.widget, RuleInput)

"""The fields of the form, in their order, and where each error of the API belongs."""

from collections.abc import Sequence
from importlib.util import find_spec

from celery_dynbeat.api.fields import FIELDS as ALL_FIELDS
from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
)
from celery_dynbeat.triggers.base import KINDS

#: The fields that make the trigger.
RULE_FIELDS = ("kind", "rule", "timezone", "calendar")
#: The fields with arguments of the task. They are left out if the pages hide arguments.
ARGUMENT_FIELDS = ("args", "kwargs")
#: The kinds of rules, as the menu shows them; "" detects the kind.
_KIND_LABELS = {
    "": "Detect from the text",
    "cron": "Cron expression",
    "every": "Interval",
    "once": "Once",
    "rrule": "Recurrence rule (RRULE)",
    "solar": "Solar event",
    "any_of": "Any of several triggers (JSON)",
    "excluding": "Trigger with exclusions (JSON)",
    "on_business_day": "Trigger on business days (JSON)",
}


#: The fields of the table that the form has.
TABLE = {name: each for name, each in ALL_FIELDS.items() if each.in_form}
#: The fields below "Policies". Empty means the default.
POLICIES = tuple(each for each in TABLE.values() if each.group in {"limit", "policy"})
#: Field -> its label, in the order of the form.
LABELS = {
    "task": TABLE["task"].label,
    "kind": "Kind of rule",
    "rule": "Rule",
    "timezone": "Time zone",
    "calendar": "Calendar",
    **{name: each.label for name, each in TABLE.items()},
}
#: All fields of a stored schedule that the form shows.
FIELDS = tuple(LABELS)
#: Fields that only a new schedule has.
NEW_FIELDS = ("owner", "name")
#: A field of the request, for the audit.
REASON = "reason"


def kinds(*, selected: str) -> Sequence[tuple[str, str]]:
    """Return the kinds of rules for the menu, as value and label.

    A stored kind that this version does not know stays in the menu, so that the form keeps it.
    """
    known = [kind for kind in ("", *KINDS) if kind != "solar" or selected == kind or has_ephem()]
    shown = [(kind, _KIND_LABELS[kind]) for kind in known]
    return shown if selected in known else [*shown, (selected, f"{selected} (unknown)")]


def has_ephem() -> bool:
    """Return whether the package is installed that computes the events of the sun."""
    return find_spec("ephem") is not None


def field_of(error: DynbeatError) -> str:
    """Return the field of the form to which an error belongs, "" for the whole form."""
    if isinstance(error, ScheduleExistsError):
        return "name"
    if isinstance(error, OwnerLimitError):
        return "owner"
    if isinstance(error, InvalidTriggerError):
        return error.field if error.field in {"timezone", "calendar"} else "rule"
    named = error.field or "" if isinstance(error, InvalidScheduleError) else ""
    if named == "trigger":
        return "rule"
    return named if named in {*LABELS, *NEW_FIELDS, REASON} else ""

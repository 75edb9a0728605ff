"""The fields of the form, in their order, and where each error of the API belongs."""

from celery_dynbeat.api.fields import FIELDS as ALL_FIELDS
from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
)

#: The fields with arguments of the task. They are left out if the pages hide arguments.
ARGUMENT_FIELDS = ("args", "kwargs")
#: The fields of the table that the form has.
TABLE = {name: each for name, each in ALL_FIELDS.items() if each.in_form}
#: The fields below "Policies". Empty means the default.
POLICIES = tuple(each for each in TABLE.values() if each.group in {"limit", "policy"})
#: Field -> its label, in the order of the form.
LABELS = {
    "task": TABLE["task"].label,
    "rule": "Rule",
    **{name: each.label for name, each in TABLE.items()},
}
#: Fields that only a new schedule has.
NEW_FIELDS = ("owner", "name")
#: A field of the request, for the audit.
REASON = "reason"


def field_of(error: DynbeatError) -> str:
    """Return the field of the form to which an error belongs, "" for the whole form."""
    if isinstance(error, ScheduleExistsError):
        return "name"
    if isinstance(error, OwnerLimitError):
        return "owner"
    if isinstance(error, InvalidTriggerError):
        return "rule"
    named = error.field or "" if isinstance(error, InvalidScheduleError) else ""
    if named == "trigger":
        return "rule"
    return named if named in {*LABELS, *NEW_FIELDS, REASON} else ""

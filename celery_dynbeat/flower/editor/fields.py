"""The fields of the form, in their order, and where each error of the API belongs."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
)
from celery_dynbeat.common.settings import CATCH_UPS, ON_LOST, OVERLAPS
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


@dataclass(frozen=True, slots=True)
class Policy:
    """An optional field below "Policies". Empty means the default of the settings.

    ``form`` is what a person types: ``"duration"``, ``"count"``, ``"instant"``, ``"choice"``,
    ``"retry"`` or ``"window"``.
    """

    name: str
    label: str
    form: str
    hint: str
    choices: Sequence[str] = ()


POLICIES: Sequence[Policy] = (
    Policy("start_at", "Start at", "instant", "The schedule does not fire earlier."),
    Policy("end_at", "End at", "instant", "The schedule does not fire later."),
    Policy("max_runs", "Max runs", "count", "The schedule ends after this many runs."),
    Policy("window", "Window", "window", "Spreads schedules after a fire time: 10m or 50%."),
    Policy("catch_up", "Catch up", "choice", "Which missed runs to send.", CATCH_UPS),
    Policy("catch_up_window", "Catch-up window", "duration", "Older missed runs are not sent."),
    Policy(
        "overlap", "Overlap", "choice", "What to do if the previous run is unfinished.", OVERLAPS
    ),
    Policy(
        "max_run_time",
        "Max run time",
        "duration",
        "Runs that take longer no longer count for overlap.",
    ),
    Policy(
        "expires_after",
        "Expires after",
        "duration",
        "A run expires if it has not started within this time.",
    ),
    Policy(
        "finish_within",
        "Finish within",
        "duration",
        "An unfinished run is an alert when this time has passed since its fire time.",
    ),
    Policy("on_lost", "On lost", "choice", "What to do if the worker dies during a run.", ON_LOST),
    Policy(
        "pause_after_failures",
        "Pause after failures",
        "count",
        "Pauses after this many failed runs in a row. 0 means never.",
    ),
    Policy(
        "retry",
        "Retry",
        "retry",
        "Retries of a failed run, such as 3, or times=3, delay=5m, factor=2. 0 means none.",
    ),
)
#: Field -> its label, in the order of the form.
LABELS = {
    "task": "Task",
    "kind": "Kind of rule",
    "rule": "Rule",
    "timezone": "Time zone",
    "calendar": "Calendar",
    "args": "Arguments",
    "kwargs": "Keyword arguments",
    "queue": "Queue",
    "priority": "Priority",
    "description": "Description",
    "tags": "Tags",
    **{policy.name: policy.label for policy in POLICIES},
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

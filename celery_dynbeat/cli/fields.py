"""The options of ``add`` and ``update`` that set the fields of a schedule."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import click

from celery_dynbeat.api.field_types import Choice, Tags
from celery_dynbeat.api.fields import FIELDS, Field
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import combined
from celery_dynbeat.cli.base.parameter_types import Duration, FieldText, Instant
from celery_dynbeat.cli.declarations.fields import trigger_of
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.triggers import Every, Once, Trigger

#: Option -> kind of trigger; the text of ``--trigger`` selects the kind itself.
_TRIGGERS = {"cron": "cron", "rrule": "rrule", "trigger": None}


class _EveryType(Duration):
    """A duration, or a calendar interval in ISO 8601, which stays a text."""

    def parse(self, text: str) -> Any:
        if text.strip()[:1].upper() in {"P", "R"}:
            return text
        return super().parse(text)


trigger_options = combined(
    click.option("--cron", metavar="TEXT", help="A cron expression, such as '0 9 * * mon-fri'."),
    click.option(
        "--every",
        type=_EveryType(),
        help="An interval, such as 5m, 90 (seconds) or P1M (a calendar month).",
    ),
    click.option(
        "--once", type=Instant(1), help="One fire time, such as 2026-11-22T09:00 or 2h (from now)."
    ),
    click.option(
        "--rrule", metavar="TEXT", help="A recurrence rule, such as 'FREQ=WEEKLY;BYDAY=MO'."
    ),
    click.option(
        "--trigger", metavar="TEXT", help="Any trigger, as text or as JSON with kind and spec."
    ),
    click.option(
        "--timezone",
        metavar="ZONE",
        help="The time zone of the trigger, such as Europe/Berlin. Default: the owner's.",
    ),
)


def _option(field: Field) -> Any:
    """Return the option that sets a field."""
    if isinstance(field.type, Tags):
        metavar, sentence = field.type.metavar, f"{field.help} Can be repeated."
        return click.option(field.option, field.name, multiple=True, metavar=metavar, help=sentence)
    kind = click.Choice(field.type.choices) if isinstance(field.type, Choice) else FieldText(field)
    return click.option(field.option, type=kind, help=field.help)


field_options = combined(*(_option(each) for each in FIELDS.values() if not each.is_required))


def trigger_from(invocation: Invocation, given: dict[str, Any]) -> Trigger | None:
    """Take the options of the trigger out of ``given``; return None if there are none.

    Raises UsageError if there are several, or if the trigger cannot be read.
    """
    timezone = given.pop("timezone")
    options = {name: given.pop(name) for name in (*_TRIGGERS, "every", "once")}
    chosen = {name: value for name, value in options.items() if value is not None}
    if not chosen:
        if timezone is not None:
            raise click.UsageError("--timezone needs a trigger: add --cron or --rrule")
        return None
    if len(chosen) > 1:
        names = " and ".join(f"--{name}" for name in chosen)
        raise click.UsageError(f"{names} cannot be combined: a schedule has one trigger")
    ((name, value),) = chosen.items()
    try:
        trigger = _trigger(invocation, name, value, timezone)
    except (InvalidScheduleError, InvalidTriggerError) as error:
        option = "timezone" if timezone is not None and error.field == "timezone" else name
        raise click.BadParameter(str(error), param_hint=f"--{option}") from None
    if timezone is not None and trigger.timezone is None and name != "once":
        raise click.UsageError(
            f"--{name} {value} does not depend on a time zone: leave --timezone out"
        )
    return trigger


def _trigger(invocation: Invocation, name: str, value: Any, timezone: str | None) -> Trigger:
    if isinstance(value, TypedInstant):
        return Once(_once_at(invocation, value, timezone))
    if name == "every":
        written = value if isinstance(value, str) else Every(value).spec
        return trigger_of({"kind": "every", "spec": written}, timezone=timezone)
    if kind := _TRIGGERS[name]:
        # A shell gives the line breaks of a rule as "\n".
        return trigger_of({"kind": kind, "spec": value.replace("\\n", "\n")}, timezone=timezone)
    return trigger_of(_as_json(value), timezone=timezone)


def _once_at(invocation: Invocation, given: TypedInstant, timezone: str | None) -> datetime:
    if timezone is None:
        at = invocation.instant(given)
        assert at is not None  # noqa: S101 - given is not None
        return at
    zone = invocation.load_zone(timezone)
    return given.resolve(now=lambda: invocation.now, zone=zone)


def _as_json(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidTriggerError(f"the trigger is not JSON: {error}") from None


def fields_from(invocation: Invocation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the command line sets."""
    fields = {key: value for key, value in given.items() if value is not None and value != ()}
    convert: Mapping[type, Callable[[Any], Any]] = {TypedInstant: invocation.instant, tuple: list}
    return {key: convert.get(type(value), _same)(value) for key, value in fields.items()}


def _same(value: Any) -> Any:
    return value

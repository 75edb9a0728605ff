"""The options of ``add`` and ``update`` that set the fields of a schedule."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import combined
from celery_dynbeat.cli.base.parameter_types import (
    Duration,
    Instant,
    Json,
    Number,
    RetryPolicy,
    Window,
)
from celery_dynbeat.cli.declarations.fields import trigger_of
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.settings import CATCH_UPS, ON_LOST, OVERLAPS
from celery_dynbeat.triggers import Every, Once, Trigger

_MAX_COUNT = 2**31 - 1
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
field_options = combined(
    click.option("--args", type=Json(list), help="Positional arguments of the task."),
    click.option("--kwargs", type=Json(dict), help="Keyword arguments of the task."),
    click.option("--queue", metavar="QUEUE", help="The queue of the messages."),
    click.option(
        "--priority", type=Number(least=0, most=255), help="The priority of the messages."
    ),
    click.option("--options", type=Json(dict), help="Other options of apply_async."),
    click.option(
        "--start-at", type=Instant(1), help="The time before which the schedule does not fire."
    ),
    click.option(
        "--end-at", type=Instant(1), help="The time after which the schedule does not fire."
    ),
    click.option(
        "--max-runs",
        type=Number(least=1, most=_MAX_COUNT),
        help="The number of runs after which the schedule is finished.",
    ),
    click.option(
        "--catch-up", type=click.Choice(CATCH_UPS), help="Which missed fire times to send."
    ),
    click.option(
        "--catch-up-window",
        type=Duration(),
        help="The age above which missed fire times are not sent.",
    ),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="What to do if the previous run is unfinished.",
    ),
    click.option(
        "--max-run-time",
        type=Duration(),
        help="The time after which a running run no longer counts as an overlap.",
    ),
    click.option(
        "--window",
        type=Window(),
        help="The span after a fire time in which the schedule has its offset, such as 10m, or"
        " 50% (of the interval).",
    ),
    click.option(
        "--expires-after",
        type=Duration(),
        help="The time after which a run that has not started expires.",
    ),
    click.option(
        "--finish-within",
        type=Duration(),
        help="The time from the fire time after which an unfinished run is an alert.",
    ),
    click.option(
        "--on-lost", type=click.Choice(ON_LOST), help="What to do if the worker of a run dies."
    ),
    click.option(
        "--pause-after-failures",
        type=Number(least=0, most=_MAX_COUNT),
        help="Pause the schedule after this many failed runs in a row. 0 means never.",
    ),
    click.option(
        "--retry",
        type=RetryPolicy(),
        help="How to retry a failed run, such as 3 or 'times=3, delay=5m, factor=2'. 0 means"
        " never.",
    ),
    click.option("--ping-url", metavar="URL", help="The URL to which workers report each run."),
    click.option("--description", metavar="TEXT", help="A description for people."),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag. Can be repeated."),
)


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

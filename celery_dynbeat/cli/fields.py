"""The options of ``add`` and ``update`` that set the fields of a schedule."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from celery_dynbeat.api.field_types import Choice, Tags
from celery_dynbeat.api.fields import FIELDS, Field
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import combined
from celery_dynbeat.cli.base.parameter_types import FieldText
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Trigger

trigger_option = click.option(
    "--trigger",
    metavar="TEXT",
    help="When it fires, such as 'CRON_TZ=Asia/Seoul 0 9 * * mon-fri', 5m, 'in 2h' or"
    " 2026-11-22T09:00.",
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
    """Take the trigger out of ``given``. Raises BadParameter if it cannot be read."""
    text = given.pop("trigger")
    if text is None:
        return None
    try:
        return Trigger.from_text(text, timezone=invocation.zone.key)
    except InvalidTriggerError as error:
        raise click.BadParameter(str(error), param_hint="--trigger") from None


def fields_from(invocation: Invocation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the command line sets."""
    fields = {key: value for key, value in given.items() if value is not None and value != ()}
    convert: Mapping[type, Callable[[Any], Any]] = {TypedInstant: invocation.instant, tuple: list}
    return {key: convert.get(type(value), _same)(value) for key, value in fields.items()}


def _same(value: Any) -> Any:
    return value

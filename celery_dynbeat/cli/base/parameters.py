"""The arguments and options of commands, and their types.

An invalid value is a usage error that names the value, rule and fix. The options of fields and
filters come from the tables ``FIELDS`` and ``KEYS``.
"""

import getpass
import os
from collections.abc import Sequence
from typing import Any

import click

from celery_dynbeat.api.field_types import Choice, Tags, TypedInstant, parse_instant
from celery_dynbeat.api.fields import FIELDS, Field
from celery_dynbeat.api.filters import KEYS, Key
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.text import MAX_BATCH, MAX_PAGE_SIZE, shorten


class _Type(click.ParamType[Any]):
    """A type whose ``parse`` raises ValueError with the rule."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def parse(self, text: str) -> Any:
        """Return the value of ``text``."""
        raise NotImplementedError


class FloatRange(click.FloatRange):
    """A range of numbers. ``nan``, which is in no range, is refused; click accepts it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 - only NaN differs from itself
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class InstantParam(_Type):
    """A date and time, or a duration from now (``direction`` 1) or before now (-1)."""

    name = "TIME"

    def __init__(self, direction: int) -> None:
        self.direction = direction

    def parse(self, text: str) -> TypedInstant:
        """Return the instant. Raises ValueError."""
        return parse_instant(text, direction=self.direction)


class FieldText(_Type):
    """The value of a field of a schedule."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.name = field.type.metavar

    def parse(self, text: str) -> Any:
        """Return the value. Raises ValueError."""
        value = self.field.type.parse(text)
        # The zone and the clock of the owner resolve an instant.
        if not isinstance(value, TypedInstant):
            self.field.check(value)
        return value


class _Id(_Type):
    """The id of a run or of a batch."""

    def __init__(self, kind: str, hint: str) -> None:
        self.kind, self.hint, self.name = kind, hint, f"{kind.upper()}_ID"

    def parse(self, text: str) -> str:
        """Return the id. Raises ValueError."""
        if is_run_id(text):
            return text
        raise ValueError(f"{shorten(text)} is not the id of a {self.kind}; {self.hint}")


RUN_ID = _Id("run", "`dynbeat runs` shows the ids")
BATCH_ID = _Id("batch", "`dynbeat rerun` and `run --since` print it")


def argument(name: str, *, required: bool = True, **settings: Any) -> click.Argument:
    """Return an argument. ``settings`` of click."""
    return click.Argument([name], required=required, **settings)


def option(*names: str, help: str, **settings: Any) -> click.Option:  # noqa: A002 - as in click
    """Return an option. ``settings`` of click."""
    return click.Option(names, help=help, **settings)


def flag(*names: str, help: str) -> click.Option:  # noqa: A002 - as in click
    """Return an option without a value."""
    return click.Option(names, is_flag=True, help=help)


def time_option(*names: str, help: str, ago: bool = False, **settings: Any) -> click.Option:  # noqa: A002
    """Return an option of an instant. With ``ago``, a duration counts back from now."""
    return option(*names, type=InstantParam(-1 if ago else 1), help=help, **settings)


def number_option(
    *names: str,
    help: str,  # noqa: A002 - as in click
    most: int,
    least: int = 1,
    default: int | None = None,
    metavar: str | None = None,
) -> click.Option:
    """Return an option of a whole number between two bounds."""
    return option(
        *names,
        type=click.IntRange(least, most),
        default=default,
        show_default=default is not None,
        metavar=metavar,
        help=help,
    )


def filter_options(kind: type, *fields: str, selects: str) -> Sequence[click.Option]:
    """Return the options for fields of a filter, in this order. ``selects`` begins their help.

    ``filter_options(RunFilter, "task", selects="Only runs")`` is ``--task`` with the help "Only
    runs of this task."
    """
    keys = {key.of_filter: key for key in KEYS[kind]}
    return [_filter_option(keys[field], selects) for field in fields]


def schedule_filter(selects: str) -> Sequence[click.Option]:
    """Return the options of the filter of schedules."""
    fields = ("state", "tag", "task", "name_prefix", "owner_prefix")
    return filter_options(ScheduleFilter, *fields, selects=selects)


def _filter_option(key: Key, selects: str) -> click.Option:
    given: click.ParamType[Any] = click.STRING
    if key.choices:
        given = click.Choice(key.choices)
    elif key.is_instant:
        given = InstantParam(-1)
    elif key.of_filter == "batch_id":
        given = BATCH_ID
    return option(
        f"--{(key.option or key.name).replace('_', '-')}",
        key.of_filter,
        type=given,
        multiple=key.repeats,
        metavar=key.metavar if given is click.STRING else None,
        help=f"{selects} {key.help}.",
    )


def _field_option(field: Field) -> click.Option:
    if isinstance(field.type, Tags):
        metavar, sentence = field.type.metavar, f"{field.help} Can be repeated."
        return option(field.option, field.name, multiple=True, metavar=metavar, help=sentence)
    kind = click.Choice(field.type.choices) if isinstance(field.type, Choice) else FieldText(field)
    return option(field.option, type=kind, help=field.help)


def shell_user() -> str:
    """Return the name of the user of this shell; its number if it has no name."""
    try:
        return getpass.getuser()
    # KeyError (before Python 3.13) means that the number is in no user database, as in some
    # containers.
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


#: The options that set the fields of a schedule.
FIELD_OPTIONS = tuple(_field_option(each) for each in FIELDS.values() if not each.is_required)
NAME = argument("name")
OPTIONAL_NAME = argument("name", required=False)
OWNER = option(
    "--owner",
    default="",
    metavar="OWNER",
    help="The owner of the schedules, such as user:42. Default: the application itself.",
)
OWNERS = (OWNER, flag("--all-owners", help="Select all owners instead of one."))
REASON = option(
    "--reason",
    default="",
    metavar="TEXT",
    help="The reason for the change, as `dynbeat changes` shows it.",
)
ACTOR = (
    option(
        "--actor",
        envvar="DYNBEAT_ACTOR",
        default=shell_user,
        show_default="the user of this shell",
        metavar="NAME",
        help="Who makes the change, as `dynbeat changes` shows it.",
    ),
    REASON,
)
EDIT = (OWNER, *ACTOR)
YES = flag("--yes", "-y", help="Do not ask for confirmation.")
#: For commands that record many runs.
PACE = (
    number_option(
        "--per-minute",
        most=MAX_BATCH,
        default=100,
        help="The number of runs that beat sends in a minute.",
    ),
    flag("--now", help="Do not wait for the end of the quiet hours of the owner."),
)
PAGE = (
    number_option(
        "--limit", most=MAX_PAGE_SIZE, default=100, help="The maximum number of rows, up to 1,000."
    ),
    option(
        "--after",
        metavar="CURSOR",
        help="Show the page after this cursor, which the previous page prints.",
    ),
    flag("--all", "all_pages", help="Show all pages."),
)

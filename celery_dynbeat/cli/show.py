"""``dynbeat show``: one schedule with its next fire times and last runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from celery_dynbeat.api import FireTime, ScheduleInfo
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import name_argument, owner_option
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.cli.holds import described
from celery_dynbeat.cli.quiet_hours import described as described_quiet_hours
from celery_dynbeat.cli.schedule_columns import RUNS
from celery_dynbeat.common.errors import InvalidScheduleError

if TYPE_CHECKING:
    from celery_dynbeat.api import OwnerSchedules

_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())
#: Shown before and after the fields.
_PAUSE = ("paused_reason", "paused_until")
_PROGRESS = ("failing_since", "finished_at", "managed_by")


@command("show", examples=("show report", "show report --owner user:42 --json"))
@name_argument
@owner_option
@click.option(
    "--count",
    type=Number(least=1, most=100),
    default=5,
    show_default=True,
    help="How many next fire times and last runs to show.",
)
def show(invocation: Invocation, *, name: str, count: int) -> None:
    """Show a schedule, its next fire times and its last runs.

    If a policy is not shown, its setting applies. The output shows only the host of a ping URL.
    --json prints the keys of the API, including the whole ping URL, and adds the next fire times as
    "upcoming" and the last runs as "runs".
    """
    mine, output = invocation.mine, invocation.output
    info = mine.get(name)
    # A damaged trigger has no fire times.
    upcoming = () if info.error else mine.upcoming(name, count=count, with_skipped=True)
    runs = mine.runs(name, limit=count)
    as_dict = info.to_dict() | {
        "upcoming": [each.to_dict() for each in upcoming],
        "runs": [each.to_dict() for each in runs],
    }
    holds = "; ".join(described(each, invocation) for each in mine.holds())
    values = {
        "time_zone": invocation.zone.key,
        "held": holds,
        "quiet_hours": _quiet_hours(mine),
        **_values(info, upcoming, timezone=invocation.zone.key),
    }
    shown = {key: value for key, value in values.items() if value not in _EMPTY}
    output.record(shown, zone=invocation.zone, now=invocation.now, as_dict=as_dict)
    if runs and output.on_terminal:
        output.line("")
        columns = [column for column in RUNS if column.name != "name"]
        invocation.show(columns, runs)


def _quiet_hours(mine: "OwnerSchedules") -> str:
    try:
        return "; ".join(
            described_quiet_hours(each, owner=mine.owner) for each in mine.quiet_hours()
        )
    except InvalidScheduleError as error:
        # SQL by hand. The schedule itself can be shown.
        return str(error)


def _values(
    info: ScheduleInfo, upcoming: Sequence[FireTime], *, timezone: str
) -> Mapping[str, Any]:
    trigger = info.trigger
    fields = {
        name: field.type.shown(field.value_in(info))
        for name, field in FIELDS.items()
        if not field.in_options
    }
    return {
        "name": info.name,
        "owner": info.owner,
        "state": info.state,
        "error": info.error,
        "description": info.description,
        "task": info.task,
        "trigger": info.given_trigger,
        "meaning": trigger and trigger.describe(timezone),
        "next_run_at": info.next_run_at,
        "upcoming": [each.at for each in upcoming if not each.is_skipped],
        "skipped": [each.at for each in upcoming if each.is_skipped],
        "last_run_at": info.last_run_at,
        "run_count": info.run_count,
        **{name: getattr(info, name) for name in _PAUSE},
        # A field above keeps its place.
        **fields,
        **{name: getattr(info, name) for name in _PROGRESS},
        "version": info.version,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
    }

"""The options that select many schedules, and the edit of all of them."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from celery_dynbeat.api import BulkResult
from celery_dynbeat.cli.base.errors import FAILED
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import combined, owner_prefix_option
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.states import State
from celery_dynbeat.common.text import counted, described_owner

#: The options, for an error.
FILTER_OPTIONS = "--state, --tag, --task, --name-prefix or --owner-prefix"
filter_options = combined(
    click.option(
        "--state",
        type=click.Choice([each.value for each in State]),
        help="Select all schedules in this state.",
    ),
    click.option("--tag", metavar="TAG", help="Select all schedules with this tag."),
    click.option("--task", metavar="TASK", help="Select all schedules of this task."),
    click.option(
        "--name-prefix", metavar="TEXT", help="Select all schedules whose names begin with TEXT."
    ),
    owner_prefix_option,
)
all_option = click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Select all schedules of the owner, or of all owners.",
)
_WORDS = {"state": "the state", "tag": "the tag", "task": "the task", "name_prefix": "the prefix"}
_PARTICIPLES = {"pause": "paused", "resume": "resumed", "delete": "deleted"}


def given_filters(filters: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return the filters of a command line that are given; the call refuses an empty one."""
    return {name: value for name, value in filters.items() if value is not None}


def select(
    invocation: Invocation, name: str | None, filters: Mapping[str, str | None], *, everything: bool
) -> Mapping[str, Any] | None:
    """Return the filter of a call for many, or None if the command names one schedule.

    Raises UsageError unless the command line has a NAME, filters or ``--all``.
    """
    matching: dict[str, Any] = {**given_filters(filters)}
    if [name is None, not matching, not everything].count(False) != 1:
        msg = f"give either the NAME of a schedule, --all or a filter: {FILTER_OPTIONS}"
        raise click.UsageError(msg, invocation.context)
    if name is None:
        return {"everything": True} if everything else matching
    if invocation.all_owners:
        msg = f"--all-owners needs --all or a filter: {FILTER_OPTIONS}"
        raise click.UsageError(msg, invocation.context)
    return None


def edit_many(
    invocation: Invocation,
    verb: str,
    call: Callable[..., BulkResult],
    matching: Mapping[str, Any],
) -> None:
    """Count the schedules that match, ask, edit them and print the numbers.

    Exits with status 1 if the edit of a schedule failed. If the count is exact, only as many
    schedules are edited as the operator has confirmed.
    """
    which, done = _which(invocation, matching), _PARTICIPLES[verb]
    expected = None
    if not invocation.yes:
        filters = {name: value for name, value in matching.items() if name != "everything"}
        found = invocation.calls.count(**filters)
        what = f"{found} {'schedule' if str(found) == '1' else 'schedules'}{which}"
        if not found.count and found.exact and invocation.can_ask:
            nothing = _as_dict(BulkResult(), done)
            invocation.output.done(f"nothing to {verb}: {what}", nothing)
            return
        invocation.confirm(f"{verb.capitalize()} {what}?")
        expected = found.count if found.exact else None
    try:
        with progress(f"schedules {done}") as advance:
            result = call(expected=expected, progress=advance, **matching)
    except InvalidScheduleError as error:
        if error.field != "expected":
            raise
        invocation.refuse(
            f"the number of matching schedules is no longer {expected:,}; nothing"
            " was changed: repeat the command"
        )
    _report(invocation, result, which, done)


def _which(invocation: Invocation, matching: Mapping[str, Any]) -> str:
    parts = [f"{_WORDS[name]} {value!r}" for name, value in matching.items() if name in _WORDS]
    words = f" with {', '.join(parts)}" if parts else ""
    owner, prefix = invocation.owner, matching.get("owner_prefix")
    if prefix is not None:
        return f"{words} of the owners that begin with {prefix!r}"
    return f"{words} of {'all owners' if owner is None else described_owner(owner)}"


def _report(invocation: Invocation, result: BulkResult, which: str, done: str) -> None:
    parts = [f"{done} {counted(result.changed, 'schedule')}{which}"]
    parts += [f"{result.unchanged:,} unchanged"] if result.unchanged else []
    parts += [f"{result.failed:,} failed"] if result.failed else []
    invocation.output.done("; ".join(parts), _as_dict(result, done))
    for each in () if invocation.output.as_json else result.failures:
        whose = f" of owner {each.owner!r}" if each.owner else ""
        invocation.output.note(f"schedule {each.name!r}{whose}: {each.error}")
    if result.failed:
        invocation.context.exit(FAILED)


def _as_dict(result: BulkResult, done: str) -> Mapping[str, Any]:
    values = result.to_dict()
    return {"ok": not result.failed, done: values.pop("changed"), **values}

"""``dynbeat add|update|skip|pause|resume|delete``: edit a schedule, or all that match a filter."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import click
from sqlalchemy.orm import Session

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results import BulkResult, FireTime, ScheduleInfo
from celery_dynbeat.cli.base.errors import FAILED
from celery_dynbeat.cli.base.invocation import Invocation, command, progress, tried
from celery_dynbeat.cli.base.parameters import (
    ACTOR,
    EDIT,
    FIELD_OPTIONS,
    NAME,
    OPTIONAL_NAME,
    OWNERS,
    YES,
    InstantParam,
    argument,
    flag,
    option,
    schedule_filter,
    time_option,
)
from celery_dynbeat.common.errors import InvalidArgumentError, InvalidTriggerError
from celery_dynbeat.common.text import counted, described_owner
from celery_dynbeat.triggers import Trigger

_TASK = {"metavar": "TASK", "help": "The name of the task."}
_TRIGGER = option(
    "--trigger",
    metavar="TEXT",
    help="When it fires, such as 'CRON_TZ=Asia/Seoul 0 9 * * mon-fri', 5m, 'in 2h' or"
    " 2026-11-22T09:00.",
)
#: Field -> its value after ``--clear``.
_CLEARED = {name: field.default for name, field in FIELDS.items() if not field.is_required}
#: The options of the filter, for an error.
_FILTER_OPTIONS = "--state, --tag, --task, --name-prefix or --owner-prefix"
_SELECT = schedule_filter("Select all schedules")
_SCHEDULES = (
    OPTIONAL_NAME,
    flag("--all", "everything", help="Select all schedules of the owner, or of all owners."),
    *_SELECT,
    *OWNERS,
    *ACTOR,
    YES,
)
_WORDS = {"state": "the state", "tag": "the tag", "task": "the task", "name_prefix": "the prefix"}
_PARTICIPLES = {"pause": "paused", "resume": "resumed", "delete": "deleted"}


@command(
    "add",
    argument("name"),
    option("--task", required=True, **_TASK),
    _TRIGGER,
    *EDIT,
    *FIELD_OPTIONS,
    flag("--paused", help="Create the schedule paused. `dynbeat resume` starts it."),
    flag("--dry-run", help="Check everything and show the next fire times, but write nothing."),
)
def add(cli: Invocation, *, name: str, paused: bool, dry_run: bool, **given: Any) -> None:
    """Create a schedule. --trigger is the text of the trigger, with its time zone.

    A trigger without a zone follows the owner's. If you omit a policy, its setting applies.

    For example:
        add digest --task app.tasks.digest --trigger '0 9 * * mon-fri'
        add poll --task app.tasks.poll --trigger 5m --owner user:42 --kwargs '{"account": 42}'
        add goodbye --task app.tasks.mail --trigger 'in 40h' --paused
        add digest --task app.tasks.digest --trigger 'CRON_TZ=Asia/Seoul 0 9 * * *' --dry-run
    """
    fields = _fields(cli, given)
    if "trigger" not in fields:
        raise click.UsageError("add --trigger, such as --trigger '0 9 * * mon-fri' or --trigger 5m")
    if paused:
        fields["enabled"] = False
    if dry_run:
        _show_only(cli, name, fields)
        return
    info = cli.mine.create(name, **fields)
    cli.done(f"added {cli.label(name)}{cli.when(info)}", info.to_dict())


def _fields(cli: Invocation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the command line sets. Raises BadParameter for a bad trigger."""
    fields = {key: value for key, value in given.items() if value is not None and value != ()}
    if "trigger" in fields:
        try:
            fields["trigger"] = Trigger.from_text(fields["trigger"], timezone=cli.zone.key)
        except InvalidTriggerError as error:
            raise click.BadParameter(str(error), param_hint="--trigger") from None
    return fields


def _show_only(cli: Invocation, name: str, fields: Mapping[str, Any]) -> None:
    """Create the schedule in a transaction that is rolled back, and print its fire times."""

    def create(session: Session) -> tuple[ScheduleInfo, Sequence[FireTime]]:
        mine = cli.mine.bound(session=session)
        return mine.create(name, **fields), mine.upcoming(name)

    info, fire_times = tried(cli.dynbeat, create)
    shown = [
        ", ".join(filter(None, (cli.time(each.fire_at), each.wait_note))) for each in fire_times
    ]
    upcoming = [each.fire_at.isoformat() for each in fire_times]
    cli.done(
        "; next: ".join([f"{cli.label(name)} can be added", *shown[:1]]),
        {**info.to_dict(), "id": None, "next": upcoming, "dry_run": True},
    )
    for each in () if cli.as_json else shown[1:]:
        cli.line(f"  then {each}")


@command(
    "update",
    NAME,
    option("--task", **_TASK),
    _TRIGGER,
    *EDIT,
    *FIELD_OPTIONS,
    option(
        "--clear",
        multiple=True,
        type=click.Choice(sorted(_CLEARED)),
        metavar="FIELD",
        help="A field, such as window, to reset to its default. Can be repeated.",
    ),
    option("--rename", "new_name", metavar="NAME", help="Give the schedule another name."),
)
def update(
    cli: Invocation, *, name: str, clear: Sequence[str], new_name: str | None, **given: Any
) -> None:
    """Change some fields of a schedule. All other fields keep their values.

    A new trigger, --start-at, --end-at or --max-runs sets the next fire time, counted from now. A
    trigger without a zone follows the owner's, whatever the old one had. --tag replaces all tags.

    With --rename, the schedule keeps its history and its next fire time, and its runs keep the name
    under which they were recorded. A trigger with an H keeps its fire times, because the numbers
    that H stands for replace it in the text of the trigger.

    For example:
        update digest --trigger '30 9 * * mon-fri' --reason 'ticket 12'
        update poll --owner user:42 --overlap skip --clear window
        update digest --rename morning-digest --owner user:42 --reason 'ticket 12'
    """
    changes = _fields(cli, given)
    if both := sorted(changes.keys() & set(clear)):
        raise click.UsageError(f"--clear {both[0]} and its option cannot be combined")
    changes |= {field: _CLEARED[field] for field in clear}
    if not changes and new_name is None:
        raise click.UsageError("give at least one option that changes a field")

    def work(session: Session) -> ScheduleInfo:
        mine = cli.mine.bound(session=session)
        if changes:
            info = mine.update(name, **changes)
        if new_name is not None:
            info = mine.rename(name, new_name)
        return info

    info = cli.dynbeat.context.write(None, work)
    done = [f"updated {cli.label(name)}: {', '.join(changes)}"] if changes else []
    if new_name is not None:
        done.append(f"renamed {'it' if done else cli.label(name)} to {new_name!r}")
    cli.done(f"{'; '.join(done)}{cli.when(info)}", info.to_dict())


@command(
    "skip",
    NAME,
    argument("fire_time", type=InstantParam(1), required=False),
    flag("--next", "is_next", help="Skip the next fire time."),
    flag("--undo", help="Restore the skipped FIRE_TIME before it passes."),
    *EDIT,
)
def skip(
    cli: Invocation, *, name: str, fire_time: datetime | None, is_next: bool, undo: bool
) -> None:
    """Skip one fire time of a schedule. All other fire times stay. `dynbeat show` lists them.

    If FIRE_TIME is not a fire time of the schedule, the error names the nearest fire times.

    For example:
        skip digest 2026-12-24T09:00 --owner user:42 --reason 'public holiday'
        skip digest --next
        skip digest 2026-12-24T09:00 --owner user:42 --undo
    """
    if undo and (fire_time is None or is_next):
        raise click.UsageError("--undo needs FIRE_TIME, without --next")
    if (fire_time is None) != is_next:
        raise click.UsageError("give either FIRE_TIME or --next")
    mine = cli.mine
    at = fire_time or next((each.fire_at for each in mine.upcoming(name, count=1)), None)
    if at is None:
        cli.refuse(f"{cli.label(name)} has no next fire time")
    info = mine.unskip(name, at) if undo else mine.skip(name, at, reason=cli.reason)
    done = "restored" if undo else "skipped"
    cli.done(f"{cli.label(name)}: {done} {cli.time(at)}{cli.when(info)}", info.to_dict())


@command(
    "pause",
    *_SCHEDULES,
    time_option(
        "--until", help="When beat resumes the schedule. Default: it stays paused until `resume`."
    ),
)
def pause(
    cli: Invocation, *, name: str | None, until: datetime | None, everything: bool, **filters: Any
) -> None:
    """Stop a schedule until it is resumed, or until an instant.

    Runs that have not started are revoked, except manual runs. --reason is shown with the paused
    schedule. If you pass --all, --state, --tag, --task, --name-prefix or --owner-prefix, the
    command pauses all matching schedules. It first prints their number and asks for confirmation.
    Schedules that are already paused keep their reason.

    For example:
        pause digest --owner user:42 --reason 'ticket 12'
        pause --tag newsletter --all-owners --reason 'the mail server moves'
        pause --owner-prefix org:7/ --reason 'unpaid'
        pause digest --owner user:42 --until 2d
    """
    matching = _matching(cli, name, filters, everything=everything)
    if name is None:
        _edit_many(cli, "pause", partial(cli.calls.pause_many, until=until), matching)
        return
    info = cli.mine.pause(name, until=until, reason=cli.reason)
    end = f" until {cli.time(info.paused_until)}" if info.paused_until else ""
    cli.done(f"paused {cli.label(name)}{end}", info.to_dict())


@command("resume", *_SCHEDULES)
def resume(cli: Invocation, *, name: str | None, everything: bool, **filters: Any) -> None:
    """Resume a paused or quarantined schedule at its next fire time.

    Fire times that passed during the pause are recorded as skipped. If you pass --all, --state,
    --tag, --task, --name-prefix or --owner-prefix, the command resumes all matching schedules. It
    first prints their number and asks for confirmation.

    For example:
        resume digest --owner user:42
        resume --state paused --tag newsletter --all-owners
    """
    matching = _matching(cli, name, filters, everything=everything)
    if name is None:
        _edit_many(cli, "resume", cli.calls.resume_many, matching)
        return
    info = cli.mine.resume(name)
    cli.done(f"resumed {cli.label(name)}{cli.when(info)}", info.to_dict())


@command(
    "delete",
    OPTIONAL_NAME,
    flag("--all-of-owner", help="Delete all schedules, holds and quiet hours of the owner."),
    *_SELECT,
    flag(
        "--erase-history",
        help="With --all-of-owner, also delete the runs and changes of the owner.",
    ),
    *OWNERS,
    *ACTOR,
    YES,
)
def delete(
    cli: Invocation, *, name: str | None, all_of_owner: bool, erase_history: bool, **filters: Any
) -> None:
    """Delete a schedule, and revoke its runs that have not started. Its history is kept.

    If you pass --state, --tag, --task, --name-prefix or --owner-prefix, the command deletes all
    matching schedules, after asking for confirmation. With these options, and with
    --erase-history, it commits each batch separately. If the command is interrupted, repeat it.

    For example:
        delete digest --yes
        delete --all-of-owner --owner user:42
        delete --tag import:django-celery-beat --all-owners
        delete --state finished --name-prefix trial- --owner user:42
        delete --all-of-owner --owner user:42 --erase-history --reason 'account closed'
    """
    matching = _matching(cli, name, filters, all_of_owner=all_of_owner)
    if erase_history and not all_of_owner:
        raise click.UsageError("--erase-history needs --all-of-owner")
    if matching:
        _edit_many(cli, "delete", cli.calls.delete_many, matching)
    elif name is None:
        _delete_all(cli, erase_history=erase_history)
    else:
        cli.mine.get(name)
        cli.confirm(f"Delete {cli.label(name)}?")
        cli.mine.delete(name)
        cli.done(f"deleted {cli.label(name)}", {"ok": True, "deleted": 1})


def _delete_all(cli: Invocation, *, erase_history: bool) -> None:
    if not cli.owner_given:
        raise click.UsageError("--all-of-owner needs --owner; '' is the application itself")
    owner = cli.owner or ""
    history = " and their history" if erase_history else ""
    cli.confirm(f"Delete all schedules of owner {owner!r}{history}?")
    with progress("rows deleted") as advance:
        deleted = cli.schedules.delete_owner(owner, erase_history=erase_history, progress=advance)
    text = f"deleted {counted(deleted, 'schedule')} of {described_owner(owner)}{history}"
    cli.done(text, {"ok": True, "deleted": deleted})


def _matching(
    cli: Invocation,
    name: str | None,
    filters: Mapping[str, Any],
    *,
    everything: bool = False,
    all_of_owner: bool | None = None,
) -> Mapping[str, Any]:
    """Return the filter of a call for many schedules; {} for ``name``.

    ``delete`` has ``--all-of-owner`` in place of ``--all``. Raises UsageError unless the command
    line has a NAME, filters or this option.
    """
    # The call refuses a filter that is empty.
    given = {key: value for key, value in filters.items() if value is not None}
    whole = "--all" if all_of_owner is None else "--all-of-owner"
    if [name is not None, bool(given), everything or bool(all_of_owner)].count(True) != 1:
        raise click.UsageError(
            f"give either the NAME of a schedule, {whole} or a filter: {_FILTER_OPTIONS}"
        )
    matching = {"everything": True} if everything else given
    if cli.all_owners and not matching:
        needed = "--all or a filter" if all_of_owner is None else "a filter"
        raise click.UsageError(f"--all-owners needs {needed}: {_FILTER_OPTIONS}")
    return matching


def _edit_many(
    cli: Invocation, verb: str, call: Callable[..., BulkResult], matching: Mapping[str, Any]
) -> None:
    """Count the schedules that match, ask, edit them and print the numbers.

    Exits with status 1 if the edit of a schedule failed. If the count is exact, only as many
    schedules are edited as the operator has confirmed.
    """
    which, done, expected = _which(cli, matching), _PARTICIPLES[verb], None
    if not cli.yes:
        filters = {name: value for name, value in matching.items() if name != "everything"}
        found = cli.calls.count(**filters)
        what = f"{found} {'schedule' if str(found) == '1' else 'schedules'}{which}"
        nothing = None if found.count or not found.exact else f"nothing to {verb}: {what}"
        unchanged = _as_dict(BulkResult(), done)
        if not cli.agrees(f"{verb.capitalize()} {what}?", nothing=nothing, result=unchanged):
            return
        expected = found.count if found.exact else None
    try:
        with progress(f"schedules {done}") as advance:
            result = call(expected=expected, progress=advance, **matching)
    except InvalidArgumentError as error:
        if error.field != "expected":
            raise
        cli.refuse(
            f"the number of matching schedules is no longer {expected:,}; nothing"
            " was changed: repeat the command"
        )
    parts = [f"{done} {counted(result.changed, 'schedule')}{which}"]
    parts += [f"{result.unchanged:,} unchanged"] if result.unchanged else []
    parts += [f"{result.failed:,} failed"] if result.failed else []
    cli.done("; ".join(parts), _as_dict(result, done))
    for each in () if cli.as_json else result.failures:
        whose = f" of owner {each.owner!r}" if each.owner else ""
        cli.note(f"schedule {each.name!r}{whose}: {each.error}")
    if result.failed:
        cli.context.exit(FAILED)


def _which(cli: Invocation, matching: Mapping[str, Any]) -> str:
    parts = [f"{_WORDS[name]} {value!r}" for name, value in matching.items() if name in _WORDS]
    words = f" with {', '.join(parts)}" if parts else ""
    prefix = matching.get("owner_prefix")
    if prefix is not None:
        return f"{words} of the owners that begin with {prefix!r}"
    return f"{words} of {cli.whose}"


def _as_dict(result: BulkResult, done: str) -> Mapping[str, Any]:
    values = result.to_dict()
    return {"ok": not result.failed, done: values.pop("changed"), **values}

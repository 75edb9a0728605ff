"""``dynbeat apply``: make the stored schedules match the declared ones, in one transaction.

A file is complete, so a field that it leaves out gets its default. The pause is an exception. A
schedule that an operator paused stays paused if the file does not say ``enabled``. A pause whose
``paused_until`` has passed has ended.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TextIO

import click
from sqlalchemy.orm import Session

from celery_dynbeat.api import Dynbeat, OwnerSchedules
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.cli.base.cells import encodable
from celery_dynbeat.cli.base.errors import FAILED
from celery_dynbeat.cli.base.invocation import Invocation, all_of, command, tried
from celery_dynbeat.cli.base.parameters import ACTOR, YES, argument, flag, option
from celery_dynbeat.cli.file_format import (
    MAX_LENGTH,
    Declaration,
    DeclarationError,
    DeclaredFile,
    arguments,
    declared,
    declared_file,
    pause_of,
)
from celery_dynbeat.common.errors import (
    ConflictError,
    DynbeatError,
    InvalidArgumentError,
    LimitError,
    NotFoundError,
)
from celery_dynbeat.common.text import counted, escape

#: More errors than these help no reader.
MAX_ERRORS = 20
_SIGNS = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}
_DONE = {"create": "created", "update": "updated", "delete": "deleted", "keep": "unchanged"}


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """The action of ``apply`` for one schedule: ``create``, ``update``, ``delete`` or ``keep``.

    ``before`` and ``after`` are its declared fields.
    """

    action: str
    owner: str
    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def changed(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the name, old value and new value of each changed field. None means the default.

        Only the host of a ping URL is shown, because the rest can contain a token.
        """
        for field in {**self.before, **self.after}:
            old, new = self.before.get(field), self.after.get(field)
            if old != new:
                mask = FIELDS[field].type.masked if field in FIELDS else _same
                yield field, mask(old), mask(new)


def _same(value: Any) -> Any:
    return value


class InvalidDeclarationsError(DeclarationError):
    """Schedules of a file are refused. ``errors`` are at most MAX_ERRORS of them."""

    def __init__(self, errors: Sequence[DeclarationError]) -> None:
        first = errors[0]
        Exception.__init__(self, "\n".join(str(error) for error in errors))
        self.file, self.line, self.field = first.file, first.line, first.field
        self.errors = tuple(errors)


class ChangedMeanwhileError(DynbeatError):
    """``--prune`` would delete schedules that the confirmed list does not have."""


def apply(
    dynbeat: Dynbeat,
    found: Sequence[Declaration],
    *,
    tag: str | None = None,
    prune_owners: Sequence[str] = (),
    dry_run: bool = False,
    may_delete: Collection[tuple[str, str]] | None = None,
) -> Sequence[AppliedEdit]:
    """Create, update and delete schedules, and return each edit in the order of the file.

    - With ``tag``, each declared schedule gets the tag, and only schedules with it are pruned.
    - ``prune_owners`` are the owners whose other schedules are deleted. Those that follow Celery's
      ``beat_schedule`` stay.
    - With ``dry_run`` the transaction is rolled back.
    - ``may_delete`` are the owners and names that a person confirmed; None means any.

    Raises InvalidDeclarationsError if a schedule is refused, and ChangedMeanwhileError if a
    schedule would be deleted that ``may_delete`` does not have. Then no schedule has changed.
    """

    def work(session: Session) -> Sequence[AppliedEdit]:
        edits = _apply_all(dynbeat, session, found, tag=tag)
        names = {(each.owner, each.name) for each in found}
        for owner in prune_owners:
            mine = dynbeat.schedules.for_owner(owner, session=session)
            edits += _prune(mine, keep=names, tag=tag, may_delete=may_delete)
        return edits

    return tried(dynbeat, work) if dry_run else dynbeat.context.write(None, work)


def _apply_all(
    dynbeat: Dynbeat, session: Session, found: Sequence[Declaration], *, tag: str | None
) -> list[AppliedEdit]:
    edits: list[AppliedEdit] = []
    errors: list[DeclarationError] = []
    for each in found:
        mine = dynbeat.schedules.for_owner(each.owner, session=session)
        try:
            edits.append(_apply_one(mine, each, tag, now=dynbeat.context.now(session)))
        except (InvalidArgumentError, ConflictError) as error:
            errors.append(each.error(str(error), _field_in_file(each, error.field)))
        except LimitError as error:
            errors.append(each.error(str(error), "owner"))
        if len(errors) == MAX_ERRORS:
            break
    if errors:
        raise InvalidDeclarationsError(errors)
    return edits


def _field_in_file(each: Declaration, field: str | None) -> str | None:
    """Return the key of the file for the field of an error; parts of a trigger are in one key."""
    if field in each.given:
        return field
    name = (field or "").partition("[")[0]
    return name if name in each.given else "trigger"


def _apply_one(
    mine: OwnerSchedules, each: Declaration, tag: str | None, *, now: datetime
) -> AppliedEdit:
    given, pause = arguments(each.given), pause_of(each.given)
    if pause.get("paused_until") is not None and pause["paused_until"] <= now:
        pause = {"enabled": True}
    if tag is not None:
        given["tags"] = [*FIELDS["tags"].check(given["tags"]), tag]
    try:
        before = mine.get(each.name)
    except NotFoundError:
        made = mine.create(each.name, **given, enabled=pause.get("enabled", True))
        # The reason of the edit is not the reason of the pause.
        after = _set_pause(mine, made, {"paused_reason": "", **pause}, now=now)
        return AppliedEdit("create", each.owner, each.name, {}, _shown(after))
    if before.managed_by:
        message = "it follows an entry of beat_schedule; change it there, or choose another name"
        raise InvalidArgumentError(message, field="name")
    after = mine.update(each.name, **given)
    after = _set_pause(mine, after, pause, now=now)
    action = "keep" if after.version == before.version else "update"
    return AppliedEdit(action, each.owner, each.name, _shown(before), _shown(after))


def _set_pause(
    mine: OwnerSchedules, info: ScheduleInfo, given: Mapping[str, Any], *, now: datetime
) -> ScheduleInfo:
    enabled = given.get("enabled", info.enabled)
    if not isinstance(enabled, bool):
        message = f"enabled = {enabled!r}: must be true or false"
        raise InvalidArgumentError(message, field="enabled")
    if enabled:
        return info if info.enabled else mine.resume(info.name)
    reason = given.get("paused_reason", info.paused_reason or "")
    # A file that says only ``enabled: false`` does not change the end.
    until = given.get("paused_until", info.paused_until)
    if not info.enabled and (reason, until) == (info.paused_reason or "", info.paused_until):
        return info
    if until is not None and "paused_until" not in given and until <= now:
        # Beat has not ended the previous pause yet. The file asks for a pause without an end.
        until = None
    return mine.pause(info.name, reason=reason, until=until)


def _prune(
    mine: OwnerSchedules,
    *,
    keep: Collection[tuple[str, str]],
    tag: str | None,
    may_delete: Collection[tuple[str, str]] | None,
) -> list[AppliedEdit]:
    edits = []
    for info in list(all_of(partial(mine.list, tag=tag))):
        key = info.owner, info.name
        if key in keep or info.managed_by:
            continue
        if may_delete is not None and key not in may_delete:
            raise ChangedMeanwhileError(
                f"schedule {info.name!r} of owner {info.owner!r} was added while the deletes were"
                " confirmed; nothing was changed: repeat the command"
            )
        mine.delete(info.name)
        before = {"task": info.task} if info.trigger is None else _shown(info)
        edits.append(AppliedEdit("delete", info.owner, info.name, before, {}))
    return edits


def _shown(info: ScheduleInfo) -> Mapping[str, Any]:
    fields = {} if info.trigger is None else declared(info, with_owner=False)
    return {key: value for key, value in fields.items() if key != "name"}


@command(
    "apply",
    argument("file", type=click.File("r", encoding="utf-8")),
    flag("--prune", help="Delete the schedules that are not in the file."),
    flag("--dry-run", help="Show the changes without making them."),
    option(
        "--owner",
        default=None,
        metavar="OWNER",
        help="The owner of all schedules of the file. Default: the file names it, or the"
        " application.",
    ),
    option(
        "--tag",
        metavar="TAG",
        help="Add this tag to each schedule in the file. --prune deletes only schedules with this"
        " tag.",
    ),
    *ACTOR,
    YES,
    is_list=True,
)
def apply_file(
    cli: Invocation, *, file: TextIO, prune: bool, dry_run: bool, tag: str | None
) -> None:
    """Make the stored schedules match FILE (YAML or JSON).

    FILE can be - for stdin. All changes are made in one transaction. A field that the file leaves
    out gets its default, but a paused schedule stays paused unless the file says `enabled: true`.
    --prune deletes all other schedules of the owners that the file names, but never entries of
    beat_schedule.

    For example:
        apply schedules.yaml --dry-run
        apply schedules.yaml --tag git --prune --yes
        export --owner user:42 | celery -A other dynbeat apply -

    Exit status: 0: success, even if nothing had to change. 1: a schedule in the file was refused,
    or the database reported an error. Nothing has changed. 2: the command line is invalid.
    """
    confirmed = None
    try:
        found = _read(file, owner=cli.owner)
        owners = found.owners() if prune else []
        if prune and not owners:
            message = "--prune needs an owner, and the file names none: give --owner"
            raise click.UsageError(message)
        work = partial(apply, cli.dynbeat, found.schedules, tag=tag, prune_owners=owners)
        if prune and not dry_run and not cli.yes:
            confirmed = _confirm_deletes(cli, work(dry_run=True))
        edits = work(dry_run=dry_run, may_delete=confirmed)
    except InvalidDeclarationsError as error:
        errors = [str(each) for each in error.errors]
        if cli.as_json:
            click.echo(json.dumps({"ok": False, "error": errors[0], "errors": errors}))
        else:
            for each in errors:
                cli.note(each)
        cli.context.exit(FAILED)
    for edit in edits if cli.as_json else ():
        cli.line(json.dumps(_as_dict(edit, dry_run=dry_run)))
    if not cli.as_json:
        # The question has shown the changes already.
        _show_changes(cli, () if confirmed else edits)
        counts = Counter(edit.action for edit in edits)
        done = ", ".join(f"{counts[action]} {word}" for action, word in _DONE.items())
        cli.line(f"{done} (dry run: nothing was changed)" if dry_run else done)


def _read(file: TextIO, *, owner: str | None) -> DeclaredFile:
    name = str(getattr(file, "name", "<stdin>"))
    try:
        text = file.read(MAX_LENGTH + 1)
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason} at byte {error.start}"
        raise DeclarationError(message, file=name) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise DeclarationError(message, file=name) from error
    return declared_file(text, file=name, owner=owner)


def _confirm_deletes(
    cli: Invocation, planned: Sequence[AppliedEdit]
) -> Collection[tuple[str, str]]:
    """Show the edits and ask, if there are deletes among them. Return the confirmed deletes."""
    deletes = {(edit.owner, edit.name) for edit in planned if edit.action == "delete"}
    if deletes:
        _show_changes(cli, planned, err=True)
        cli.confirm(f"This deletes {counted(len(deletes), 'schedule')}.")
    return deletes


def _show_changes(cli: Invocation, edits: Sequence[AppliedEdit], *, err: bool = False) -> None:
    for edit in edits:
        if edit.action == "keep":
            continue
        sign, color = _SIGNS[edit.action]
        owner = f" of {escape(edit.owner)}" if edit.owner else ""
        lines = [f"{sign} {edit.action} {escape(edit.name)}{owner}"]
        for field, old, new in () if edit.action == "delete" else edit.changed():
            before = "" if edit.action == "create" else f"{_text(old)} -> "
            lines.append(f"    {field}: {before}{_text(new)}")
        text = encodable("\n".join(lines))
        click.echo(text if cli.no_color else click.style(text, fg=color), err=err)


def _text(value: Any) -> str:
    if value is None:
        return "(default)"
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _as_dict(edit: AppliedEdit, *, dry_run: bool) -> dict[str, Any]:
    return {
        "action": edit.action,
        "owner": edit.owner,
        "name": edit.name,
        "dry_run": dry_run,
        "changes": {field: {"before": old, "after": new} for field, old, new in edit.changed()},
    }

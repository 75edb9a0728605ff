"""``dynbeat apply``: make the stored schedules match a file."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NoReturn, TextIO

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.encoding import encodable
from celery_dynbeat.cli.base.errors import FAILED
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, yes_option
from celery_dynbeat.cli.declarations.applying import Edit, InvalidDeclarationsError, apply
from celery_dynbeat.cli.declarations.document import (
    MAX_LENGTH,
    DeclarationError,
    DeclaredFile,
    declared_file,
)
from celery_dynbeat.common.text import counted, escape

_SIGNS = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}
_DONE = {"create": "created", "update": "updated", "delete": "deleted", "keep": "unchanged"}


@command(
    "apply",
    examples=(
        "apply schedules.yaml --dry-run",
        "apply schedules.yaml --tag git --prune --yes",
        "export --owner user:42 | celery -A other dynbeat apply -",
    ),
    exit_statuses="0: success, even if nothing had to change. 1: a schedule in the file was"
    " refused, or the database reported an error. Nothing has changed. 2: the command line is"
    " invalid.",
    is_list=True,
)
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--prune", is_flag=True, help="Delete the schedules that are not in the file.")
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option(
    "--owner",
    default=None,
    metavar="OWNER",
    help="The owner of all schedules of the file. Default: the file names it, or the application.",
)
@click.option(
    "--tag",
    metavar="TAG",
    help="Add this tag to each schedule in the file. --prune deletes only schedules with this tag.",
)
@actor_options
@yes_option
def apply_file(
    invocation: Invocation, *, file: TextIO, prune: bool, dry_run: bool, tag: str | None
) -> None:
    """Make the stored schedules match FILE (YAML or JSON).

    FILE can be - for stdin. All changes are made in one transaction. A field that the file leaves
    out gets its default, but a paused schedule stays paused unless the file says `enabled: true`.
    --prune deletes all other schedules of the owners that the file names, but never entries of
    beat_schedule.
    """
    try:
        found = _read(file, owner=invocation.owner)
        owners = _pruned_owners(invocation, found) if prune else []
        work = partial(apply, invocation.dynbeat, found.schedules, tag=tag, prune_owners=owners)
        asks = prune and not dry_run and not invocation.yes
        confirmed = _confirm_deletes(invocation, work(dry_run=True)) if asks else None
        edits = work(dry_run=dry_run, may_delete=confirmed)
    except InvalidDeclarationsError as error:
        _fail(invocation, [str(each) for each in error.errors])
    if not confirmed or invocation.output.as_json:
        _show(invocation, edits, dry_run=dry_run)
    if not invocation.output.as_json:
        invocation.output.line(_summary(edits, dry_run=dry_run))


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


def _pruned_owners(invocation: Invocation, found: DeclaredFile) -> Sequence[str]:
    owners = found.owners()
    if not owners:
        message = "--prune needs an owner, and the file names none: give --owner"
        raise click.UsageError(message, invocation.context)
    return owners


def _confirm_deletes(
    invocation: Invocation, planned: Sequence[Edit]
) -> Collection[tuple[str, str]]:
    """Show the edits and ask, if there are deletes among them. Return the confirmed deletes."""
    deletes = {(edit.owner, edit.name) for edit in planned if edit.action == "delete"}
    if deletes:
        _show_changes(invocation, planned, err=True)
        invocation.confirm(f"This deletes {counted(len(deletes), 'schedule')}.")
    return deletes


def _fail(invocation: Invocation, errors: Sequence[str]) -> NoReturn:
    if invocation.output.as_json:
        click.echo(json.dumps({"ok": False, "error": errors[0], "errors": errors}))
    else:
        for error in errors:
            invocation.output.note(error)
    invocation.context.exit(FAILED)


def _show(invocation: Invocation, edits: Sequence[Edit], *, dry_run: bool) -> None:
    if invocation.output.as_json:
        for edit in edits:
            invocation.output.line(json.dumps(_as_dict(edit, dry_run=dry_run)))
        return
    _show_changes(invocation, edits)


def _summary(edits: Sequence[Edit], *, dry_run: bool) -> str:
    counts = Counter(edit.action for edit in edits)
    done = ", ".join(f"{counts[action]} {word}" for action, word in _DONE.items())
    return f"{done} (dry run: nothing was changed)" if dry_run else done


def _show_changes(invocation: Invocation, edits: Sequence[Edit], *, err: bool = False) -> None:
    for edit in edits:
        if edit.action in _SIGNS:
            _show_edit(edit, err=err, no_color=invocation.output.no_color)


def _show_edit(edit: Edit, *, err: bool, no_color: bool) -> None:
    sign, color = _SIGNS[edit.action]
    owner = f" of {escape(edit.owner)}" if edit.owner else ""
    lines = [f"{sign} {edit.action} {escape(edit.name)}{owner}"]
    if edit.action != "delete":
        lines += [
            f"    {field}: {_text(new)}"
            if edit.action == "create"
            else f"    {field}: {_text(old)} -> {_text(new)}"
            for field, old, new in edit.changed()
        ]
    text = encodable("\n".join(lines))
    click.echo(text if no_color else click.style(text, fg=color), err=err)


def _text(value: Any) -> str:
    if value is None:
        return "(default)"
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _as_dict(edit: Edit, *, dry_run: bool) -> dict[str, Any]:
    return {
        "action": edit.action,
        "owner": edit.owner,
        "name": edit.name,
        "dry_run": dry_run,
        "changes": {field: {"before": old, "after": new} for field, old, new in edit.changed()},
    }

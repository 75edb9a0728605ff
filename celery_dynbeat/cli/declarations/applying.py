"""Make the stored schedules match the declared ones, in one transaction.

A file is complete, so a field that it leaves out gets its default. The pause is an exception. A
schedule that an operator paused stays paused if the file does not say ``enabled``. A pause whose
``paused_until`` has passed has ended.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery_dynbeat.api import Dynbeat, Page, ScheduleInfo
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.declarations.document import Declaration, DeclarationError
from celery_dynbeat.cli.declarations.fields import arguments, declared, pause_end
from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.text import MAX_PAGE_SIZE

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from celery_dynbeat.api import OwnerSchedules

#: More errors than these help no reader.
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Edit:
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
                yield field, _masked(field, old), _masked(field, new)


def _masked(field: str, value: Any) -> Any:
    return FIELDS[field].type.masked(value) if field in FIELDS else value


class InvalidDeclarationsError(DeclarationError):
    """Schedules of a file are refused. ``errors`` are at most MAX_ERRORS of them."""

    def __init__(self, errors: Sequence[DeclarationError]) -> None:
        first = errors[0]
        Exception.__init__(self, "\n".join(str(error) for error in errors))
        self.file, self.line, self.field = first.file, first.line, first.field
        self.errors = tuple(errors)


class ChangedMeanwhileError(DynbeatError):
    """``--prune`` would delete schedules that the confirmed list does not have."""


class _DryRun(Exception):  # noqa: N818 - it ends a transaction, it is not an error
    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = edits


def apply(
    dynbeat: Dynbeat,
    found: Sequence[Declaration],
    *,
    tag: str | None = None,
    prune_owners: Sequence[str] = (),
    dry_run: bool = False,
    may_delete: Collection[tuple[str, str]] | None = None,
) -> Sequence[Edit]:
    """Create, update and delete schedules, and return each edit in the order of the file.

    - With ``tag``, each declared schedule gets the tag, and only schedules with it are pruned.
    - ``prune_owners`` are the owners whose other schedules are deleted. Those that follow Celery's
      ``beat_schedule`` stay.
    - With ``dry_run`` the transaction is rolled back.
    - ``may_delete`` are the owners and names that a person confirmed; None means any.

    Raises InvalidDeclarationsError if a schedule is refused, and ChangedMeanwhileError if a
    schedule would be deleted that ``may_delete`` does not have. Then no schedule has changed.
    """

    def work(session: "Session") -> Sequence[Edit]:
        edits = _apply_all(dynbeat, session, found, tag=tag)
        names = {(each.owner, each.name) for each in found}
        for owner in prune_owners:
            edits += _prune(
                dynbeat.schedules.for_owner(owner, session=session), keep=names, tag=tag
            )
        _check_confirmed(edits, may_delete)
        if dry_run:
            raise _DryRun(edits)
        return edits

    try:
        return dynbeat.context.write(None, work)
    except _DryRun as done:
        return done.edits


def _check_confirmed(edits: Sequence[Edit], may_delete: Collection[tuple[str, str]] | None) -> None:
    for edit in edits:
        if may_delete is None or edit.action != "delete" or (edit.owner, edit.name) in may_delete:
            continue
        raise ChangedMeanwhileError(
            f"schedule {edit.name!r} of owner {edit.owner!r} was added while the deletes were"
            " confirmed; nothing was changed: repeat the command"
        )


def _apply_all(
    dynbeat: Dynbeat, session: "Session", found: Sequence[Declaration], *, tag: str | None
) -> list[Edit]:
    edits: list[Edit] = []
    errors: list[DeclarationError] = []
    for each in found:
        try:
            pause = _pause_of(dynbeat, session, each.given)
            mine = dynbeat.schedules.for_owner(each.owner, session=session)
            edits.append(_apply_one(mine, each, tag, pause, now=dynbeat.context.now(session)))
        except (InvalidScheduleError, InvalidTriggerError) as error:
            errors.append(each.error(str(error), _field_in_file(each, error.field)))
        except OwnerLimitError as error:
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
    mine: "OwnerSchedules",
    each: Declaration,
    tag: str | None,
    pause: Mapping[str, Any],
    *,
    now: datetime,
) -> Edit:
    given = arguments(each.given)
    if tag is not None:
        given["tags"] = [*FIELDS["tags"].check(given["tags"]), tag]
    try:
        before = mine.get(each.name)
    except ScheduleNotFoundError:
        after = mine.create(each.name, **given, **pause)
        return Edit("create", each.owner, each.name, {}, _shown(after))
    if before.managed_by:
        message = "it follows an entry of beat_schedule; change it there, or choose another name"
        raise InvalidScheduleError(message, field="name")
    after = mine.update(each.name, **given)
    after = _set_pause(mine, after, pause, now=now)
    action = "keep" if after.version == before.version else "update"
    return Edit(action, each.owner, each.name, _shown(before), _shown(after))


def _pause_of(dynbeat: Dynbeat, session: "Session", given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``create()`` for the declared pause."""
    until = pause_end(given)
    if until is not None and until <= dynbeat.context.now(session):
        return {"enabled": True}
    pause = {key: given[key] for key in ("enabled", "paused_reason") if key in given}
    return pause if until is None else {**pause, "paused_until": until}


def _set_pause(
    mine: "OwnerSchedules",
    info: ScheduleInfo,
    given: Mapping[str, Any],
    *,
    now: datetime,
) -> ScheduleInfo:
    enabled = given.get("enabled", info.enabled)
    if not isinstance(enabled, bool):
        message = f"enabled = {enabled!r}: must be true or false"
        raise InvalidScheduleError(message, field="enabled")
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


def _prune(mine: "OwnerSchedules", *, keep: set[tuple[str, str]], tag: str | None) -> list[Edit]:
    edits = []
    for info in _all_of(mine, tag=tag):
        if (info.owner, info.name) in keep or info.managed_by:
            continue
        mine.delete(info.name)
        before = {"task": info.task} if info.trigger is None else _shown(info)
        edits.append(Edit("delete", info.owner, info.name, before, {}))
    return edits


def _all_of(mine: "OwnerSchedules", *, tag: str | None) -> Sequence[ScheduleInfo]:
    def fetch(after: str | None) -> Page[ScheduleInfo]:
        return mine.list(tag=tag, limit=MAX_PAGE_SIZE, after=after)

    return [info for page in pages(fetch) for info in page]


def _shown(info: ScheduleInfo) -> Mapping[str, Any]:
    fields = {} if info.trigger is None else declared(info, with_owner=False)
    return {key: value for key, value in fields.items() if key != "name"}

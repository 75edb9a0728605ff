"""``dynbeat replan``: plan schedules again: a release of the tz database, or a new setting."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.progress import progress

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from celery_dynbeat.process.context import Context

#: The rounds for schedules that others have locked, and the seconds before each.
_ROUNDS, _PAUSE = 5, 1
#: The owners that are read together.
_PAGE = 500
#: The refused owners that an error names.
_NAMED = 5


@command(
    "replan",
    examples=("replan", "replan --zone Europe/Berlin", "replan --quiet-hours"),
    exit_statuses="0: success. 1: the database reported an error, or schedules stayed locked. "
    "Repeat the command. 2: the command line is invalid.",
)
@click.option(
    "--zone", metavar="ZONE", help="Plan only the schedules that depend on this time zone."
)
@click.option(
    "--quiet-hours",
    is_flag=True,
    help="Write dynbeat_quiet_hours into the schedules instead, after a change of this setting.",
)
def replan(invocation: Invocation, *, zone: str | None, quiet_hours: bool) -> None:
    """Plan schedules again: new tz database, or new dynbeat_quiet_hours.

    Run the command when all processes use the new release or setting. It moves each future fire
    time to the nearest one by the rules of this process, in small transactions, and quiet hours in
    one transaction for each owner. Beat continues meanwhile. If you repeat the command, it changes
    nothing.
    """
    if quiet_hours:
        if zone is not None:
            raise click.UsageError("give --zone or --quiet-hours, not both", invocation.context)
        changed, refused = _write_quiet_hours(invocation.dynbeat.context)
        if refused:
            invocation.refuse(
                f"{changed} schedules have other quiet hours; the database refused those of"
                f" {len(refused)} owners: {'; '.join(refused[:_NAMED])}"
            )
        done: dict[str, object] = {"ok": True, "changed": changed}
        invocation.output.done(f"schedules with other quiet hours: {changed}", done)
        return
    if zone is not None:
        invocation.load_zone(zone)
    from celery_dynbeat.common.settings import tz_release  # noqa: PLC0415

    context, release = invocation.dynbeat.context, tz_release()
    context.prepare()
    changed, locked = _replan(context, zone)
    if locked:
        invocation.refuse(
            f"{changed} schedules were planned again; other transactions have locked"
            f" {len(locked)} more: repeat the command"
        )
    if zone is None and release is not None:
        context.database.run(partial(_record, release=release))
    known = "" if release is None else f" with release {release} of the tz database"
    result = {"ok": True, "changed": changed, "zone": zone, "release": release}
    invocation.output.done(f"schedules planned again{known}: {changed}", result)


def _write_quiet_hours(context: "Context") -> tuple[int, Sequence[str]]:
    """Write the quiet hours of each owner into its schedules, in one transaction for each owner.

    Returns how many schedules changed, and the owners whose change the database refuses, with the
    reason.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415

    from celery_dynbeat.api.edit.quiet_hours import apply_setting  # noqa: PLC0415
    from celery_dynbeat.db.engine import reason_of  # noqa: PLC0415
    from celery_dynbeat.store.owners import with_schedules  # noqa: PLC0415

    context.prepare()
    changed, owners, refused = 0, [""], list[str]()
    with progress("owners") as advance:
        done = 0
        while owners:
            for owner in owners:
                try:
                    changed += context.write(None, partial(apply_setting, context, owner=owner))
                except DBAPIError as error:
                    if not context.database.capabilities.is_refusal(error):
                        raise
                    refused.append(f"{owner!r}: {reason_of(error)}")
            done += len(owners)
            advance(done)
            page = partial(with_schedules, after=owners[-1], limit=_PAGE)
            owners = list(context.database.read(page))
    return changed, refused


def _replan(context: "Context", zone: str | None) -> tuple[int, Sequence[int]]:
    """Return the number of changed schedules, and the ids of those that stayed locked."""
    # Late imports, here and below: help opens no database.
    from celery_dynbeat.beat.tz_release import BATCH_SIZE, replan_batch  # noqa: PLC0415

    changed, locked = 0, list[int]()

    def plan(ids: Sequence[int]) -> None:
        nonlocal changed
        work = partial(replan_batch, context=context, ids=ids, zone=zone, now=context.clock.now())
        batch = context.database.run(work)
        changed += batch.changed
        locked.extend(batch.locked)

    with progress("schedules read") as advance:
        read = 0
        for ids in _pages(context, size=BATCH_SIZE):
            plan(ids)
            read += len(ids)
            advance(read)
    for _ in range(_ROUNDS):
        if not locked:
            break
        time.sleep(_PAUSE)
        again, locked = locked, []
        for start in range(0, len(again), BATCH_SIZE):
            plan(again[start : start + BATCH_SIZE])
    return changed, locked


def _pages(context: "Context", *, size: int) -> Iterator[Sequence[int]]:
    """Yield the ids of all schedules in order, in pages."""
    from celery_dynbeat.store.schedules import due  # noqa: PLC0415

    after = 0
    while ids := context.database.read(partial(due.ids_after, after=after, limit=size)):
        yield ids
        after = ids[-1]


def _record(session: "Session", *, release: str) -> None:
    from celery_dynbeat import store  # noqa: PLC0415

    store.record_tz_release(session.connection(), release)

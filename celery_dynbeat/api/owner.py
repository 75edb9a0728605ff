"""The schedules of one owner: their edits, fire times, time zone and quiet hours.

An export reads at most BATCH_SIZE rows at a time, so memory does not grow with the history.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, wraps
from importlib.metadata import version
from typing import Any, ParamSpec, TypeVar, Unpack
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, batches, checks, edits, limits, owner_clock, previews
from celery_dynbeat.api.edits import Definition, RowEdit
from celery_dynbeat.api.fields import (
    Changes,
    Fields,
    NewFields,
    TaskLike,
    TriggerLike,
    require_trigger,
)
from celery_dynbeat.api.many import ManyCalls
from celery_dynbeat.api.owner_clock import OwnerClock
from celery_dynbeat.api.results import (
    BatchInfo,
    FireTime,
    Page,
    Preview,
    QuietHoursInfo,
    RunInfo,
    ScheduleInfo,
)
from celery_dynbeat.api.timing import RowPlan
from celery_dynbeat.common.errors import (
    ConflictError,
    InvalidArgumentError,
    ScheduleExistsError,
)
from celery_dynbeat.common.infos import as_json
from celery_dynbeat.common.quiet_rule import QuietHours, QuietRule, quiet_spans
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import described_owner, shorten
from celery_dynbeat.db.models import Hold, Schedule
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, owners, schedules
from celery_dynbeat.triggers import Trigger

BATCH_SIZE = 500
#: The version of this format, in the first line.
FORMAT = 1

Line = dict[str, Any]


def _lines(
    context: Context, calls: ManyCalls, *, owner: str, session: Session | None
) -> Iterator[Line]:
    """Yield the lines: the owner, then its schedules, runs, changes ..."""
    yield _header(context, owner=owner, session=session)
    yield from _of_pages("schedule", calls.list)
    yield from _of_pages("run", calls.runs)
    yield from _of_pages("change", calls.changes)
    yield from _of_pages("alert", partial(calls.alerts, only_open=False))
    # The pages of ``calls.holds`` would also contain the holds of everything.
    yield from _of_table(context, "hold", partial(holds.page_of_owner, owner=owner), session)


def _header(context: Context, *, owner: str, session: Session | None) -> Line:
    found = context.read(session, partial(owners.values_of, owners=[owner])).get(owner)
    return {
        "record": "owner",
        "format": FORMAT,
        "version": version("celery-dynbeat"),
        "owner": owner,
        "timezone": None if found is None else found.timezone,
        "quiet_hours": None if found is None else found.quiet_hours,
        "exported_at": as_json(context.now(session)),
    }


def _of_pages(record: str, read: Callable[..., Page[Any]]) -> Iterator[Line]:
    after: str | None = None
    while True:
        page = read(limit=BATCH_SIZE, after=after)
        for item in page:
            yield {"record": record, **item.to_dict()}
        after = page.cursor
        if after is None:
            return


def _of_table(
    context: Context,
    record: str,
    read: Callable[..., list[Mapping[str, Any]]],
    session: Session | None,
) -> Iterator[Line]:
    after_id = 0
    while True:
        batch = partial(read, after_id=after_id, limit=BATCH_SIZE)
        rows = context.read_many(session, batch)
        for row in rows:
            yield {"record": record, **as_json(row)}
        if len(rows) < BATCH_SIZE:
            return
        after_id = rows[-1]["id"]


def _held(hold: Hold) -> ConflictError:
    """Return the error of a run that a hold refuses."""
    scope = "everything" if hold.owner is None else described_owner(hold.owner)
    by = f" by {shorten(hold.actor)}" if hold.actor else ""
    end = "" if hold.until_at is None else f" until {hold.until_at}"
    why = f" ({shorten(hold.reason)})" if hold.reason else ""
    held = f"{scope} is held{by}{end}{why}"
    return ConflictError(
        f"{held}: wait for the end of the hold, or call release() first",
        code="held",
        hold=held,
        owner=hold.owner,
        actor=hold.actor,
        reason=hold.reason,
        until_at=hold.until_at,
    )


P = ParamSpec("P")
T = TypeVar("T")


def rejecting_rename(update: Callable[P, T]) -> Callable[P, T]:
    """Raise InvalidArgumentError for ``update("a", name="b")``, where Python raises TypeError."""

    @wraps(update)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 1 and "name" in kwargs:
            msg = (
                f"name = {shorten(kwargs['name'])}: update() does not rename a schedule; call"
                f" rename({shorten(args[1])}, {shorten(kwargs['name'])})"
            )
            raise InvalidArgumentError(msg, field="name")
        return update(*args, **kwargs)

    return checked


def naming_other_fields(create: Callable[P, T]) -> Callable[P, T]:
    """Raise InvalidArgumentError for ``crontab=`` without ``trigger=``, not Python's TypeError."""

    @wraps(create)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "trigger" not in kwargs:
            require_trigger(kwargs)
        return create(*args, **kwargs)

    return checked


class OwnerSchedules(ManyCalls):
    """The schedules of one owner. No call reads or changes the rows of another owner.

    Calls that are bound to a ``session`` join its transaction and do not commit, and calls that are
    bound to an ``actor`` and a ``reason`` record them in the audit: see ``bound``.

    Each call raises InvalidArgumentError for an invalid argument, whose name is the error's
    ``field``. Each call that plans fire times raises InvalidTriggerError if the stored trigger is
    damaged.
    """

    owner: str

    def __init__(self, context: Context, owner: str) -> None:
        super().__init__(context, checks.check_owner(owner))
        self.owner = owner

    def _lock(self, session: Session, name: str, expected_version: int | None = None) -> Schedule:
        return edits.lock(session, owner=self.owner, name=name, expected_version=expected_version)

    def _find(self, session: Session, name: str) -> Schedule:
        return schedules.get(session, owner=self.owner, name=checks.check_name("name", name))

    def _edit(
        self,
        name: str,
        change: Callable[[RowEdit], object],
        *,
        expected_version: int | None,
        reason: str | None = None,
        action: Action | None = None,
        trigger: Trigger | None = None,
    ) -> ScheduleInfo:
        """Do one edit of the schedule, with the audit of ``action``, or the audit of the edit.

        ``trigger`` is the new one, if there is one.
        """

        def work(session: Session) -> ScheduleInfo:
            # The owner before the schedule, in the order of all locks.
            timezone = owner_clock.lock(self._context, session, self.owner, trigger)
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            edit = RowEdit(self._context, session, row, now=now, timezone=timezone)
            if action is None:
                change(edit)
            else:
                with audit.recording(self._context, session, row, action, now=now):
                    change(edit)
            return ScheduleInfo.of(row)

        return self._write(work, reason=reason)

    @naming_other_fields
    def create(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        **given: Unpack[NewFields],
    ) -> ScheduleInfo:
        """Create a schedule that runs ``task`` at each fire time of ``trigger``.

        - ``name`` has 1 to 255 characters, and is unique for the owner.
        - ``task`` is the name of a task, or a Celery task.
        - ``trigger`` is a trigger, a string (``"0 9 * * mon-fri"``, ``"PT5M"``), a timedelta, an
          aware datetime, or one of Celery's own schedules.
        - With ``enabled=False``, the schedule is paused until ``resume``. The ``reason`` to which
          the calls are bound becomes its ``paused_reason``.

        Raises ScheduleExistsError if the owner has a schedule with this name, and LimitError
        if the owner would exceed its limit. Raises InvalidArgumentError if a field is invalid or
        the schedule never fires, and InvalidTriggerError for an invalid trigger.

        >>> made = mine.create("report", task="mail.report", trigger="0 18 * * fri")
        >>> made.trigger.describe()
        'At 18:00, on Friday, UTC'
        >>> str(made.next_run_at)
        '2026-01-09 18:00:00+00:00'
        """
        checks.check_name("name", name)
        trigger = edits.as_trigger(self._context, trigger)
        new = Definition(owner=self.owner, name=name, task=task, trigger=trigger, fields=given)

        def work(session: Session) -> ScheduleInfo:
            clock = owner_clock.lock_new(self._context, session, self.owner, trigger)
            return self._insert(session, new, clock)

        return self._write(work)

    @rejecting_rename
    def update(
        self,
        name: str,
        *,
        expected_version: int | None = None,
        **changes: Unpack[Changes],
    ) -> ScheduleInfo:
        """Change the given fields. All other fields keep their values.

        - A new trigger, ``start_at``, ``end_at`` or ``max_runs`` sets the next fire time, counted
          from now. Other changes do not move it.
        - ``queue`` and ``priority`` change only their entries of ``options``.
        - An update ends the quarantine of a schedule.
        - If you pass ``expected_version``, the update fails if another caller has changed the
          schedule.

        Raises NotFoundError, InvalidArgumentError and InvalidTriggerError. Raises ConflictError
        with code ``"stale"`` for another version, and with ``"has_run"`` for a new ``Once`` whose
        instant already has a run.

        >>> mine.update("digest", trigger=Every(timedelta(hours=2))).version
        2
        >>> mine.update("digest", expected_version=1, window=5)
        Traceback (most recent call last):
        celery_dynbeat.common.errors.ConflictError: schedule 'digest' of owner 'user:42' ...
        """
        trigger = None
        if "trigger" in changes:
            trigger = changes["trigger"] = edits.as_trigger(self._context, changes["trigger"])
        return self._edit(
            name,
            lambda edit: edit.change(changes),
            action=Action.UPDATE,
            expected_version=expected_version,
            trigger=trigger,
        )

    @naming_other_fields
    def upsert(
        self,
        name: str,
        *,
        task: TaskLike,
        trigger: TriggerLike,
        **given: Unpack[Fields],
    ) -> ScheduleInfo:
        """Create the schedule, or update the schedule with this name.

        An update keeps the values of fields that you do not pass, and a paused schedule stays
        paused. A different trigger replaces the stored trigger. Raises LimitError, and the errors
        of ``create`` and ``update``.

        >>> mine.upsert("digest", task="mail.digest", trigger="30 8 * * *").version
        2
        >>> mine.upsert("report", task="mail.report", trigger="@daily").version
        1
        """
        checks.check_name("name", name)
        untyped: Mapping[str, object] = given
        if "enabled" in untyped:
            rule = "upsert() does not change a pause; call create(), or pause() and resume()"
            raise checks.invalid("enabled", untyped["enabled"], rule)
        trigger = edits.as_trigger(self._context, trigger)
        changes: Changes = {**given, "task": task, "trigger": trigger}
        new = Definition(owner=self.owner, name=name, task=task, trigger=trigger, fields=given)

        def work(session: Session) -> ScheduleInfo:
            clock = owner_clock.lock_new(self._context, session, self.owner, trigger)
            row = schedules.lock(session, owner=self.owner, name=name)
            if row is None:
                try:
                    return self._insert(session, new, clock)
                except ScheduleExistsError:
                    # Another transaction created it in the meantime: update that row.
                    row = self._lock(session, name)
            now = self._context.clock.now()
            with audit.recording(self._context, session, row, Action.UPDATE, now=now):
                edit = RowEdit(self._context, session, row, now=now, timezone=clock.timezone)
                edit.change(changes)
            return ScheduleInfo.of(row)

        return self._write(work)

    def pause(
        self,
        name: str,
        *,
        until: datetime | timedelta | None = None,
        expected_version: int | None = None,
        reason: str | None = None,
    ) -> ScheduleInfo:
        """Stop the schedule until ``resume``, and revoke its runs that have not started.

        - ``reason`` becomes the schedule's ``paused_reason``. Manual runs are not revoked.
        - Beat resumes the schedule at ``until``, which is an aware datetime, or a timedelta from
          now. Fire times before that instant are recorded as skipped. Edits of the schedule do not
          change the end, but another pause replaces the reason and the end.

        Raises NotFoundError, InvalidArgumentError, and ConflictError for another version.

        >>> mine.pause("digest", reason="on holiday").paused_reason
        'on holiday'
        >>> str(mine.pause("digest", until=timedelta(days=2)).paused_until)
        '2026-01-07 09:00:00+00:00'
        """
        return self._edit(
            name,
            lambda edit: edit.pause(edits.pause_end(until, now=edit.now)),
            action=Action.PAUSE,
            expected_version=expected_version,
            reason=reason,
        )

    def resume(
        self,
        name: str,
        *,
        expected_version: int | None = None,
    ) -> ScheduleInfo:
        """Start the schedule again, at its next fire time after the current time.

        Fire times missed during the pause are recorded as skipped and never sent. A resume also
        ends a quarantine, if the trigger can be read. Raises NotFoundError, InvalidTriggerError,
        and ConflictError for another version.

        >>> _ = mine.pause("digest")
        >>> str(mine.resume("digest").next_run_at)
        '2026-01-06 09:00:00+00:00'
        """
        return self._edit(
            name, RowEdit.resume, action=Action.RESUME, expected_version=expected_version
        )

    def delete(
        self,
        name: str,
        *,
        expected_version: int | None = None,
    ) -> None:
        """Delete the schedule, and revoke its runs that have not started.

        The history is kept until it is pruned. The rows that ``skip`` wrote for future fire times
        are deleted. Raises NotFoundError, and ConflictError for another version.

        >>> mine.delete("digest")
        >>> mine.count().count
        0
        """

        def work(session: Session) -> None:
            row = self._lock(session, name, expected_version)
            RowEdit(self._context, session, row, now=self._context.clock.now()).delete()

        self._write(work)

    def rename(
        self,
        name: str,
        new_name: str,
        *,
        expected_version: int | None = None,
    ) -> ScheduleInfo:
        """Give the schedule another name. It keeps its id, its history and its next fire time.

        - Its runs keep the name under which they were recorded. ``runs(new_name)`` returns them.
        - A trigger with an ``H`` keeps its fire times, and a ``window`` its offset.
        - If both names are equal, nothing changes.

        Raises NotFoundError, and ConflictError for another version. Raises ScheduleExistsError if
        the owner has a schedule with the new name, and InvalidArgumentError for a schedule that
        follows ``beat_schedule``.

        >>> mine.rename("digest", "morning").name
        'morning'
        >>> [change.before["name"] for change in mine.changes("morning")]
        ['digest']
        """
        checks.check_name("new_name", new_name)

        def work(session: Session) -> ScheduleInfo:
            # A change of the zone or of quiet hours reads the schedules in the order of names. It
            # could miss a schedule that gets an earlier name meanwhile.
            owner_clock.lock_rows(self._context, session, [self.owner])
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            with audit.recording(self._context, session, row, Action.RENAME, now=now):
                RowEdit(self._context, session, row, now=now).rename(new_name)
            return ScheduleInfo.of(row)

        return self._write(work)

    def get(self, name: str) -> ScheduleInfo:
        """Return the schedule. Raises NotFoundError.

        >>> str(mine.get("digest").next_run_at)
        '2026-01-06 09:00:00+00:00'
        """

        def work(session: Session) -> ScheduleInfo:
            row = self._find(session, name)
            held = holds.held_of(session, [self.owner], now=self._context.clock.now())
            return ScheduleInfo.of(row, is_held=bool(held))

        return self._read(work)

    def run_now(
        self,
        name: str,
    ) -> RunInfo:
        """Run the schedule once now, even if it is paused. Its fire times do not change.

        The transaction records a run with the origin ``"manual"``, and a beat sends it within
        milliseconds after the commit. Raises NotFoundError. Raises ConflictError with code
        ``"held"`` while the owner or everything is held, and InvalidArgumentError if
        dynbeat_owner_limits does not allow the task.

        >>> run = mine.run_now("digest")
        >>> run.status, run.origin
        ('pending', 'manual')
        """

        def work(session: Session) -> RunInfo:
            row = self._lock(session, name)
            now = self._context.clock.now()
            for hold in holds.in_force(session, owner=self.owner, now=now):
                raise _held(hold)
            edit = RowEdit(self._context, session, row, now=now)
            run = RunInfo.of(edit.add_manual_run())
            edit.record(Action.RUN_NOW, {"run_id": run.id})
            return run

        return self._write(work)

    def skip(
        self,
        name: str,
        fire_at: datetime,
        *,
        expected_version: int | None = None,
        reason: str | None = None,
    ) -> ScheduleInfo:
        """Take one fire time out of the schedule. All others stay.

        ``fire_at`` is an aware datetime in the future that the trigger yields between
        ``start_at`` and ``end_at``. When beat decides about a later fire time, it records this one
        in the history, as a run with status ``"skipped"`` whose ``error`` names ``actor`` and
        ``reason``. You can also skip a fire time of a paused schedule, or one beyond ``max_runs``.
        A second call for the same fire time changes nothing. A schedule has at most 100 skipped
        fire times. If no other fire time is left, the schedule finishes at the last
        skipped one. An edit keeps the skips of future fire times; one that the new trigger does not
        yield has no effect. A new ``Once`` drops them.

        Raises NotFoundError, InvalidTriggerError and InvalidArgumentError. If ``fire_at`` is not a
        fire time, the error names the nearest ones. Raises ConflictError for another version, and
        if the schedule is finished, or has a run for this fire time.

        >>> _ = mine.skip("digest", datetime(2026, 1, 6, 9, tzinfo=UTC), reason="public holiday")
        >>> [str(each.fire_at.date()) for each in mine.upcoming("digest", count=2)]
        ['2026-01-07', '2026-01-08']
        """
        fire_at = checks.check_required_instant("fire_at", fire_at)

        return self._edit(
            name, lambda edit: edit.skip(fire_at), expected_version=expected_version, reason=reason
        )

    def unskip(
        self,
        name: str,
        fire_at: datetime,
        *,
        expected_version: int | None = None,
    ) -> ScheduleInfo:
        """Restore a fire time that ``skip`` removed, before it passes.

        Raises NotFoundError, InvalidTriggerError, ConflictError for another version, and
        InvalidArgumentError if ``fire_at`` has passed or is not skipped.

        >>> _ = mine.skip("digest", datetime(2026, 1, 6, 9, tzinfo=UTC))
        >>> str(mine.unskip("digest", datetime(2026, 1, 6, 9, tzinfo=UTC)).next_run_at)
        '2026-01-06 09:00:00+00:00'
        """
        fire_at = checks.check_required_instant("fire_at", fire_at)

        return self._edit(
            name, lambda edit: edit.unskip(fire_at), expected_version=expected_version
        )

    def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: bool = False,
    ) -> Sequence[FireTime]:
        """Return the next ``count`` fire times at which a run is sent, waiting ones first.

        ``run_at`` is when the run of a fire time is sent, and ``wait_note`` says why that is later.
        Fire times that ``skip`` removed are left out. If ``with_skipped`` is true, the
        result also has these, with ``is_skipped`` set, and the fire times that a calendar removes
        or moves, with the name of the calendar. ``count`` is at most 1,000. For a paused or
        finished schedule, the result contains no other fire times. During a hold without an end,
        ``run_at`` is None. Raises NotFoundError and InvalidTriggerError.

        >>> [str(each.fire_at) for each in mine.upcoming("digest", count=2)]
        ['2026-01-06 09:00:00+00:00', '2026-01-07 09:00:00+00:00']
        """
        checks.check_limit("count", count)
        checks.check_flag("with_skipped", with_skipped)

        def work(session: Session) -> Sequence[FireTime]:
            row = self._find(session, name)
            return previews.fire_times_of(
                self._context, session, row, count=count, with_skipped=with_skipped
            )

        return self._read_many(work)

    def preview(
        self,
        trigger: TriggerLike,
        name: str | None = None,
        count: int = 5,
        *,
        window: timedelta | float | str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_runs: int | None = None,
        catch_up: str | None = None,
        overlap: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
    ) -> Preview:
        """Return when a schedule with these arguments would fire. Nothing is written.

        ``name`` selects the values of an ``H`` and the offset in ``window``. Without a name, a
        warning says that they can differ. The fire times show a hold in force. ``catch_up`` and
        ``overlap`` decide which fire times of one quiet time have a run. ``retry`` affects only the
        warnings. ``count`` is limited to 100. Fewer fire times are returned if the schedule
        finishes, or if finding more would take the trigger too many steps.

        The call raises the errors that ``create`` would raise for these arguments:
        InvalidTriggerError and InvalidArgumentError. It neither refuses a schedule that exceeds the
        limit on their number, nor checks whether a schedule with this name exists.

        >>> shown = mine.preview("0 9 * * mon-fri", "digest", count=2)
        >>> shown.description
        'At 09:00, Monday to Friday, UTC'
        >>> [str(each.fire_at.date()) for each in shown.fire_times]
        ['2026-01-06', '2026-01-07']
        """
        if name is not None:
            checks.check_name("name", name)
        checks.check_integer("count", count, minimum=1, maximum=previews.MAX_COUNT)
        given = edits.as_trigger(self._context, trigger)
        fields = {
            "window": window,
            "start_at": start_at,
            "end_at": end_at,
            "max_runs": max_runs,
            "catch_up": catch_up,
            "overlap": overlap,
            "retry": retry,
        }
        definition = Definition(
            owner=self.owner, name=name or "", task="", trigger=given, fields=fields
        )
        return previews.preview(self._context, self._session, definition, name=name, count=count)

    def backfill(
        self,
        name: str,
        *,
        since: datetime,
        until: datetime,
        per_minute: int = 100,
        now: bool = False,
    ) -> BatchInfo:
        """Run the past fire times of a schedule that have no run: since <= fire time < until.

        ``since`` and ``until`` are aware datetimes in the past. The call records the runs of at
        most 10,000 fire times, the oldest first, as a batch. If fire times are left, ``left_since``
        of the result is the ``since`` of the next call. Fire times that beat has not decided about
        are left to beat.

        Beat sends ``per_minute`` of these runs in a minute; those that were delayed by a hold, by
        quiet hours or by an outage follow together. If runs of the schedule must not
        overlap, it sends one at a time, while no other run of the schedule is unfinished. The runs
        do not count against ``max_runs``, and a pause of the schedule does not stop them. They wait
        for the end of a hold and for a place. In the quiet hours of the owner they wait for their
        end, unless ``now`` is true. ``actor`` and ``reason`` are recorded in the audit;
        ``acting()`` sets their defaults.

        Raises NotFoundError. Raises InvalidArgumentError if the span contains no fire time.

        >>> result = mine.backfill(
        ...     "digest",
        ...     since=datetime(2025, 12, 1, tzinfo=UTC),
        ...     until=datetime(2025, 12, 8, tzinfo=UTC),
        ... )
        >>> result.total
        5
        """
        since = checks.check_required_instant("since", since)
        until = checks.check_required_instant("until", until)
        pace = batches.Pace(per_minute, now)

        def work(session: Session) -> BatchInfo:
            row = self._lock(session, name)
            plan = RowPlan(self._context, session, row, now=self._context.clock.now())
            return batches.backfill(plan, since=since, until=until, pace=pace)

        return self._write(work)

    def timezone(self) -> str:
        """Return the name of the zone that triggers without a zone follow.

        This is the zone from ``set_timezone``, or else ``dynbeat_timezone``.

        >>> mine.timezone()
        'UTC'
        """

        def work(session: Session) -> str:
            # Without the quiet hours, which SQL can have made unreadable.
            own = owners.values_of(session, [self.owner]).get(self.owner)
            return owner_clock.timezone_of(self._context, own)

        return self._read(work)

    def set_timezone(
        self,
        zone: str | ZoneInfo | None,
    ) -> int:
        """Set the zone of the owner's triggers without a zone. Return how many schedules changed.

        ``zone`` is a ZoneInfo or a name from the tz database, such as ``"Asia/Seoul"``. None
        returns to ``dynbeat_timezone``. In the same transaction, the schedules that follow the zone
        are planned again from now, so nothing fires retroactively. A fire time that has passed and
        waits is still sent. A paused schedule stays paused.
        If the schedules are already in this zone, nothing changes. Raises InvalidArgumentError with
        field ``"zone"``.

        >>> mine.set_timezone("Asia/Seoul")
        1
        >>> str(mine.get("digest").next_run_at)  # 09:00 in Seoul
        '2026-01-06 00:00:00+00:00'
        """
        zone = owner_clock.checked_zone(zone)

        def work(session: Session) -> int:
            return owner_clock.change_zone(self._context, session, owner=self.owner, zone=zone)

        return self._write(work)

    def quiet_hours(self) -> Sequence[QuietHoursInfo]:
        """Return the quiet hours that apply, those of the owner last.

        ``dynbeat_quiet_hours`` has None as its owner.

        >>> mine.quiet_hours()
        []
        """
        owner = self.owner

        def work(session: Session) -> Mapping[str, owners.OwnerValues]:
            return owners.values_of(session, [owner])

        found = self._read(work).get(owner)
        stored = None if found is None else found.quiet_hours
        rules = {
            None: self._context.settings.quiet_hours,
            owner: None if stored is None else QuietRule.from_json(owner, stored),
        }
        return [
            QuietHoursInfo(owner=name, windows=tuple(rule.windows), calendar=rule.calendar)
            for name, rule in rules.items()
            if rule is not None
        ]

    def set_quiet_hours(
        self,
        windows: Iterable[QuietHours | str] = (),
        *,
        calendar: str | None = None,
    ) -> int:
        """Send no run of the owner at these times.

        - ``windows`` and ``calendar`` replace the present ones. At least one is required.
        - Each window is a ``QuietHours``, or a text such as
          ``"mon-fri 22:00-07:00"``. At most 50 are allowed. The clock of the owner's time zone
          decides. The windows of ``dynbeat_quiet_hours`` apply together with them.
        - A fire time in a window is sent when the quiet time ends. ``catch_up`` decides about
          several of them: ``"latest"`` sends the newest one. To skip fire times, use a trigger that
          excludes them.
        - ``calendar`` is the name of a shared calendar. Its dates are quiet days, from midnight to
          midnight on the clock of the owner. Without it, the quiet days of
          ``dynbeat_quiet_hours`` apply.
        - Runs of ``run_now`` start as usual. Retries wait, and backfills and reruns without
          ``now=True``.

        The schedules are planned again in the same transaction. Returns how many changed. Raises
        InvalidArgumentError if a window is invalid, or if the windows together leave no time to
        send a run, and InvalidTriggerError if there is no such calendar.

        >>> mine.set_quiet_hours([QuietHours("22:00", "07:00"), "sat,sun 00:00-00:00"])
        1
        >>> [str(window) for window in mine.quiet_hours()[0].windows]
        ['22:00-07:00', 'sat,sun 00:00-00:00']
        """
        rule = owner_clock.checked_rule(windows, calendar)
        everybody = self._context.settings.quiet_hours
        if everybody is not None:
            quiet_spans([everybody, rule])

        def work(session: Session) -> int:
            return owner_clock.change_quiet_hours(
                self._context, session, owner=self.owner, rule=rule
            )

        return self._write(work)

    def clear_quiet_hours(self) -> int:
        """Remove the quiet hours of the owner. Return how many schedules changed.

        Fire times that wait for the end of a window are due at once.

        >>> mine.clear_quiet_hours()
        0
        """

        def work(session: Session) -> int:
            return owner_clock.change_quiet_hours(
                self._context, session, owner=self.owner, rule=None
            )

        return self._write(work)

    def export(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over all data of the owner, with one dict per line of JSON.

        The ``record`` key names the kind of a dict. The first dict is ``"owner"``, with the time of
        the export. The others follow in this order: ``"schedule"``, ``"run"``, ``"change"``,
        ``"alert"``, ``"hold"``. Their fields are the same as in ``to_dict``, and
        include the arguments of tasks.

        At most 500 rows are in memory at a time. Each batch is read separately, so if you do not
        bind a session, a later batch can contain an edit that an earlier batch does not. For a
        snapshot, bind a session that uses REPEATABLE READ.
        """
        return _lines(self._context, self, owner=self.owner, session=self._session)

    def _insert(self, session: Session, new: Definition, clock: OwnerClock) -> ScheduleInfo:
        clock = clock.with_calendars(owner_clock.read_calendars(session, new.trigger))
        now = self._context.clock.now()
        row = edits.new_row(self._context, new, clock=clock, now=now)
        limits.check_quota(self._context, session, {self.owner: 1})
        edits.insert(self._context, session, [row], calendars=clock.calendars, now=now)
        return ScheduleInfo.of(row)

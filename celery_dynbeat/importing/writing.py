"""Write found schedules, one transaction for each batch.

A schedule is created, or compared with the row of an earlier import:

    no row                                   -> create
    a row without the tag of the import      -> refuse: another schedule has the name
    another definition in the source         -> update
    the source has run it since              -> advance: its fire times until then are done
    the source would not run it again        -> pause the row of an earlier import, else skip it
    everything is the same                   -> keep

A second import therefore only adds the progress that the old scheduler has made in the meantime.
The progress of the two schedulers is never mixed. The scheduler with the later last run counts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial

from sqlalchemy.orm import Session

from celery_dynbeat import transitions
from celery_dynbeat.api import checks
from celery_dynbeat.api.columns import ScheduleColumns, is_same
from celery_dynbeat.api.edit import (
    audit,
    edits,
    limits,
    owner_zone,
    timing,
    used_calendars,
)
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.edit.source_progress import SourceProgress
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
)
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.importing.found import Converted, Found, Note
from celery_dynbeat.importing.results import Outcome, Result
from celery_dynbeat.planning import NO_CALENDARS, Calendars, calendar_names, quiet_calendars
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.store.schedules import imports
from celery_dynbeat.triggers import Trigger, parse_trigger

#: The columns that the source defines. The others are policies and progress.
_DEFINITION = (
    *("task", "args", "kwargs", "options", "trigger_kind", "trigger_spec", "timezone"),
    *("inherits_timezone", "start_at", "end_at", "max_runs", "expires_after", "description"),
)
#: Schedules after which the database counts its rows for the first time.
_FIRST_STATISTICS = 1_000
#: The largest value of the column run_count.
_MAX_RUN_COUNT = 2**63 - 1
#: The start of the reason of a pause that an import made, and that an import may end.
DISABLED_PREFIX = "disabled in "


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A found schedule with its owner, and the row that it would become."""

    found: Found
    owner: str
    converted: Converted
    row: ScheduleColumns
    trigger: Trigger


@dataclass(frozen=True)
class Importer:
    """Writes the schedules of one source. ``package`` names its scheduler."""

    context: Context
    package: str
    owner_of: Callable[[Found], str]
    dry_run: bool = True
    _seen: set[tuple[str, str]] = field(default_factory=set)
    #: The schedules that a dry run would have created so far, by owner, for the quota.
    _planned: Counter[str] = field(default_factory=Counter)

    @property
    def tag(self) -> str:
        """The tag of each imported schedule."""
        return f"import:{self.package}"

    def write(self, batch: Sequence[Found]) -> Sequence[Result]:
        """Return the result of each schedule. A dry run writes nothing."""
        if self.dry_run:
            results = self.context.read_many(None, lambda session: self._batch(session, batch))
        else:
            results = self.context.write(None, lambda session: self._batch(session, batch))
        before = len(self._seen)
        self._seen.update((each.owner, each.found.name) for each in results)
        if not self.dry_run and _has_doubled(before, len(self._seen)):
            self.context.write(None, imports.refresh_statistics)
        return results

    def left_over(self) -> Iterator[tuple[str, str]]:
        """Yield owner and name of earlier imported schedules that no batch had."""
        after: imports.Key | None = None
        while True:
            page = self.context.read_many(
                None, partial(imports.tagged_page, tag=self.tag, after=after)
            )
            yield from (key for key in page.keys if key not in self._seen)
            after = page.last_key
            if after is None:
                return

    def _batch(self, session: Session, batch: Sequence[Found]) -> Sequence[Result]:
        entries = self.context.beat_schedule
        managed = [_managed(found) for found in batch if entries.get(found.name)]
        others = [found for found in batch if not entries.get(found.name)]
        owned, invalid = _split_invalid([(self.owner_of(found), found) for found in others])
        clocks = self._clocks(session, {owner for owner, _ in owned})
        calendars = owner_zone.calendars_of(clocks)
        keys = {(owner, found.name) for owner, found in owned}
        rows = imports.named(session, keys, lock=not self.dry_run)
        # After the locks, for which this transaction may have waited.
        now = self.context.clock.now()
        results: dict[tuple[str, str], Result] = {}
        twice: list[Result] = []
        created: list[ScheduleColumns] = []
        for owner, found in owned:
            key = owner, found.name
            if key in results or key in self._seen:
                reason = "the source has two schedules of this name for one owner"
                twice.append(Result(found, owner, Outcome.REFUSE, reason=reason))
                continue
            row = rows.get(key)
            results[key], new = self._one(session, found, owner, row, clocks[owner], now=now)
            created += [new] if new is not None else []
        kept, refused = self._within_quota(session, created)
        for owner, reason in refused.items():
            _refuse_new(results, owner, reason)
        if kept and not self.dry_run:
            self._insert(session, kept, calendars, now=now)
        return [*results.values(), *twice, *invalid, *managed]

    def _clocks(self, session: Session, owners: set[str]) -> Mapping[str, OwnerClock]:
        if self.dry_run:
            return owner_zone.read_many(self.context, session, owners)
        return owner_zone.lock_many(self.context, session, owners, zoned=owners)

    def _one(
        self,
        session: Session,
        found: Found,
        owner: str,
        row: Schedule | None,
        clock: OwnerClock,
        *,
        now: datetime,
    ) -> tuple[Result, ScheduleColumns | None]:
        if row is not None and not self._is_imported(row):
            return Result(found, owner, Outcome.REFUSE, reason=clash(row)), None
        if found.converted is None:
            return self._not_imported(session, found, owner, row, now=now), None
        try:
            wanted = self._wanted(found, owner, found.converted, clock, row, now=now)
        except (InvalidScheduleError, InvalidTriggerError) as error:
            return Result(found, owner, Outcome.REFUSE, reason=str(error)), None
        found, words = wanted.found, _words(wanted.trigger)
        if row is None:
            reason = "" if wanted.row.enabled else f"paused: {wanted.row.paused_reason}"
            return Result(found, owner, Outcome.CREATE, words, reason), wanted.row
        outcome, reason = self._change(session, row, wanted, now=now)
        return Result(found, owner, outcome, words, reason), None

    def _is_imported(self, row: Schedule) -> bool:
        return not row.managed_by and self.tag in (row.tags or ())

    def _wanted(
        self,
        found: Found,
        owner: str,
        converted: Converted,
        clock: OwnerClock,
        row: Schedule | None,
        *,
        now: datetime,
    ) -> _Wanted:
        """Return the row that the schedule would become, checked as in ``create()``.

        A disabled schedule may exceed a limit, with a note, because it does not run.
        """
        _check_run_count(converted.progress.run_count)
        given = {**converted.fields, "tags": [self.tag]}
        if not converted.enabled:
            given |= {"enabled": False, "paused_reason": self._disabled}
        progress = converted.progress if row is None else _comparable(converted)
        new_row = partial(
            edits.new_row,
            self.context,
            owner=owner,
            name=found.name,
            task=converted.task,
            trigger=converted.trigger,
            given=given,
            clock=clock,
            # No trigger of another scheduler has calendars. The clock has that of quiet days.
            calendars=NO_CALENDARS,
            now=now,
            progress=progress,
        )
        try:
            new = new_row()
        except InvalidScheduleError as error:
            if converted.enabled:
                raise
            new = new_row(is_limited=False)
            found = replace(found, notes=(*found.notes, Note("limit", f"stays paused: {error}")))
        trigger = parse_trigger(new.trigger_kind, new.trigger_spec, timezone=new.timezone)
        return _Wanted(found, owner, converted, new, trigger)

    @property
    def _disabled(self) -> str:
        return f"{DISABLED_PREFIX}{self.package}"

    def _not_imported(
        self, session: Session, found: Found, owner: str, row: Schedule | None, *, now: datetime
    ) -> Result:
        if found.refused is not None:
            return Result(found, owner, Outcome.REFUSE, reason=found.refused)
        reason = found.ended or ""
        if row is None or not row.enabled or row.finished_at is not None:
            return Result(found, owner, Outcome.SKIP, reason=reason)
        if not self.dry_run:
            self._pause(session, row, reason=f"{self.package}: {reason}", now=now)
        return Result(found, owner, Outcome.PAUSE, reason=reason)

    def _pause(self, session: Session, row: Schedule, *, reason: str, now: datetime) -> None:
        with audit.recording(self.context, session, row, Action.PAUSE, now=now, reason=reason):
            transitions.pause(session, row, reason=reason, now=now)

    def _changed(self, row: Schedule, wanted: _Wanted) -> Sequence[str]:
        """Return the columns of the definition that differ from the source."""
        return [
            name
            for name in _DEFINITION
            if not is_same(getattr(row, name), getattr(wanted.row, name))
        ]

    def _change(
        self, session: Session, row: Schedule, wanted: _Wanted, *, now: datetime
    ) -> tuple[Outcome, str]:
        changed = self._changed(row, wanted)
        progress = wanted.converted.progress
        is_ahead = _is_ahead(progress, row)
        pauses = row.enabled and not wanted.converted.enabled
        resumes = wanted.converted.enabled and row.paused_reason == self._disabled
        names = [*changed, *(["enabled"] if pauses or resumes else [])]
        if not (names or is_ahead):
            return Outcome.KEEP, ""
        if not self.dry_run:
            self._update(session, row, wanted, changed, resumes=resumes, now=now)
            if pauses:
                self._pause(session, row, reason=self._disabled, now=now)
        if names:
            return Outcome.UPDATE, f"changes {', '.join(names)}"
        return Outcome.ADVANCE, f"has run at {progress.last_run_at}"

    def _update(
        self,
        session: Session,
        row: Schedule,
        wanted: _Wanted,
        changed: Sequence[str],
        *,
        resumes: bool,
        now: datetime,
    ) -> None:
        progress = wanted.converted.progress
        was_linked = bool(calendar_names([row]))
        with audit.recording(self.context, session, row, Action.UPDATE, now=now):
            for name in changed:
                setattr(row, name, getattr(wanted.row, name))
            if resumes:
                row.enabled, row.paused_reason, row.paused_until = True, None, None
            after = _done_until(progress, row, now)
            if _is_ahead(progress, row):
                row.last_run_at = progress.last_run_at
                row.run_count = max(row.run_count, progress.run_count)
                row.anchor_at = progress.anchor_at
            row.error = None
            calendars = used_calendars.read_existing(session, calendar_names([row]))
            _plan(self.context, row, wanted.trigger, calendars, after=after, now=now)
            if was_linked or calendars:
                used_calendars.link(session, [row], calendars, is_new=False)
            edits.touch(self.context, session, row, now=now)

    def _within_quota(
        self, session: Session, rows: Sequence[ScheduleColumns]
    ) -> tuple[Sequence[ScheduleColumns], Mapping[str, str]]:
        """Return the rows of owners within their quota, and why other owners are refused."""
        refused: dict[str, str] = {}
        while True:
            rows = [row for row in rows if row.owner not in refused]
            wanted = Counter(row.owner for row in rows)
            # A dry run has not inserted the rows of earlier batches.
            planned = self._planned if self.dry_run else None
            try:
                limits.check_quota(self.context, session, wanted, planned=planned)
            except OwnerLimitError as error:
                refused[error.owner] = str(error)
                continue
            if self.dry_run:
                self._planned.update(wanted)
            return rows, refused

    def _insert(
        self,
        session: Session,
        rows: Sequence[ScheduleColumns],
        calendars: Calendars,
        *,
        now: datetime,
    ) -> None:
        newest = schedules.newest_id(session)
        schedules.add_many(session, [row.insert_values() for row in rows])
        if quiet := [row for row in rows if quiet_calendars(row.quiet_hours)]:
            ids = schedules.ids_of(session, [(row.owner, row.name) for row in quiet], after=newest)
            for row in quiet:
                row.id = ids[row.owner, row.name]
            used_calendars.link(session, quiet, calendars, is_new=True)
        audit.created(self.context, session, rows, now=now)
        earliest = min((row.next_run_at for row in rows if row.next_run_at), default=None)
        self.context.notify_beat(session, next_run_at=earliest, now=now)


def _split_invalid(
    owned: Sequence[tuple[str, Found]],
) -> tuple[Sequence[tuple[str, Found]], Sequence[Result]]:
    """Return the schedules with a valid owner and name, and the refusals of the others.

    Databases reject a query with a null character, a lone surrogate or a long owner. One such
    schedule must not fail the batch.
    """
    valid, refused = list[tuple[str, Found]](), list[Result]()
    for owner, found in owned:
        try:
            checks.check_owner(owner)
            checks.check_name("name", found.name)
        except InvalidScheduleError as error:
            refused.append(Result(found, owner, Outcome.REFUSE, reason=str(error)))
        else:
            valid.append((owner, found))
    return valid, refused


def _check_run_count(count: object) -> None:
    """Raise InvalidScheduleError unless the database can store the number of runs."""
    if not isinstance(count, int) or not 0 <= count <= _MAX_RUN_COUNT:
        rule = f"must be an integer from 0 to {_MAX_RUN_COUNT:,}: correct it in the source"
        raise checks.invalid("run_count", count, rule)


def _has_doubled(before: int, after: int) -> bool:
    """Return whether the number of schedules passed 1,000, 2,000, 4,000 and so on."""
    return (after // _FIRST_STATISTICS).bit_length() > (before // _FIRST_STATISTICS).bit_length()


@lru_cache(maxsize=8192)
def _words(trigger: Trigger) -> str:
    return trigger.describe()


def _refuse_new(results: dict[tuple[str, str], Result], owner: str, reason: str) -> None:
    for key, result in results.items():
        if result.owner == owner and result.outcome is Outcome.CREATE:
            results[key] = replace(result, outcome=Outcome.REFUSE, reason=reason)


def _managed(found: Found) -> Result:
    """Return the result of a row that the other scheduler has copied from beat_schedule."""
    reason = "beat keeps this entry of beat_schedule as a schedule itself"
    return Result(found, "", Outcome.SKIP, reason=reason)


def clash(row: Schedule) -> str:
    """Return why the schedule with this name does not come from the import."""
    if row.managed_by:
        return "it follows an entry of beat_schedule"
    return (
        "a schedule of this name exists that this import did not create: delete or rename one of"
        " the two, or choose another --owner"
    )


def _comparable(converted: Converted) -> SourceProgress:
    """Return a progress with which the schedule has a fire time, if its definition allows this."""
    return SourceProgress(after=converted.progress.after, anchor_at=converted.progress.anchor_at)


def _is_ahead(progress: SourceProgress, row: Schedule) -> bool:
    """Return whether the source has run the schedule after its last run here."""
    if progress.last_run_at is None:
        return False
    return row.last_run_at is None or progress.last_run_at > row.last_run_at


def _done_until(progress: SourceProgress, row: Schedule, now: datetime) -> datetime:
    """Return the instant until which the fire times are done, here or in the source."""
    known = [each for each in (progress.after, row.last_run_at) if each is not None]
    return max(known, default=now)


def _plan(
    context: Context,
    row: Schedule,
    trigger: Trigger,
    calendars: Calendars,
    *,
    after: datetime,
    now: datetime,
) -> None:
    """Set the next fire time. A row without a further fire time is finished."""
    try:
        timing.plan_continued(
            context, row, after=after, trigger=trigger, calendars=calendars, now=now
        )
    except InvalidScheduleError:
        row.next_fire_at = row.next_run_at = row.held_at = None
        row.finished_at = now
